"""Reading lines of existing conversations: what is a turn, what is not, and which turns are the same."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.import_lines import BadLine, Line, Target, Turn, lines, read
from memory.limits import ENTRY_CONTENT_BYTES_MAX, IMPORT_LINE_BYTES_MAX
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from tests.support.ingestion import SteppingClock

TARGET = Target("acme", "support", None, "voice")
INTAKE = Intake(CardRedactor(), SteppingClock())
GIVEN = {
    "session_id": "call-1",
    "user_id": "ana",
    "timestamp": "2026-03-01T12:00:00Z",
    "role": "user",
    "content": "My cat is called Biscuit.",
}


def line(fields: Any, number: int = 3) -> Line:
    raw = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return Line(number, len(raw), raw)


def turn(target: Target = TARGET, **changes: Any) -> Turn:
    found = read(line({**GIVEN, **changes}), target, INTAKE)
    assert isinstance(found, Turn), found
    return found


def bad(fields: Any, target: Target = TARGET) -> str:
    found = read(line(fields), target, INTAKE)
    assert isinstance(found, BadLine), found
    assert found.number == 3
    return found.reason


def test_a_line_is_a_turn_of_its_user() -> None:
    found = turn(name="Ana", language="en", interrupted=True)
    assert (found.scope.org_id, found.scope.agent_id, found.scope.user_id) == ("acme", "support", "ana")
    entry = found.entry
    assert (entry.session_id, entry.user_id, entry.role, entry.content) == ("call-1", "ana", "user", GIVEN["content"])
    assert entry.timestamp == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (entry.mode, entry.name, entry.language, entry.interrupted) == ("voice", "Ana", "en", True)


def test_what_is_not_of_an_entry_is_passed_over() -> None:
    assert turn(sentiment="happy", v=1, language=None).entry.language == ""


def test_the_lines_that_eval_reads_are_turns_of_the_user_that_is_named() -> None:
    target = Target("acme", "support", "ana", "text")
    found = read(line({**{k: v for k, v in GIVEN.items() if k != "user_id"}, "id": "t7", "name": None}), target, INTAKE)
    assert isinstance(found, Turn)
    assert (found.scope.user_id, found.entry.mode) == ("ana", "text")


def test_a_line_that_names_its_user_belongs_to_that_one() -> None:
    assert turn(Target("acme", "support", "bob", "text")).scope.user_id == "ana"


def test_the_same_line_is_the_same_turn() -> None:
    assert turn().entry.id == turn().entry.id
    assert turn(id=7).entry.id == turn(id=7, content="Corrected.").entry.id
    others = [turn(content="x"), turn(session_id="call-2"), turn(role="assistant"), turn(user_id="bob"), turn(id="1")]
    assert len({turn().entry.id, *(other.entry.id for other in others)}) == 6


@pytest.mark.promise("P-redacted")
def test_P_redacted_neither_text_nor_id_tells_a_card_number() -> None:
    one, other = turn(content="It is 4242 4242 4242 4242."), turn(content="It is 4111 1111 1111 1111.")
    assert "4242" not in one.entry.content
    assert one.entry.redactions == 1
    assert one.entry.id == other.entry.id, "an id that differed by the number would let it be guessed"


def test_a_time_to_come_is_pulled_back_and_the_turn_stays_the_same() -> None:
    early, late = Intake(CardRedactor(), SteppingClock()), Intake(CardRedactor(), clock := SteppingClock())
    clock.seconds = 60.0
    fields = line({**GIVEN, "timestamp": "2099-01-01T00:00:00Z"})
    one, other = read(fields, TARGET, early), read(fields, TARGET, late)
    assert isinstance(one, Turn)
    assert isinstance(other, Turn)
    assert one.entry.timestamp < other.entry.timestamp <= clock.now()
    assert one.entry.id == other.entry.id


def test_ids_counted_anew_in_each_session_do_not_meet() -> None:
    assert turn(id="1").entry.id != turn(id="1", session_id="call-2").entry.id


def test_an_id_that_is_unique_by_itself_is_kept() -> None:
    own = str(uuid.uuid4())
    assert turn(id=own).entry.id == own


@pytest.mark.parametrize("number", [1_772_366_400, 1_772_366_400.0])
def test_seconds_are_a_time(number: float) -> None:
    assert turn(timestamp=number).entry.timestamp == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_number_is_an_id() -> None:
    found = turn(session_id=41, user_id=7)
    assert (found.entry.session_id, found.scope.user_id) == ("41", "7")


def test_a_blank_line_is_nothing() -> None:
    assert read(line(b"  \n"), TARGET, INTAKE) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (b"{not json", "is not JSON"),
        (b'["a"]', "is not a JSON object"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        ({}, "session_id: is missing"),
        ({**GIVEN, "content": ""}, "content: is missing"),
        ({**GIVEN, "content": "  "}, "content: is blank"),
        ({**GIVEN, "content": "x" * (ENTRY_CONTENT_BYTES_MAX + 1)}, "split it into several turns"),
        ({**GIVEN, "content": 7}, "content"),
        ({**GIVEN, "role": "robot"}, "role: must be 'user', 'assistant' or 'system'"),
        ({**GIVEN, "mode": "fax"}, "mode: must be 'voice' or 'text'"),
        ({**GIVEN, "timestamp": "yesterday"}, "timestamp"),
        ({**GIVEN, "timestamp": 1e300}, "timestamp"),
        ({**GIVEN, "timestamp": True}, "timestamp"),
        ({**GIVEN, "user_id": None}, "--user"),
        ({**GIVEN, "user_id": "a\x00b"}, "user_id"),
        ({**GIVEN, "user_id": {"a": 1}}, "user_id: must be text"),
        ({**GIVEN, "session_id": "s" * 1_000}, "session_id"),
        ({**GIVEN, "id": ["x"], "session_id": ["y"]}, "session_id: must be text"),
    ],
)
def test_a_line_that_can_not_be_used_says_why_and_not_what(fields: Any, told: str) -> None:
    reason = bad(fields)
    assert told in reason
    assert "Biscuit" not in reason
    assert len(reason) < 300


def test_a_line_that_is_too_long_is_passed_over_whole() -> None:
    long = b'{"content": "' + b"x" * (IMPORT_LINE_BYTES_MAX + 10) + b'"}\n'
    file = io.BytesIO(b"one\n" + long + b"three")
    found = list(lines(file))
    assert [(each.number, each.raw) for each in found] == [(1, b"one\n"), (2, None), (3, b"three")]
    assert found[-1].end == len(file.getvalue())
    assert isinstance(read(found[1], TARGET, INTAKE), BadLine)


@given(st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), max_size=12), st.integers(0, 12))
def test_reading_on_from_where_it_was_gives_the_rest(contents: list[bytes], done: int) -> None:
    file = io.BytesIO(b"\n".join(contents))
    whole = list(lines(file))
    done = min(done, len(whole))
    number, offset = (whole[done - 1].number, whole[done - 1].end) if done else (0, 0)
    assert list(lines(file, number=number, offset=offset)) == whole[done:]


@given(st.dictionaries(st.sampled_from([*GIVEN, "id", "mode", "name", "extra"]), st.none() | st.integers() | st.text()))
def test_no_line_stops_the_others(fields: dict[str, Any]) -> None:
    assert isinstance(read(line({**GIVEN, **fields}), TARGET, INTAKE), Turn | BadLine)
