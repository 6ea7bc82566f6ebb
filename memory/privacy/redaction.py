"""Card numbers out of text, before any store, log or span sees it.

The rule. A *group* is an unbroken row of digits of any script (``4242``, ``٤٢٤٢``, ``４２４２``). Groups with at most
``SEPARATOR_CHARS_MAX`` characters that are neither letter nor digit between them form a *run*: spaces, dashes, dots,
commas, no-break and other Unicode spaces, line ends, mixed as they come. Masked is

1. anywhere in a run: 13 to 19 digits from the start of a group to the end of a group that pass Luhn, and have the
   prefix and length of a card issuer;
2. standing alone (a whole run, or one group, no Latin letter touching it): 13 to 19 digits that pass Luhn, of
   whatever issuer;
3. a group longer than the card it starts with (card, expiry and code keyed in without a gap).

Kept are other numbers: fewer digits (an order 4242 4242), what fails Luhn, dates and times (a colon ends a run),
phone numbers (a ``+`` before 15 digits or fewer, or a leading 0, which no card has), and long strings of digits that
merely contain a valid stretch. One in ten ids of 13 to 19 digits passes Luhn by chance and is masked: a lost id is
the lesser harm.

Above: intake. Below: ports.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate

from memory.ports import Redacted

CARD_MASK = "[card number]"
SEPARATOR_CHARS_MAX = 6  # "** **" between bold groups, " - ", ",  "
_DIGITS_MIN, _DIGITS_MAX = 13, 19
_LONG_GROUP = 17  # longer than the 16 digits most cards have: the rest is an expiry date or a code

# Superscript, subscript, circled, parenthesised and dotted digits: str.isdigit(), which \d does not cover.
_ODD_DIGITS = (
    "²³¹⁰⁴-⁹₀-₉፩-፱᧚①-⑨⑴-⑼⒈-⒐⓪⓵-⓽⓿❶-❾➀-➈➊-➒"
    "\U00010a40-\U00010a43\U00010e60-\U00010e68\U00011052-\U0001105a\U0001f100-\U0001f10a"
)
_DIGIT = rf"[\d{_ODD_DIGITS}]"
_SEPARATOR = r"(?:[^\w:：]|_)"  # a colon is in times, and between a label and a number
_RUN = re.compile(rf"{_DIGIT}(?:{_SEPARATOR}{{0,{SEPARATOR_CHARS_MAX}}}{_DIGIT}){{{_DIGITS_MIN - 1},}}+")

_DATE = r"(?:(?:19|20)\d\d[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.](?:19|20)\d\d)"
_DATES = re.compile(rf"{_DATE}(?:[\W_]{{1,{SEPARATOR_CHARS_MAX}}}{_DATE})*")

_LETTER = re.compile(r"[A-Za-z]")
_DOUBLED = bytes(2 * digit - 9 * (digit > 4) for digit in range(10)) + bytes(246)

# First and last prefix, and the lengths that its issuer gives out.
_ISSUERS: tuple[tuple[str, str, range | tuple[int, ...]], ...] = (
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),
    ("300", "305", range(14, 20)),  # Diners Club
    ("309", "309", range(14, 20)),
    ("36", "36", range(14, 20)),
    ("38", "39", range(14, 20)),
    ("3528", "3589", range(16, 20)),  # JCB
    ("6011", "6011", range(16, 20)),  # Discover
    ("644", "649", range(16, 20)),
    ("65", "65", range(16, 20)),
    ("62", "62", range(16, 20)),  # UnionPay
    ("81", "82", range(16, 20)),  # UnionPay, RuPay
    ("50", "50", range(13, 20)),  # Maestro and national debit schemes
    ("56", "69", range(13, 20)),
    ("2200", "2204", range(16, 20)),  # Mir
    ("9704", "9704", (16, 19)),  # Napas
    ("9792", "9792", (16,)),  # Troy
    ("8600", "8600", (16,)),  # Uzcard
    ("9860", "9860", (16,)),  # Humo
)

Span = tuple[int, int]


class CardRedactor:
    """Masks card numbers with ``CARD_MASK``, by the rule above. Pure, idempotent, linear in the text's length."""

    def redact(self, text: str) -> Redacted:
        """``text`` with every card number masked whole, and how many stretches were masked."""
        pieces: list[str] = []
        done = count = 0
        for run in _RUN.finditer(text):
            for start, end in _Run(text, run.start(), run.end()).cards():
                pieces += (text[done:start], CARD_MASK)
                done, count = end, count + 1
        return Redacted("".join((*pieces, text[done:])) if count else text, count)


class _Run:
    """The digits of one run: indices below count digits, not characters."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._at = [place for place in range(start, end) if text[place].isdigit()]
        self._digits = bytes(unicodedata.digit(text[place]) for place in self._at)
        # Luhn in constant time for every stretch: sums up to each digit, doubling the even or the odd ones.
        self._sums = tuple([0, *accumulate(_with_doubled(self._digits, odd))] for odd in (0, 1))
        at = self._at
        self._starts = [0, *(i for i in range(1, len(at)) if at[i] != at[i - 1] + 1)]
        self._ends = bytearray(len(at) + 1)
        for boundary in (*self._starts[1:], len(at)):
            self._ends[boundary] = 1

    def cards(self) -> list[Span]:
        """Where the cards are in the text, in order, apart from each other."""
        if self._stands_as_card(0, len(self._at)):
            return [(self._at[0], self._at[-1] + 1)]
        masked = _merged(sorted([*self._of_issuers(), *self._groups()]))
        # What is left between masks stands alone now; looking again here is what makes redacting idempotent.
        masked += [rest for rest in self._between(masked) if self._stands_as_card(*rest)]
        return [(self._at[start], self._at[end - 1] + 1) for start, end in sorted(masked)]

    def _of_issuers(self) -> Iterator[Span]:
        lengths_by_prefix, digits, ends = _lengths_by_prefix(), self._digits, self._ends
        covered = 0
        for start in self._starts:
            for length in lengths_by_prefix[_number(digits[start : start + 4])]:
                end = start + length
                if end > covered and end < len(ends) and ends[end] and self._is_card(start, end):
                    covered = end
                    yield start, end
                    break  # what is shorter lies within

    def _is_card(self, start: int, end: int) -> bool:
        if not self._luhn(start, end) or self._is_dates(start, end):
            return False
        # No country's telephone numbers are as long as a card but for those of 13 digits.
        return end - start > _DIGITS_MIN or not self._is_phone(start, end)

    def _groups(self) -> Iterator[Span]:
        for start, end in zip(self._starts, (*self._starts[1:], len(self._at)), strict=True):
            if self._stands_as_card(start, end) or (end - start >= _LONG_GROUP and self._starts_with_card(start)):
                yield start, end

    def _starts_with_card(self, start: int) -> bool:
        lengths = _lengths_by_prefix()[_number(self._digits[start : start + 4])]
        return any(length in lengths and self._luhn(start, start + length) for length in (15, 16))

    def _stands_as_card(self, start: int, end: int) -> bool:
        return (
            _DIGITS_MIN <= end - start <= _DIGITS_MAX
            and self._digits[start] != 0
            and self._luhn(start, end)
            and not self._is_phone(start, end)
            and not self._is_dates(start, end)
            and not self._is_in_word(start, end)
        )

    def _between(self, masked: list[Span]) -> Iterator[Span]:
        edges = [0, *(edge for span in masked for edge in span), len(self._at)]
        return ((start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end)

    def _luhn(self, start: int, end: int) -> bool:
        sums = self._sums[end % 2]  # the last digit counts once, the one before it doubled, and so on
        return (sums[end] - sums[start]) % 10 == 0

    def _is_phone(self, start: int, end: int) -> bool:
        before = self._text[self._at[start] - 1 : self._at[start]]
        return before in ("+", "＋") and end - start <= 15

    def _is_dates(self, start: int, end: int) -> bool:
        return _DATES.fullmatch(self._text, self._at[start], self._at[end - 1] + 1) is not None

    def _is_in_word(self, start: int, end: int) -> bool:
        """Whether a Latin letter touches it, as in a hexadecimal digest."""
        first, last = self._at[start], self._at[end - 1]
        return (
            _LETTER.match(self._text, max(first - 1, 0)) is not None or _LETTER.match(self._text, last + 1) is not None
        )


def _with_doubled(digits: bytes, odd: int) -> bytearray:
    values = bytearray(digits)
    values[odd::2] = digits[odd::2].translate(_DOUBLED)
    return values


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted spans with overlapping ones made one."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _number(digits: bytes) -> int:
    """The first four digits as a number; fewer, at the end of a run, as 0, which is no issuer's."""
    if len(digits) < 4:
        return 0
    return digits[0] * 1_000 + digits[1] * 100 + digits[2] * 10 + digits[3]


@lru_cache(maxsize=1)
def _lengths_by_prefix() -> tuple[tuple[int, ...], ...]:
    lengths: list[set[int]] = [set() for _ in range(10_000)]
    for low, high, given in _ISSUERS:
        for prefix in range(int(low.ljust(4, "0")), int(high.ljust(4, "9")) + 1):
            lengths[prefix].update(given)
    return tuple(tuple(sorted(found, reverse=True)) for found in lengths)
