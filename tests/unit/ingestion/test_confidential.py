"""What is marked as confidential, or ruled so by the deployment, stays out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.confidential import Confidential
from memory.models import MemoryEntry
from memory.settings import load_settings
from tests.support.heard import turns


def left(rule: str, *texts: str) -> list[str]:
    return [turn.text for turn in Confidential.of(rule).turns(turns(*(f"u: {text}" for text in texts)))]


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
def test_marked_spans_are_cut_out(texts: list[str], public: list[str]) -> None:
    assert left("", *texts) == public


def test_a_rule_leaves_whole_turns_out_whatever_their_case_accents_and_spaces() -> None:
    texts = ["About Project  FALCÓN now.", "The falcon flew.", "We diagnosed it.", "The DIAGNOSIS is open.", "Tea?"]
    assert left("project falcon, diagnosis ,,", *texts) == ["The falcon flew.", "We diagnosed it.", "Tea?"]


def test_a_rule_sees_what_a_mark_hides() -> None:
    assert left("falcon", "the <confidential>falcon</confidential> flew") == []


def test_entries_are_treated_as_turns_are() -> None:
    entries = [
        MemoryEntry(role="user", content=text, mode="voice")
        for text in ("a [confidential]b", "c", "d [/confidential] e")
    ]
    public = Confidential().entries(entries)
    assert [(entry.content, entry.id) for entry in public] == [("a", entries[0].id), ("e", entries[2].id)]
    assert Confidential.of("c").entries(entries[1:2]) == []


def test_the_rule_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().confidential == ""
    monkeypatch.setenv("MEMORY_CONFIDENTIAL", "project falcon, diagnosis")
    assert left(load_settings().confidential, "my diagnosis", "my tea") == ["my tea"]


def test_blanks_take_no_long_look() -> None:
    blanks = "[" + " " * 200_000 + "<" * 200_000
    assert left("", blanks) == [blanks]


@given(st.lists(st.text(alphabet="ab <>[]/confidential", max_size=40), max_size=5))
def test_nothing_is_added_and_public_text_stays_public(texts: list[str]) -> None:
    once = left("", *texts)
    assert len(once) <= len(texts)
    assert sum(map(len, once)) <= sum(map(len, texts))
