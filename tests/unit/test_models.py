"""The nouns: what they take, what they refuse and how they say so, and that their serialised form comes back."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memory.errors import EntryTooLarge, InvalidEntry, InvalidIdentity
from memory.limits import DISPLAY_NAME_CHARS_MAX, ENTRY_CONTENT_BYTES_MAX, ENTRY_RETRIEVED_BYTES_MAX, ID_CHARS_MAX
from memory.models import (
    FORMAT_VERSION,
    ConversationContext,
    Fact,
    MemoryEntry,
    MemoryEvent,
    MemorySettings,
    Passage,
    Scope,
    clean_text,
    in_order,
    json_value,
    new_id,
    record_from_dict,
)

SECRET = "my secret is xyzzy"
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=200)  # lone surrogates and controls included
IDS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=8,
)


def entry(**fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"role": "user", "content": "Hello.", "mode": "voice", **fields})


def test_role_content_mode_and_language_are_enough() -> None:
    made = MemoryEntry(role="user", content="What is diabetes?", mode="voice", language="en")
    assert uuid.UUID(made.id).version == 7
    assert abs(made.timestamp - datetime.now(UTC)) < timedelta(minutes=1)
    assert made.sources == () == made.degradations


@given(
    content=ANY_TEXT.filter(lambda text: clean_text(text).strip() != ""),
    language=st.sampled_from(["", "en", "ar"]),
    timestamp=st.datetimes(
        datetime(2, 1, 1),  # noqa: DTZ001 - hypothesis wants naive bounds
        datetime(9998, 1, 1),  # noqa: DTZ001
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
    ),
    sources=st.lists(st.dictionaries(IDS, JSON, max_size=3), max_size=2),
    confidence=st.none() | st.floats(0, 1),
)
def test_an_entry_comes_back_from_json_as_it_was(
    content: str, language: str, timestamp: datetime, sources: list[Any], confidence: float | None
) -> None:
    made = entry(
        content=content,
        language=language,
        timestamp=timestamp,
        sources=sources,
        transcript_confidence=confidence,
        degradations=("late",),
    )
    text = json.dumps(made.to_dict(), allow_nan=False)
    text.encode()  # no lone surrogate is left
    assert MemoryEntry.from_dict(json.loads(text)) == made
    assert record_from_dict(json.loads(text)) == made


def test_an_event_comes_back_and_reads_like_its_data() -> None:
    event = MemoryEvent(event_type="language_switch", data={"from_language": "en", "to_language": "ar"})
    again = record_from_dict(json.loads(json.dumps(event.to_dict())))
    assert again == event
    assert isinstance(again, MemoryEvent)
    assert again["from_language"] == "en"
    assert again.get("missing", "none") == "none"
    with pytest.raises(KeyError):
        again["missing"]


def test_the_first_version_loads_for_good() -> None:
    stored = {
        "v": 1,
        "id": "t-1",
        "session_id": "s1",
        "user_id": "u1",
        "timestamp": "2026-11-28T10:00:00Z",
        "role": "assistant",
        "content": "Hello.",
        "mode": "text",
        "name": None,
        "language": "en",
        "detected_language": "en",
        "language_switched": False,
        "retrieved_passages": ["p"],
        "sources": [{"title": "t"}],
        "latency_ms": 12.5,
        "interrupted": True,
        "transcript_confidence": None,
        "degradations": [],
        "redactions": 1,
        "phi_detected": False,
    }
    assert FORMAT_VERSION >= 1
    loaded = MemoryEntry.from_dict(stored)
    assert (loaded.id, loaded.timestamp) == ("t-1", datetime(2026, 11, 28, 10, tzinfo=UTC))
    assert loaded.to_dict() == {**stored, "v": FORMAT_VERSION}


def test_fields_of_a_newer_version_are_dropped() -> None:
    made = entry()
    assert MemoryEntry.from_dict({**made.to_dict(), "v": 99, "mood": "sunny"}) == made


@pytest.mark.parametrize("data", [None, 7, "text", ["event_type"]])
def test_what_is_no_mapping_is_refused_as_an_entry_is(data: Any) -> None:
    with pytest.raises(InvalidEntry, match="not a mapping"):
        MemoryEntry.from_dict(data)
    with pytest.raises(InvalidEntry, match="not a mapping"):
        record_from_dict(data)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": " \n\t"}, "content: is blank"),
        ({"content": "\x00\x07"}, "content: is blank"),
        ({"role": "robot"}, "role: must be 'user', 'assistant' or 'system'"),
        ({"mode": "telepathy"}, "mode: must be 'voice' or 'text'"),
        ({"timestamp": SECRET}, "timestamp: must be a time in ISO 8601"),
        ({"timestamp": "0001-01-01T00:00:00+14:00"}, "timestamp: must be a time"),
        ({"timestamp": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))}, "timestamp: must be a time"),
        ({"timestamp": float("nan")}, "timestamp"),
        ({"transcript_confidence": float("nan")}, "transcript_confidence"),
        ({"latency_ms": float("inf")}, "latency_ms"),
        ({"id": "a\x00"}, "id: holds control characters"),
        ({"session_id": "s\n1"}, "session_id: holds control characters"),
        ({"user_id": "\ud800"}, "user_id: holds control characters or lone surrogates"),
        ({"id": "x" * (ID_CHARS_MAX + 1)}, "id:"),
        ({"sources": [{"x": object()}]}, "sources: holds a object, which JSON has no form for"),
        ({"sources": [{"x": 10**40}]}, "sources: holds a number of more than 128 bits"),
        ({SECRET: 1, "content": ""}, "content: is blank"),
    ],
)
def test_a_wrong_entry_is_refused_with_field_and_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidEntry) as caught:
        entry(**fields)
    assert said in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_refusal_never_quotes_what_was_said() -> None:
    for fields in ({"role": SECRET}, {"timestamp": SECRET}, {"content": 7, "mode": SECRET}, {"latency_ms": SECRET}):
        with pytest.raises(InvalidEntry) as caught:
            entry(**fields)
        assert SECRET not in str(caught.value)


def test_200_kb_are_taken_and_more_than_the_limit_is_too_large() -> None:
    assert len(entry(content="x" * 200_000).content) == 200_000
    assert entry(content="x" * ENTRY_CONTENT_BYTES_MAX)
    with pytest.raises(EntryTooLarge, match="split it into several turns"):
        entry(content="é" * (ENTRY_CONTENT_BYTES_MAX // 2 + 1))
    with pytest.raises(InvalidEntry, match="store fewer"):
        entry(retrieved_passages=["x" * ENTRY_RETRIEVED_BYTES_MAX, "y"])


def test_control_characters_and_lone_surrogates_leave_the_words() -> None:
    made = entry(content="a\x00b\x1b[31m\n\tc\ud800", name="N\x00ame")
    assert made.content == "ab[31m\n\tc\N{REPLACEMENT CHARACTER}"
    assert made.name == "Name"


def test_a_display_name_that_is_too_long_costs_its_end_not_the_turn() -> None:
    assert entry(name="x" * 500).name == "x" * DISPLAY_NAME_CHARS_MAX


def test_naive_past_and_offset_times_become_utc() -> None:
    assert entry(timestamp=datetime(2026, 1, 1)).timestamp == datetime(2026, 1, 1, tzinfo=UTC)  # noqa: DTZ001
    assert entry(timestamp="2026-01-01T05:00:00+05:00").timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert entry(timestamp="1969-07-20T20:17:40").timestamp == datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC)


def test_entries_do_not_change_after_they_are_made() -> None:
    sources = [{"title": "before"}]
    made = entry(sources=sources)
    sources[0]["title"] = "after"
    assert made.sources[0]["title"] == "before"
    with pytest.raises(InvalidEntry):
        made.with_(mode="telepathy")
    assert made.with_(mode="text").id == made.id
    with pytest.raises(Exception, match="frozen"):
        made.content = "x"  # type: ignore[misc]


class _Colour(Enum):
    RED = "red"


def test_json_values_are_cleaned_and_made_plain() -> None:
    day, ident = date(2026, 1, 2), uuid.uuid4()
    given = {1: (day, {ident}), "n": float("nan"), "c": _Colour.RED, "s\x00": "\ud800", "t": True}
    assert json_value(given) == {
        "1": ["2026-01-02", [str(ident)]],
        "n": None,
        "c": "red",
        "s": "\N{REPLACEMENT CHARACTER}",
        "t": True,
    }


def test_event_data_is_bounded_in_size_and_depth() -> None:
    nested: dict[str, Any] = {}
    inner = nested
    for _ in range(50_000):
        inner["x"] = {}
        inner = inner["x"]
    with pytest.raises(InvalidEntry, match="nested deeper than 32 levels"):
        MemoryEvent(event_type="e", data=nested)
    with pytest.raises(InvalidEntry, match="65536 at most"):
        MemoryEvent(event_type="e", data={"x": "y" * 70_000})
    with pytest.raises(InvalidEntry, match="event_type"):
        MemoryEvent(event_type="")


@pytest.mark.parametrize("user_id", ["", "a\x00", "a\n", "\udfff", "x" * (ID_CHARS_MAX + 1), None, 7])
def test_a_scope_that_can_not_be_a_key_is_an_invalid_identity(user_id: Any) -> None:
    with pytest.raises(InvalidIdentity, match="user_id"):
        Scope(org_id="o", agent_id="a", user_id=user_id)


@given(IDS, IDS)
def test_scopes_are_equal_exactly_when_their_fields_are(one: str, other: str) -> None:
    first, second = (Scope(org_id="o", agent_id="a", user_id=user) for user in (one, other))
    assert (first == second) == (one == other)
    assert first != Scope(org_id="o", agent_id="a", user_id=one, kind="session")
    assert Scope.from_dict(first.to_dict()) == first


def test_ids_sort_by_time() -> None:
    made = [new_id(stamp) for stamp in (0, 1, 1_700_000_000_000, 1_700_000_000_001)]
    assert made == sorted(made)
    assert all(uuid.UUID(one).version == 7 for one in made)
    assert uuid.UUID(new_id(1_700_000_000_000)).int >> 80 == 1_700_000_000_000
    assert len({new_id(5) for _ in range(1_000)}) == 1_000


def test_in_order_sorts_by_time_and_keeps_ties() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    late, first, second = (
        entry(content=c, timestamp=t) for c, t in (("c", now + timedelta(1)), ("a", now), ("b", now))
    )
    assert [one.content for one in in_order([late, first, second])] == ["a", "b", "c"]


def test_user_settings_have_the_formats_defaults() -> None:
    assert MemorySettings().to_dict() == {
        "v": FORMAT_VERSION,
        "enabled": True,
        "retention_days": 30,
        "cross_session": True,
        "save_voice_transcripts": True,
        "save_rag_context": True,
        "anonymize_phi": True,
    }
    assert MemorySettings(retention_days=-1).retention_days == -1
    with pytest.raises(InvalidEntry, match="retention_days"):
        MemorySettings(retention_days=-2)


def test_the_other_nouns_come_back_too() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    context = ConversationContext(session_id="s", messages=(entry(),), mode="text")
    for made in (Fact(text="likes tea", valid_at=now), context):
        assert type(made).from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "secret"},
        {"timestamp": "secret"},
        {"timestamp": "2026-01-01T00:00:00"},
        {"id": None},
        {"score": "secret"},
    ],
)
def test_a_wrong_passage_is_refused_without_quoting_it(wrong: dict[str, Any]) -> None:
    right = {"id": "p", "session_id": "s", "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "role": "user", "text": "Hi"}
    assert Passage(**right).mode == "voice"
    with pytest.raises(ValidationError) as caught:
        Passage(**(right | wrong))
    assert "secret" not in str(caught.value)
