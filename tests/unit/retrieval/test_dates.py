"""Which days a query names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.dates import PERIODS_MAX, Period, asks_when, date_words, named_periods, tells_time
from tests.support.turns import NOW


def _days(period: Period) -> tuple[str, str]:
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (period.start, period.end - 1))
    return first.date().isoformat(), last.date().isoformat()


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("what did I say yesterday?", "2025-06-03", "2025-06-03"),
        ("the day before yesterday", "2025-06-02", "2025-06-02"),
        ("this morning", "2025-06-04", "2025-06-04"),
        ("two days ago", "2025-06-02", "2025-06-02"),
        ("last week", "2025-05-26", "2025-06-01"),
        ("this week", "2025-06-02", "2025-06-08"),
        ("last weekend", "2025-05-31", "2025-06-01"),
        ("last month", "2025-05-01", "2025-05-31"),
        ("last year", "2024-01-01", "2024-12-31"),
        ("on Monday", "2025-06-02", "2025-06-02"),
        ("last Wednesday", "2025-05-28", "2025-05-28"),
        ("in March", "2025-03-01", "2025-03-31"),
        ("in August", "2024-08-01", "2024-08-31"),
        ("in May 2023", "2023-05-01", "2023-05-31"),
        ("on May 8th", "2025-05-08", "2025-05-08"),
        ("8 May, 2023", "2023-05-08", "2023-05-08"),
        ("the 8th of may", "2025-05-08", "2025-05-08"),
        ("on 3/22", "2025-03-22", "2025-03-22"),
        ("on 22/3/2024", "2024-03-22", "2024-03-22"),
        ("2024-02-29", "2024-02-29", "2024-02-29"),
        ("in 2022", "2022-01-01", "2023-01-01"),
    ],
)
def test_a_named_day_is_read(query: str, first: str, last: str) -> None:
    (period,) = named_periods(query, NOW)
    assert _days(period) == (first, last)


def test_a_week_ago_is_about_a_week_ago() -> None:
    (period,) = named_periods("a week ago", NOW)
    assert period.start < (NOW - timedelta(days=7)).timestamp() < period.end


@pytest.mark.parametrize(
    "query", ["may I ask something", "march on", "February 30", "13/45", "no date here", "0/0", ""]
)
def test_what_is_no_day_is_not_read(query: str) -> None:
    assert named_periods(query, NOW) in ([], named_periods("february", NOW))


def test_days_are_those_of_the_askers_time_zone() -> None:
    late = datetime(2025, 6, 4, 1, 0, tzinfo=timezone(timedelta(hours=3)))  # still the 3rd in UTC
    (period,) = named_periods("yesterday", late)
    assert datetime.fromtimestamp(period.start, late.tzinfo) == datetime(2025, 6, 3, tzinfo=late.tzinfo)


WORDS = (
    "may",
    "31",
    "last",
    "week",
    "two",
    "days",
    "ago",
    "in",
    "2023",
    "feb",
    "30",
    "3/4",
    "0",
    "year",
    "month",
    "on",
    "friday",
)


@given(
    st.one_of(st.text(st.characters(), max_size=80), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)),
    st.integers(200_000_000, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_any_query_is_read_without_harm(query: str, now: datetime) -> None:
    periods = named_periods(query, now)
    assert len(periods) <= PERIODS_MAX
    assert all(period.start <= period.end for period in periods)


def test_when_questions_and_times_told_are_recognised() -> None:
    assert asks_when("When did I fly?")
    assert asks_when("how long ago was that")
    assert not asks_when("Where do I live?")
    assert tells_time("I flew last Tuesday")
    assert tells_time("on 3/22 it broke")
    assert not tells_time("I like sushi")


def test_a_date_is_month_and_year() -> None:
    assert date_words(NOW) == "june 2025"
