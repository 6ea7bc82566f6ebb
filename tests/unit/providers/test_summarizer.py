"""Summing up by quoting: short, in order, with what matters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.models import MemoryEntry, Role
from memory.providers.summarizer import ExtractiveSummarizer


def say(role: Role, content: str) -> MemoryEntry:
    return MemoryEntry(role=role, content=content, mode="voice")


CALL = [
    say("user", "Hi there. My order #1234 is delayed again!"),
    say("assistant", "I'm sorry to hear that. Let me see what I can do. Is there anything else?"),
    say("user", "Well. You know. I moved to 12 Elm Road in Lyon. And my daughter is allergic to peanuts."),
    say("assistant", "Noted. The parcel arrives on Tuesday at 9."),
    say("user", "Okay. Thanks. Okay."),
]


async def test_it_quotes_what_matters_in_the_order_it_was_said() -> None:
    summary = await ExtractiveSummarizer(200).summarize(CALL)
    assert len(summary) <= 200
    places = [summary.index(part) for part in ("User: My order #1234", "12 Elm Road", "peanuts", "Tuesday at 9")]
    assert places == sorted(places)
    assert "Okay" not in summary


@given(
    st.lists(
        st.builds(
            say,
            st.sampled_from(["user", "assistant", "system"]),
            st.text(min_size=1).filter(str.strip).filter(lambda t: t.isprintable()),
        ),
        max_size=12,
    ),
    st.integers(0, 400),
)
async def test_it_keeps_to_its_length_and_to_what_was_said(entries: list[MemoryEntry], chars: int) -> None:
    summary = await ExtractiveSummarizer(chars).summarize(entries)
    assert len(summary) <= chars
    assert await ExtractiveSummarizer(chars).summarize(entries) == summary


async def test_what_was_said_twice_is_quoted_once() -> None:
    summary = await ExtractiveSummarizer().summarize([say("user", "I live in Lyon near Bellecour.")] * 5)
    assert summary == "User: I live in Lyon near Bellecour."


async def test_nothing_worth_quoting_is_nothing() -> None:
    assert await ExtractiveSummarizer().summarize([]) == ""
    assert await ExtractiveSummarizer().summarize([say("user", "?! ...")]) == ""


async def test_other_scripts_are_summed_up_too() -> None:
    entries = [say("user", "أحمد لديه حساسية الفول السوداني؟ نعم."), say("user", "私の犬の名前はビスケットです。")]
    summary = await ExtractiveSummarizer().summarize(entries)
    assert "حساسية" in summary
    assert "ビスケット" in summary
