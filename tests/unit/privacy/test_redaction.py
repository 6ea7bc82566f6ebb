"""Card numbers are masked however they are written, other numbers stay, and hostile text costs its size, no more."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from memory.models import clean_text
from memory.ports import Redacted
from memory.privacy.redaction import CARD_MASK, SEPARATOR_CHARS_MAX, CardRedactor

REDACTOR = CardRedactor()

CARDS = {
    "visa": "4242424242424242",
    "visa 13": "4222222222222",
    "visa 19": "4000000000000000006",
    "mastercard": "5555555555554444",
    "mastercard 2": "2223003122003222",
    "amex": "378282246310005",
    "diners": "30569309025904",
    "discover": "6011111111111117",
    "jcb": "3530111333300000",
    "unionpay": "6200000000000005",
    "maestro": "6759649826438453",
    "mir": "2200000000000004",
}
SPACES = [" ", "  ", "\u00a0", "\u2009", "\u202f", "\u3000", "\t", "\n"]
DASHES = ["-", "\u2010", "\u2011", "\u2013", "\u2014", "\u2212", " - ", " – "]
OTHERS = ["", ".", ",", ", ", "/", "_", "\u200b", "\u2060", "·", " | ", "** **"]
SCRIPTS = {"latin": "0123456789", "full-width": "０１２３４５６７８９", "arabic": "٠١٢٣٤٥٦٧٨٩", "persian": "۰۱۲۳۴۵۶۷۸۹"}


def luhn_check_digit(digits: str) -> str:
    total = sum(sum(divmod(2 * int(d), 10)) if i % 2 == 0 else int(d) for i, d in enumerate(reversed(digits)))
    return str(-total % 10)


def luhn_valid(digits: str) -> bool:
    return luhn_check_digit(digits[:-1]) == digits[-1]


def written(card: str, sizes: list[int], separators: list[str], script: str) -> str:
    """``card`` in groups of ``sizes``, then of four, with ``separators`` in turn, in the digits of ``script``."""
    groups, rest = [], card
    for size in [*sizes, *([4] * len(card))]:
        groups.append(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    text = groups[0]
    for place, group in enumerate(groups[1:]):
        text += separators[place % len(separators)] + group
    return text.translate(str.maketrans("0123456789", SCRIPTS[script]))


ISSUED = st.sampled_from(
    [("4", 13), ("4", 16), ("4", 19), ("51", 16), ("2221", 16), ("2720", 16), ("34", 15), ("37", 15), ("305", 14),
     ("36", 14), ("3589", 16), ("6011", 16), ("65", 19), ("62", 17), ("8171", 16), ("6759", 18), ("2204", 16)]
)  # fmt: skip


@st.composite
def issued_cards(draw: st.DrawFn) -> str:
    prefix, length = draw(ISSUED)
    body = prefix + draw(st.text("0123456789", min_size=length - len(prefix) - 1, max_size=length - len(prefix) - 1))
    return body + luhn_check_digit(body)


@st.composite
def any_luhn_numbers(draw: st.DrawFn) -> str:
    length = draw(st.integers(13, 19))
    body = draw(st.sampled_from("123456789")) + draw(st.text("0123456789", min_size=length - 2, max_size=length - 2))
    return body + luhn_check_digit(body)


SIZES = st.lists(st.integers(1, 6), max_size=19)
SEPARATORS = st.lists(st.sampled_from(SPACES + DASHES + OTHERS), min_size=1, max_size=5)
WORDS = st.text(st.characters(exclude_categories=("Nd", "No", "Nl", "Cs")), max_size=30)


@pytest.mark.promise("P-redacted")
@given(issued_cards(), SIZES, SEPARATORS, st.sampled_from(list(SCRIPTS)), WORDS, WORDS)
@example("4242424242424242", [4, 4, 4, 4], [" "], "latin", "my card is ", " expiry 09")
@example("4222222222222", [], [""], "latin", "", "")
def test_P_redacted_an_issuers_card_is_masked_in_any_writing_inside_any_text(
    card: str, sizes: list[int], separators: list[str], script: str, before: str, after: str
) -> None:
    assume(not before.endswith(("+", "＋")))  # +4222222222222 is a telephone number
    found = REDACTOR.redact(f"{before}{written(card, sizes, separators, script)}{after}")
    assert found.text == f"{before}{CARD_MASK}{after}"
    assert found.count == 1


@pytest.mark.promise("P-redacted")
@given(any_luhn_numbers(), SIZES, SEPARATORS, st.sampled_from(list(SCRIPTS)))
@example("140700001122593", [1, 1], [" "], "latin")  # within it is a Diners number
def test_P_redacted_any_number_that_passes_luhn_and_stands_alone_is_masked(
    number: str, sizes: list[int], separators: list[str], script: str
) -> None:
    text = written(number, sizes, separators, script)
    assume(not re.fullmatch(r"[\d/.-]*(?:19|20)\d\d[\d/.-]*", text) or separators == [""])  # may read as dates
    found = REDACTOR.redact(f"it is {text}, thanks")
    assert found.text == f"it is {CARD_MASK}, thanks"


@pytest.mark.promise("P-redacted")
@given(issued_cards(), SEPARATORS, st.lists(st.text("0123456789", min_size=1, max_size=12), max_size=4), st.data())
def test_P_redacted_other_numbers_next_to_a_card_do_not_hide_it(
    card: str, separators: list[str], others: list[str], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(others)))
    text = written(card, [4, 4, 4, 4], separators, "latin")
    redacted = REDACTOR.redact(" ".join([*others[:place], text, *others[place:]]))
    assert card not in "".join(c for c in redacted.text if c.isdigit()) or card in "".join(others)
    assert redacted.count >= 1


@given(WORDS)
def test_text_without_digits_stays_as_it_is(text: str) -> None:
    assert REDACTOR.redact(text) == Redacted(text, 0)


DIGITISH = st.text(st.sampled_from("0123456789 -+./:x４٤\u00a0"), max_size=120)


@given(DIGITISH | st.lists(issued_cards() | DIGITISH, max_size=5).map(" ".join))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = REDACTOR.redact(text)
    twice = REDACTOR.redact(once.text)
    assert (twice.text, twice.count) == (once.text, 0)


@given(DIGITISH)
def test_only_stretches_that_pass_luhn_are_masked(text: str) -> None:
    """Nothing but digits and what is between them goes, and only where 13 digits or more are in a row."""
    redacted = REDACTOR.redact(text)
    gone = r"\d(?:\D*\d){12,}"
    assert re.fullmatch(gone.join(map(re.escape, redacted.text.split(CARD_MASK))), text)
    assert len(redacted.text) <= len(text)  # so that a turn within its limit stays within it


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_the_usual_groupings_are_masked(card: str) -> None:
    assert luhn_valid(card)
    for sizes in ([], [4, 4, 4, 4], [4, 6, 5], [1] * 19, [2] * 10, [3] * 7):
        for separator in ("", " ", "-", ", "):
            for script in SCRIPTS:
                text = written(card, sizes, [separator], script)
                assert REDACTOR.redact(f"Card: {text}.").text == f"Card: {CARD_MASK}.", text


@pytest.mark.case("L33")
def test_L33_cards_in_digits_are_masked_and_counted_benign_numbers_kept() -> None:
    text = (
        "my card is 4242, 4242, 4242, 4242, expiry 09/29; the other one ٥٥٥٥ ٥٥٥٥ ٥٥٥٥ ٤٤٤٤. "
        "My order is 4242 4242, call me at 2 on +1 555 010 9999."
    )
    found = REDACTOR.redact(text)
    assert found.text == (
        f"my card is {CARD_MASK}, expiry 09/29; the other one {CARD_MASK}. "
        "My order is 4242 4242, call me at 2 on +1 555 010 9999."
    )
    assert found.count == 2


@pytest.mark.parametrize(
    "text",
    [
        "order 4242 4242",
        "orders 1234 5678 and 8765 4321",
        "+1 555 010 9999 or +44 20 7946 0958",
        "0044 20 7946 0958",
        "+4915123456789",
        "+49 1512 3456789",
        "id 1234567812345678",
        "4242 4242 4242 4243",
        "2026-11-28T10:20:30.123456+00:00",
        "2026-11-28 10:20:30",
        "25.12.2024 - 31.12.2024",
        "2024-01-02 2024-01-09",
        "1732924800",
        "192.168.100.200",
        "d41d8cd98f00b204e9800998ecf8427e",
        "123e4567-e89b-12d3-a456-426614174000",
        "a1234567812345670b",
        "9" * 5 + "4242424242424242" + "9" * 20,
        "0000 0000 0000 0000",
        "120 80, 118 79, 130 85, 125 82",
        "sugar 120, 115, 130, 140, 125, 118",
        "1 2 3 4 5 6 7 8 9 10",
        "pi is 3.14159 26535 89793",
    ],
)
def test_benign_numbers_are_kept(text: str) -> None:
    assert REDACTOR.redact(text).text == text


def test_a_card_keyed_in_with_expiry_and_code_is_masked_whole() -> None:
    for tail in ("0929", "123", "0929123"):
        assert REDACTOR.redact(f"x 4242424242424242{tail} y").text == f"x {CARD_MASK} y"
    assert REDACTOR.redact("3782822463100050929123").text == CARD_MASK


def test_each_card_counts() -> None:
    found = REDACTOR.redact("4242424242424242 and 5555555555554444, or 378282246310005")
    assert (found.text, found.count) == (f"{CARD_MASK} and {CARD_MASK}, or {CARD_MASK}", 3)


def test_a_sentence_between_groups_ends_a_card() -> None:
    text = f"4242 4242{' ' * (SEPARATOR_CHARS_MAX + 1)}4242 4242"
    assert REDACTOR.redact(text).text == text


def test_every_character_that_stands_for_a_digit_counts_as_one() -> None:
    digits = [chr(code) for code in range(sys.maxunicode) if chr(code).isdigit() and not 0xD800 <= code <= 0xDFFF]
    assert len(digits) > 600
    for digit in digits:
        body = f"4{unicodedata.digit(digit)}4242424242424"
        number = f"4{digit}{body[2:]}{luhn_check_digit(body)}"
        assert REDACTOR.redact(number).text == CARD_MASK, hex(ord(digit))
    keycaps = "".join(f"{digit}\ufe0f\u20e3" for digit in "4242424242424242")
    assert REDACTOR.redact(keycaps).text.startswith(CARD_MASK)
    assert REDACTOR.redact("④②④②④②④②④②④②④②④②").text == CARD_MASK


HOSTILE = {
    "one group": "4" * 2**20,
    "single digits": "6 " * 2**19,
    "separators": "4" + "." * 2**20,
    "almost separators": ("4" + "." * (SEPARATOR_CHARS_MAX + 1)) * 2**17,
    "short runs": "424242424242 x" * 74_898,
    "cards": "4242 4242 4242 4242 x " * 47_662,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_takes_linear_time(text: str) -> None:
    """Counted in bytecode steps, which no busy machine changes: twice the text, about twice the steps."""
    half = text[: len(text) // 2**6]
    assert _steps(half + half) <= 2.5 * _steps(half) + 5_000


def _steps(text: str) -> int:
    lines = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        REDACTOR.redact(text)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_mebibyte_comes_to_an_end(text: str) -> None:
    redacted = REDACTOR.redact(clean_text(text))
    assert len(redacted.text) <= len(text)
