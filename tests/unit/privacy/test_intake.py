"""What every record passes on its way in: masked, not from the future, and stamped with whose it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.limits import CLOCK_SKEW_S
from memory.models import MemoryEntry, MemoryEvent, Scope
from memory.privacy.intake import FUTURE_TIMESTAMP, Intake
from memory.privacy.redaction import CARD_MASK, CardRedactor

NOW = datetime(2026, 11, 28, 10, tzinfo=UTC)
CARD = "4242 4242 4242 4242"
ANA = Scope(org_id="acme", agent_id="helper", user_id="ana")
NOBODY = Scope(org_id="acme", agent_id="helper", user_id="s1", kind="session")


class FixedClock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


INTAKE = Intake(CardRedactor(), FixedClock())


def entry(**fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"role": "user", "content": "Hello.", "mode": "voice", "timestamp": NOW, **fields})


@pytest.mark.promise("P-redacted")
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_P_redacted_cards_go_from_every_text_of_every_role(role: str) -> None:
    made = entry(
        role=role,
        content=f"It is {CARD}.",
        name=f"Ana {CARD}",
        retrieved_passages=[f"a {CARD}", "clean"],
        sources=[{"title": CARD, "n": 4242424242424242, "deep": [{"x": CARD}], CARD: 1, "page": 12, "ok": True}],
        redactions=2,
    )
    stored = INTAKE.entry(made, ANA, "s1")
    assert stored.content == f"It is {CARD_MASK}."
    assert stored.name == f"Ana {CARD_MASK}"
    assert stored.retrieved_passages == (f"a {CARD_MASK}", "clean")
    assert stored.sources == (
        {"title": CARD_MASK, "n": CARD_MASK, "deep": [{"x": CARD_MASK}], CARD_MASK: 1, "page": 12, "ok": True},
    )
    assert stored.redactions == 2 + 7
    assert "4242" not in str(stored.to_dict())
    assert made.content == f"It is {CARD}."


@pytest.mark.promise("P-redacted")
def test_P_redacted_an_events_data_is_masked_and_the_rest_kept() -> None:
    event = MemoryEvent(event_type="dtmf", data={"keys": "4242424242424242", "at": NOW.isoformat(), "n": 3, "f": 0.5})
    stored = INTAKE.event(event, ANA, "s1")
    assert stored.data == {"keys": CARD_MASK, "at": NOW.isoformat(), "n": 3, "f": 0.5}
    assert (stored.id, stored.event_type) == (event.id, "dtmf")


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_timestamps_in_events_are_never_taken_for_cards(moment: datetime) -> None:
    event = MemoryEvent(event_type="mode_switch", data={"timestamp": moment.isoformat()})
    assert INTAKE.event(event, ANA, "s1").data == event.data


def test_a_time_in_the_future_is_pulled_back_and_noted() -> None:
    early, skewed, future = (NOW + timedelta(seconds=s) for s in (-86_400_000, CLOCK_SKEW_S, CLOCK_SKEW_S + 1))
    assert INTAKE.entry(entry(timestamp=early), ANA, "s1").timestamp == early
    assert INTAKE.entry(entry(timestamp=skewed), ANA, "s1").timestamp == skewed
    stored = INTAKE.entry(entry(timestamp=future, degradations=["host"]), ANA, "s1")
    assert (stored.timestamp, stored.degradations) == (NOW, ("host", FUTURE_TIMESTAMP))
    assert INTAKE.event(MemoryEvent(event_type="e", timestamp=future), ANA, "s1").timestamp == NOW


def test_whose_it_is_comes_from_the_scope_not_from_the_record() -> None:
    claimed = entry(session_id="other", user_id="victim")
    stored = INTAKE.entry(claimed, ANA, "s1")
    assert (stored.session_id, stored.user_id, stored.id) == ("s1", "ana", claimed.id)
    assert INTAKE.entry(claimed, NOBODY, "s1").user_id == ""
    event = INTAKE.event(MemoryEvent(event_type="e", session_id="other", user_id="victim"), ANA, "s1")
    assert (event.session_id, event.user_id) == ("s1", "ana")


def test_a_prepared_record_stays_as_it_is() -> None:
    made = entry(content=f"{CARD} and {CARD}", timestamp=NOW + timedelta(days=1), sources=[{"n": 4242424242424242}])
    once = INTAKE.entry(made, ANA, "s1")
    assert INTAKE.entry(once, ANA, "s1") == once
    event = INTAKE.event(MemoryEvent(event_type="e", data={"x": CARD}), ANA, "s1")
    assert INTAKE.event(event, ANA, "s1") == event


def test_all_other_fields_come_through() -> None:
    made = entry(
        language="ar", detected_language="en", language_switched=True, latency_ms=7.5, interrupted=True,
        transcript_confidence=0.5, phi_detected=True, name="Ana",
    )  # fmt: skip
    stored = INTAKE.entry(made, ANA, "s1")
    assert stored == made.with_(session_id="s1", user_id="ana")
