"""Numbers in digits and words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.spoken_numbers import numbers, written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("order 4471", "4471"),
        ("order four four seven one", "4471"),
        ("order 44 71", "4471"),
        ("double four seven one", "4471"),
        ("oh seven seven double zero nine hundred one two three", "07700900123"),
        ("ACCT-789", "789"),
        ("1,200 euros", "1200"),
        ("twenty three", "23"),
        ("two hundred and thirty five", "235"),
        ("three thousand", "3000"),
        ("nineteen eighty four", "1984"),
        ("twenty nineteen", "2019"),
        ("the twelfth of May", "12"),
        ("null acht fünf", "085"),
        ("neunundzwanzig", "29"),
        ("dreihundert", "300"),
        ("zwei hundert", "200"),
        ("veintitrés", "23"),
        ("cuarenta y dos", "42"),
        ("quatre-vingt-dix-neuf", "99"),
        ("soixante-douze", "72"),
        ("٤٤٧١", "4471"),
        ("اربعة اربعة سبعة واحد", "4471"),
        ("char char saat ek", "4471"),
    ],
)
def test_a_number_is_found_however_it_is_said(text: str, said: str) -> None:
    assert numbers(text).has(said)


@pytest.mark.parametrize(
    ("text", "unsaid"),
    [
        ("order 4471", "447"),
        ("order 4471", "4472"),
        ("44 71", "47"),
        ("nothing", "1"),
        ("one cat", "2"),
        ("44 71", "115"),
    ],
)
def test_other_numbers_are_not(text: str, unsaid: str) -> None:
    assert not numbers(text).has(unsaid)


def test_a_fact_names_its_numbers_one_by_one() -> None:
    assert written("two cats, twenty three dogs and one bird, order 4471") == ["2", "23", "4471"]


@given(st.text(max_size=200))
def test_any_text_is_read_and_every_number_in_digits_is_found(text: str) -> None:
    assert all(numbers(text).has(digits) for digits in written(text))


def test_a_megabyte_is_read_in_bounded_time() -> None:
    assert numbers("four " * 200_000).has("444")
    assert numbers("1" * 1_000_000).has("1" * 1_000_000)
