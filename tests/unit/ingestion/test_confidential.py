"""What is marked as confidential, or ruled so by the deployment, stays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.confidential import Confidential
from memory.knowledge_ports import ArchivedEntry, SessionRef
from memory.models import MemoryEntry
from memory.settings import load_settings
from tests.support.heard import turns

REF = SessionRef(1, "s1")


class Earlier:
    """The session's turns so far, their cursors from 1 on."""

    def __init__(self, *texts: str) -> None:
        said = [MemoryEntry(role="user", content=text, mode="voice") for text in texts]
        self._said = [ArchivedEntry(cursor, one) for cursor, one in enumerate(said, start=1)]

    async def before(self, ref: SessionRef, cursor: int, *, holding: str, limit: int) -> list[ArchivedEntry]:
        assert ref == REF
        found = [one for one in self._said if one.cursor < cursor and holding in one.entry.content.lower()]
        return found[::-1][:limit]


async def left(rule: str, *texts: str, earlier: Sequence[str] = ()) -> list[str]:
    said = turns(*(f"u: {text}" for text in texts))
    public = await Confidential.of(rule).turns(said, REF, len(earlier) + 1, Earlier(*earlier))
    return [turn.text for turn in public]


@pytest.mark.parametrize(
    ("texts", "public"),
    [
        (["I like tea <confidential>and hate Bob</confidential> and cake"], ["I like tea and cake"]),
        (["[confidential] all of it [/confidential]", "next"], ["next"]),
        (["a < Confidential > b </CONFIDENTIAL> c"], ["a c"]),
        (["one <confidential>two", "three", "four</confidential> five"], ["one", "five"]),
        (["one", "two [confidential] three", "four"], ["one", "two"]),
        (["one", "two [/confidential] three", "four"], ["three", "four"]),
        (["a [confidential]b[/confidential] c [confidential]d[/confidential] e"], ["a c e"]),
        (["nothing  is   marked"], ["nothing  is   marked"]),
    ],
)
async def test_marked_spans_are_cut_out(texts: list[str], public: list[str]) -> None:
    assert await left("", *texts) == public


async def test_a_rule_leaves_whole_turns_out_whatever_their_case_accents_and_spaces() -> None:
    texts = ["About Project  FALCÓN now.", "The falcon flew.", "We diagnosed it.", "The DIAGNOSIS is open.", "Tea?"]
    assert await left("project falcon, diagnosis ,,", *texts) == ["The falcon flew.", "We diagnosed it.", "Tea?"]


async def test_a_rule_sees_what_a_mark_hides() -> None:
    assert await left("falcon", "the <confidential>falcon</confidential> flew") == []


async def test_entries_are_treated_as_turns_are() -> None:
    entries = [
        MemoryEntry(role="user", content=text, mode="voice")
        for text in ("a [confidential]b", "c", "d [/confidential] e")
    ]
    archived = [ArchivedEntry(cursor, one) for cursor, one in enumerate(entries, start=2)]
    public = await Confidential().entries(archived, REF, Earlier("before"))
    assert [(entry.content, entry.id) for entry in public] == [("a", entries[0].id), ("e", entries[2].id)]
    assert await Confidential.of("c").entries(archived[1:2], REF, Earlier()) == []
    assert await Confidential().entries(archived[1:2], REF, Earlier("b [confidential]")) == []


async def test_the_rule_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().confidential == ""
    monkeypatch.setenv("MEMORY_CONFIDENTIAL", "project falcon, diagnosis")
    assert await left(load_settings().confidential, "my diagnosis", "my tea") == ["my tea"]


@pytest.mark.parametrize(
    ("earlier", "public"),
    [
        (["a <confidential> b", "c", "d"], []),
        (["a <confidential> b", "c [/confidential] d"], ["one", "two"]),
        (["[confidential] a", *["This is confidential."] * 40], []),
        (["[confidential] a [/confidential]", *["This is confidential."] * 40], ["one", "two"]),
        (["This is confidential."] * 16, ["one", "two"]),
        (["[/confidential][confidential]"], []),
    ],
)
async def test_what_was_opened_long_before_still_hides(earlier: list[str], public: list[str]) -> None:
    assert await left("", "one", "two", earlier=earlier) == public


async def test_what_is_closed_at_last_is_public_again() -> None:
    assert await left("", "one", "two [/confidential] three", earlier=["[confidential]"]) == ["three"]


@pytest.mark.parametrize(("rule", "public"), [("", "teacake,falcon"), ("falcon", "")])
@given(size=st.integers(1, 80))
async def test_of_a_turn_in_parts_is_known_what_is_known_of_the_whole(rule: str, public: str, size: int) -> None:
    whole = "tea <confidential>Avalon, Avalon</confidential> cake, falcon"
    (turn,) = turns(f"u: {whole}")
    parts = [
        replace(turn, text=whole[start : start + size], start=start, end=start + size, whole=whole)
        for start in range(0, len(whole), size)
    ]
    found = [await Confidential.of(rule).turns([part], REF, 1, Earlier()) for part in parts]
    told = "".join(part.text for public_parts in found for part in public_parts)
    assert "".join(told.split()) == public


async def test_blanks_take_no_long_look() -> None:
    blanks = "[" + " " * 200_000 + "<" * 200_000
    assert await left("", blanks) == [blanks]


@given(st.lists(st.text(alphabet="ab <>[]/confidential", max_size=40), max_size=5))
async def test_nothing_is_added_and_public_text_stays_public(texts: list[str]) -> None:
    once = await left("", *texts)
    assert len(once) <= len(texts)
    assert sum(map(len, once)) <= sum(map(len, texts))
