"""Time in words: which days a query names, whether it asks for a time, whether a turn tells one. English, for now.

Above: ranking (closeness), index (date words of a turn). Below: text (folding).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory.retrieval.text import fold
from memory.retrieval.vocabulary import BASE_FORMS

PERIODS_MAX = 8  # of one query; people name one or two
QUERY_CHARS_MAX = 2_000  # a query is looked through for dates this far

# Index + 1 is the month; the weekday's index is datetime.weekday().
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS_OF = {"day": 1.0, "night": 1.0, "week": 7.0, "weekend": 7.0, "fortnight": 14.0, "month": 30.44, "year": 365.25}
_COUNTS = {"a": 1, "an": 1, "one": 1, "last": 1, "past": 1, "couple": 2, "few": 3, "several": 4}

_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\b"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_COUNT = (
    r"(?:a )?(?P<count>\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|few|several|couple)(?: of)?"
)
_UNIT = r"(?P<unit>day|night|week|weekend|fortnight|month|year)s?\b"

_ASKS_WHEN = re.compile(
    r"\b(?:when|what (?:date|day|month|year|time)|how (?:long|recently)|which (?:date|day|month|year)"
    r"|how many (?:days|weeks|months|years))\b"
)
_TELLS_TIME = re.compile(
    rf"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|since|recently|just|(?:day|week|weekend|month|year)s?"
    rf"|this (?:morning|afternoon|evening|past)|{'|'.join((*_WEEKDAYS, *_MONTHS))}|(?:19|20)\d\d)\b|\b\d\d?/\d\d?\b"
)

# Most queries name no day: one quick look spares them the dozen below.
_MAY_NAME = re.compile(rf"\d|day|night|morning|evening|afternoon|week|month|year|{'|'.join(m[:3] for m in _MONTHS)}")


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time a query names: epoch seconds, ``start <= end``."""

    start: float
    end: float


def asks_when(query: str) -> bool:
    """Whether the answer to ``query`` is a time."""
    return _ASKS_WHEN.search(fold(query[:QUERY_CHARS_MAX])) is not None


def tells_time(text: str) -> bool:
    """Whether ``text`` says when something was or will be. ``text`` is expected to be bounded by the caller."""
    return _TELLS_TIME.search(fold(text)) is not None


def date_words(moment: datetime) -> str:
    """Month and year as words: a turn is findable by when it was said.

    Without the day: "two weeks ago" would match everything said on the 2nd. Named days count by closeness.
    """
    return f"{_MONTHS[moment.month - 1]} {moment.year}"


def named_periods(query: str, now: datetime) -> list[Period]:
    """The days, weeks, months and years ``query`` names, relative to ``now`` and in its time zone; at most eight.

    What is no date ("the 31st of February") is left out. A month or weekday without more is the latest one that
    has begun: people ask their memory about the past.
    """
    folded = fold(query[:QUERY_CHARS_MAX])
    if not _MAY_NAME.search(folded):
        return []
    periods: list[Period] = []
    for pattern, read in _READERS:
        for match in pattern.finditer(folded):
            with suppress(ValueError, OverflowError):
                periods.append(read(match, now))
        # The most telling patterns come first: what one has read is not read again ("8 May 2023" is no "May 2023").
        folded = pattern.sub(" ", folded)
    return list(dict.fromkeys(periods))[:PERIODS_MAX]


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _period(start: datetime, days: float) -> Period:
    begin = start.timestamp()
    return Period(begin, begin + days * 86_400)


def _near(match: re.Match[str], now: datetime) -> Period:
    back = {"day before yesterday": 2, "yesterday": 1, "last night": 1}.get(match.group(), 0)
    return _period(_midnight(now) - timedelta(days=back), 1)


def _count(word: str) -> int:
    return int(BASE_FORMS.get(word, word)) if word not in _COUNTS else _COUNTS[word]


def _ago(match: re.Match[str], now: datetime) -> Period:
    unit = _DAYS_OF[match["unit"]]
    centre = now - timedelta(days=_count(match["count"]) * unit)
    return _period(centre - timedelta(days=unit / 2), unit)


def _within(match: re.Match[str], now: datetime) -> Period:
    days = _count(match["count"]) * _DAYS_OF[match["unit"]]
    return _period(now - timedelta(days=days), days)


def _last_or_this(match: re.Match[str], now: datetime) -> Period:
    today, unit, last = _midnight(now), match["unit"], match["which"] != "this"
    if unit == "weekend":
        saturday = today - timedelta(days=(today.weekday() - 5) % 7)
        return _period(saturday, 2)
    if unit == "week":
        return _period(today - timedelta(days=today.weekday() + (7 if last else 0)), 7)
    if unit == "month":
        first = today.replace(day=1)
        return _month(*((first - timedelta(days=1)).timetuple()[:2] if last else (now.year, now.month)), now)
    return _year(now.year - 1 if last else now.year, now)


def _month(year: int, month: int, now: datetime) -> Period:
    return _period(datetime(year, month, 1, tzinfo=now.tzinfo), 30.44)


def _year(year: int, now: datetime) -> Period:
    return _period(datetime(year, 1, 1, tzinfo=now.tzinfo), 365.25)


def _weekday(match: re.Match[str], now: datetime) -> Period:
    back = (now.weekday() - _WEEKDAYS.index(match["weekday"])) % 7
    return _period(_midnight(now) - timedelta(days=back or (7 if match["last"] else 0)), 1)


def _month_number(name: str) -> int:
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(name[:3]))


def _calendar(match: re.Match[str], now: datetime) -> Period:
    parts = match.groupdict()
    month = _month_number(parts["month"])
    year = int(parts["year"]) if parts.get("year") else now.year
    day = int(parts["day"]) if parts.get("day") else None
    start = datetime(year, month, day or 1, tzinfo=now.tzinfo)
    if not parts.get("year") and start > now:
        start = start.replace(year=year - 1)
    return _period(start, 1 if day else 30.44)


def _numeric(match: re.Match[str], now: datetime) -> Period:
    first, second = int(match["first"]), int(match["second"])
    month, day = (first, second) if first <= 12 else (second, first)
    year = int(match["year"]) if match["year"] else now.year
    start = datetime(year + 2000 if year < 100 else year, month, day, tzinfo=now.tzinfo)
    return _period(start if match["year"] or start <= now else start.replace(year=start.year - 1), 1)


def _iso(match: re.Match[str], now: datetime) -> Period:
    return _period(datetime(*map(int, match.groups()), tzinfo=now.tzinfo), 1)  # type: ignore[arg-type, misc]


def _named_year(match: re.Match[str], now: datetime) -> Period:
    return _year(int(match["year"]), now)


# "may" and "march" are words of their own too: alone they count as months only after a preposition.
_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Period]], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (
            r"\b(?:day before yesterday|yesterday|last night|today|tonight|this (?:morning|afternoon|evening))\b",
            _near,
        ),
        (rf"\b{_COUNT} {_UNIT} (?:ago|back|earlier)\b", _ago),
        (rf"\b(?:in|over|within|during) the (?:last|past|previous) {_COUNT} {_UNIT}", _within),
        (r"\b(?P<which>last|past|previous|this) (?P<unit>weekend|week|month|year)\b", _last_or_this),
        (rf"\b(?P<last>last |past )?(?:on )?(?P<weekday>{'|'.join(_WEEKDAYS)})\b", _weekday),
        (rf"\b{_MONTH} (?:the )?{_DAY}(?:,? {_YEAR})?", _calendar),
        (rf"\b{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?", _calendar),
        (rf"\b{_MONTH},? {_YEAR}", _calendar),
        (
            rf"\b(?:in|since|last|during|early|mid|late|of|this|by|until|before|after) {_MONTH}(?! (?:the )?\d)",
            _calendar,
        ),
        (rf"\b(?P<month>{'|'.join(m for m in _MONTHS if m not in ('may', 'march'))})\b(?! (?:the )?\d)", _calendar),
        (r"\b(?P<first>\d\d?)/(?P<second>\d\d?)(?:/(?P<year>(?:20)?\d\d))?\b(?!/)", _numeric),
        (r"\b((?:19|20)\d\d)-(\d\d)-(\d\d)\b", _iso),
        (rf"\b(?:in|during|since|of|year) {_YEAR}", _named_year),
    )
)
