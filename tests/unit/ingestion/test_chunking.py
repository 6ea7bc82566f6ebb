"""Cutting sessions into chunks: nothing is left out, nothing is in two, and words stay whole."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context.budget import MESSAGE_TOKENS, estimate_tokens
from memory.ingestion.chunking import cutter, pieces
from memory.knowledge import ChunkSpan
from memory.knowledge_ports import ArchivedEntry
from memory.limits import CHUNK_TOKENS_DEFAULT, CHUNK_TURNS_MAX
from memory.models import MemoryEntry, clean_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
texts = st.text(min_size=1, max_size=400).map(clean_text).filter(lambda text: bool(text.strip()))


def entries(*contents: str, step: int = 1) -> list[ArchivedEntry]:
    """Turns at the cursors 10, 10 + ``step``, …: events and other sessions lie between them."""
    return [
        ArchivedEntry(10 + number * step, MemoryEntry(role="user", content=content, mode="voice", timestamp=NOON))
        for number, content in enumerate(contents)
    ]


def shown(spans: Sequence[ChunkSpan], turns: Sequence[ArchivedEntry]) -> list[list[tuple[int, int, int]]]:
    """What each span holds: cursor, from, to."""
    held = []
    for span in spans:
        rows = []
        for turn in turns:
            if span.first_cursor <= turn.cursor <= span.last_cursor:
                size = len(turn.entry.content)
                start = span.start_offset if turn.cursor == span.first_cursor else 0
                end = span.end_offset if turn.cursor == span.last_cursor and span.end_offset >= 0 else size
                rows.append((turn.cursor, start, end))
        held.append(rows)
    return held


def assert_covered(spans: Sequence[ChunkSpan], turns: Sequence[ArchivedEntry]) -> None:
    """Every character of ``turns``, once and in order."""
    rows = [row for held in shown(spans, turns) for row in held]
    merged: dict[int, int] = {}
    for cursor, start, end in rows:
        assert start == merged.get(cursor, 0), "a gap, an overlap, or out of order"
        assert end > start
        merged[cursor] = end
    assert list(merged) == [turn.cursor for turn in turns]
    assert merged == {turn.cursor: len(turn.entry.content) for turn in turns}


@given(st.lists(texts, max_size=30), st.integers(6, 60), st.integers(1, 3))
def test_spans_cover_every_turn_exactly_once(contents: list[str], tokens_max: int, step: int) -> None:
    turns = entries(*contents, step=step)
    spans = cutter(tokens_max)(turns)
    assert_covered(spans, turns)
    assert cutter(tokens_max)(turns) == spans


@given(st.lists(texts, min_size=1, max_size=30), st.integers(8, 60))
def test_no_chunk_is_larger_than_it_may_be(contents: list[str], tokens_max: int) -> None:
    turns = entries(*contents)
    spans = cutter(tokens_max)(turns)
    by_cursor = {turn.cursor: turn.entry.content for turn in turns}
    for span, held in zip(spans, shown(spans, turns), strict=True):
        tokens = sum(estimate_tokens(by_cursor[cursor][start:end]) + MESSAGE_TOKENS for cursor, start, end in held)
        assert tokens == span.tokens
        assert tokens <= tokens_max or held[0][2] - held[0][1] == 1, "only a single character may be larger"


@given(st.lists(texts, max_size=40), st.integers(6, 60), st.integers(2, 12))
def test_a_session_that_is_handed_in_bit_by_bit_is_covered_as_well(
    contents: list[str], tokens_max: int, at_once: int
) -> None:
    turns = entries(*contents)
    cut, left, spans = cutter(tokens_max, turns_max=at_once), list(turns), list[ChunkSpan]()
    for _ in range(len(turns) + 1):
        new = cut(left[:at_once])
        spans += new
        if not new:
            break
        left = [turn for turn in left if turn.cursor > new[-1].last_cursor]
    assert not left
    assert_covered(spans, turns)


@given(st.text(max_size=600), st.integers(1, 40))
def test_pieces_leave_nothing_out(text: str, tokens_max: int) -> None:
    cut = list(pieces(text, tokens_max))
    assert "".join(text[start:end] for start, end in cut) == text
    assert [end for _, end in cut[:-1]] == [start for start, _ in cut[1:]]
    assert all(estimate_tokens(text[start:end]) <= tokens_max or end - start == 1 for start, end in cut)


def test_a_call_of_twenty_turns_is_one_chunk() -> None:
    turns = entries(*(f"This is turn {number}, and it says as much as people say in one." for number in range(20)))
    assert len(cutter(CHUNK_TOKENS_DEFAULT)(turns)) == 1


def test_nothing_is_no_chunk() -> None:
    assert list(cutter()([])) == []


def test_chunks_are_about_equally_long() -> None:
    turns = entries(*["word " * 19] * 21)  # one turn more than fits
    cost = estimate_tokens("word " * 19) + MESSAGE_TOKENS
    sizes = [len(held) for held in shown(cutter(20 * cost)(turns), turns)]
    assert sizes == [11, 10]


def test_an_overlong_turn_is_cut_between_sentences() -> None:
    sentence = "The courier left it at the neighbour's door. "
    text = sentence * 30
    cut = list(pieces(text, estimate_tokens(sentence * 4)))
    assert len(cut) > 5
    assert all(text[start:end].endswith(". ") for start, end in cut)


def test_text_without_sentences_is_cut_between_words() -> None:
    text = "alpha beta gamma delta " * 40
    cut = list(pieces(text, 30))
    assert len(cut) > 5
    assert all(text[start:end].endswith(" ") for start, end in cut[:-1])


def test_chinese_is_cut_between_sentences() -> None:
    text = "我对花生过敏。请不要放花生！" * 20
    cut = list(pieces(text, 30))
    assert len(cut) > 5
    assert all(text[end - 1] in "。！" for _, end in cut)


def test_what_makes_one_character_stays_together() -> None:
    text = "e\u0301" * 200 + "👩\u200d💻" * 50
    starts = [start for start, _ in pieces(text, 20)]
    assert len(starts) > 5
    for start in starts:
        assert text[start] not in ("\u0301", "\u200d")


def test_a_run_of_marks_alone_comes_to_an_end() -> None:
    text = "\u0301" * 5_000
    assert "".join(text[start:end] for start, end in pieces(text, 20)) == text


@pytest.mark.case("S06")
def test_S06_a_monologue_of_6000_words_in_one_turn_is_split_before_any_llm_sees_it() -> None:
    monologue = " ".join(f"word{number % 97}{'.' if number % 11 == 10 else ''}" for number in range(6_000))
    turns = entries("Go on.", monologue, "I see.")
    spans = cutter(CHUNK_TOKENS_DEFAULT)(turns)
    assert len(spans) >= 4
    assert all(span.tokens <= CHUNK_TOKENS_DEFAULT for span in spans)
    assert_covered(spans, turns)
    within = [(before, after) for before, after in itertools.pairwise(spans) if after.start_offset]
    assert len(within) >= 3
    for before, after in within:
        assert monologue[after.start_offset - 1].isspace()
        assert before.end_offset == after.start_offset


@pytest.mark.case("L37")
def test_L37_a_session_of_10000_turns_with_one_of_200_kB_is_cut_in_bounded_steps() -> None:
    contents = [f"Turn {number} says something of a usual length, as turns do." for number in range(10_000)]
    contents[5_000] = "A long story, told at length. " * 7_000
    turns = entries(*contents)
    cut, done, spans, most = cutter(), 0, list[ChunkSpan](), 0
    while new := cut(turns[done : done + CHUNK_TURNS_MAX]):
        spans += new
        most = max(most, len(new))
        done = next((at for at in range(done, len(turns)) if turns[at].cursor > new[-1].last_cursor), len(turns))
    assert done == len(turns)
    assert_covered(spans, turns)
    assert all(span.tokens <= CHUNK_TOKENS_DEFAULT for span in spans)
    usual = [span for span in spans if span.last_cursor < 10 + 4_800]
    assert min(span.tokens for span in usual) > CHUNK_TOKENS_DEFAULT / 2, "no crumbs where one batch ends"
