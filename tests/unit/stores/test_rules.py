"""What session stores decide alike: positions, modes, languages, and what an erasure means."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from memory.models import MemoryEntry, MemoryEvent, new_id
from memory.ports import Selection
from memory.stores.rules import POSITION_CHARS, detected_switch, language_of, mode_of, next_position, selects

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_MILLISECONDS = st.integers(min_value=0, max_value=4_102_444_800_000)  # to the year 2100


@given(st.lists(st.one_of(_MILLISECONDS, st.just(1_767_225_600_000)), min_size=1, max_size=60))
def test_positions_grow_as_text_whatever_the_clock_does(times: list[int]) -> None:
    positions = [""]
    for now_ms in times:
        positions.append(next_position(positions[-1], now_ms))
    assert positions == sorted(set(positions))
    assert {len(position) for position in positions[1:]} == {POSITION_CHARS}


def test_positions_of_one_millisecond_are_numbered_and_run_over() -> None:
    first = next_position("", 1_767_225_600_000)
    assert first == "0001767225600000-000000"
    position = first
    for _ in range(1_024):
        position = next_position(position, 1_767_225_600_000)
    assert position == "0001767225600001-000000"


def test_the_id_of_a_detected_switch_follows_from_the_entrys() -> None:
    entry = MemoryEntry(role="user", content="hi", mode="text", session_id="s", timestamp=NOON, id=new_id())
    first, again = detected_switch(entry), detected_switch(entry)
    other = detected_switch(entry.with_(id=new_id()))
    assert first == again
    assert other.id not in (first.id, entry.id)
    assert (first.session_id, first.timestamp, first["from_mode"], first["to_mode"]) == ("s", NOON, "voice", "text")


def test_only_entries_and_switches_set_mode_and_language() -> None:
    entry = MemoryEntry(role="user", content="hi", mode="voice", language="ar")
    assert (mode_of(entry), language_of(entry)) == ("voice", "ar")

    def event(event_type: str, **data: object) -> MemoryEvent:
        return MemoryEvent(event_type=event_type, data=data)

    assert mode_of(event("mode_switch", to_mode="text")) == "text"
    assert mode_of(event("mode_switch", to_mode="smoke")) is None
    assert mode_of(event("mode_switch", to_mode=["text"])) is None
    assert mode_of(event("other", to_mode="text")) is None
    assert language_of(event("language_switch", to_language="de")) == "de"
    assert language_of(event("language_switch", to_language=7)) == ""
    assert language_of(event("other", to_language="de")) == ""


def test_a_selection_takes_what_does_not_tell() -> None:
    session, since = Selection("session", session_id="s"), Selection("since", since=NOON)
    assert [selects(session, given_, None) for given_ in ("s", "t", None)] == [True, False, True]
    assert [selects(since, "s", said_at) for said_at in (NOON, NOON.replace(hour=11), None)] == [True, False, True]
    assert selects(Selection("all"), "any", NOON)
