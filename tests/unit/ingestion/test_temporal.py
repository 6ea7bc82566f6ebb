"""When a statement holds, and which of two ends the other."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.temporal import ended_by, holds_when_said, validity
from memory.knowledge import Statement
from tests.support.talk import NOON

DAY = timedelta(days=1)
moments = st.integers(-5, 5).map(lambda days: NOON + days * DAY)


def statement(valid_at: datetime, said: datetime | None = None, until: datetime | None = None) -> Statement:
    return Statement("x", "R", "c", "user", valid_at, until, said or valid_at, ())


def test_without_a_date_it_holds_from_when_it_was_said() -> None:
    holds = validity("User likes tea", said=NOON, valid_at=None, invalid_at=None)
    assert (holds.valid_at, holds.invalid_at) == (NOON, None)


def test_the_days_date_says_no_more_than_that_it_holds_now() -> None:
    midnight = NOON.replace(hour=0)
    assert validity("User lives in York", said=NOON, valid_at=midnight, invalid_at=None).valid_at == NOON
    assert validity("User lives in York", said=NOON, valid_at=midnight - DAY, invalid_at=None).valid_at < midnight
    later = NOON + timedelta(hours=3)
    assert validity("The sale starts", said=NOON, valid_at=later, invalid_at=None).valid_at == later


def test_a_plan_holds_from_when_it_was_made() -> None:
    holds = validity("User will fly by Friday", said=NOON, valid_at=NOON + 3 * DAY, invalid_at=NOON + 4 * DAY)
    assert (holds.valid_at, holds.invalid_at) == (NOON, None)
    until = validity("User will work at Acme until Friday", said=NOON, valid_at=None, invalid_at=NOON + 4 * DAY)
    assert until.invalid_at == NOON + 4 * DAY


def test_what_is_over_began_no_later_than_it_ended() -> None:
    holds = validity("User worked at Acme until 2019", said=NOON, valid_at=None, invalid_at=NOON - 9 * DAY)
    assert (holds.valid_at, holds.invalid_at) == (NOON - 9 * DAY, NOON - 9 * DAY)
    assert validity("x", said=NOON, valid_at=NOON - DAY, invalid_at=NOON - 2 * DAY).invalid_at is None


def test_the_later_one_ends_the_earlier() -> None:
    early, late = statement(NOON), statement(NOON + DAY)
    assert ended_by(early, late, certain=False) == NOON + DAY
    assert ended_by(late, early, certain=False) is None


def test_what_has_no_date_of_its_own_follows_the_order_in_which_it_was_said() -> None:
    first, second = statement(NOON - DAY, NOON), statement(NOON - DAY, NOON + timedelta(minutes=1))
    assert ended_by(first, second, certain=False) == NOON + timedelta(minutes=1)
    assert ended_by(second, first, certain=False) is None


def test_a_certain_correction_counts_though_it_is_dated_back() -> None:
    york = statement(NOON)
    leeds_since_april = statement(NOON - 30 * DAY, NOON + DAY)
    assert ended_by(york, leeds_since_april, certain=True) == NOON + DAY
    assert ended_by(leeds_since_april, york, certain=True) is None
    assert ended_by(leeds_since_april, york, certain=False) == NOON  # an LLM's word: Graphiti's rule


def test_what_was_announced_for_later_still_comes() -> None:
    from_june, now = statement(NOON + 30 * DAY, NOON), statement(NOON + DAY)
    assert ended_by(now, from_june, certain=True) == NOON + 30 * DAY
    assert ended_by(from_june, now, certain=True) is None


@given(moments, moments, moments, moments, st.booleans())
def test_at_most_one_ends_the_other_and_never_before_it_began(
    a: datetime, a_said: datetime, b: datetime, b_said: datetime, certain: bool
) -> None:
    one, other = statement(a, a_said), statement(b, b_said)
    ends = ended_by(one, other, certain=certain), ended_by(other, one, certain=certain)
    assert None in ends
    assert ends[0] is None or ends[0] >= one.valid_at
    assert ends[1] is None or ends[1] >= other.valid_at
    assert ends != (None, None) or (a_said == b_said and (certain or a == b))


@pytest.mark.parametrize(("until", "at"), [(None, NOON), (NOON - DAY, NOON - 9 * DAY), (NOON + DAY, NOON)])
def test_a_repetition_needs_a_fact_that_is_live_when_it_is_said(until: datetime | None, at: datetime) -> None:
    assert holds_when_said(statement(NOON - 9 * DAY, NOON, until)) == at
