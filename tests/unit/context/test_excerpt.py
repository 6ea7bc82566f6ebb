"""Which part of a long text is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context.budget import estimate_tokens
from memory.context.excerpt import excerpt, stretch

WORDS = st.lists(
    st.sampled_from(["dog", "cat", "Lyon", "the", "of", "أحمد", "猫が好き", "12", "allergic"]), max_size=200
)


@given(WORDS.map(" ".join), WORDS.map(" ".join), st.integers(-1, 120))
def test_an_excerpt_fits_and_is_of_the_text(text: str, query: str, tokens: int) -> None:
    found = excerpt(text, query, tokens)
    assert estimate_tokens(found) <= max(tokens, 0)
    assert found.strip("…").strip() in text
    assert found == text or estimate_tokens(text) > tokens


@given(WORDS.map(" ".join), WORDS.map(" ".join), st.integers(0, 200))
def test_a_stretch_fits_and_is_of_the_text(text: str, query: str, chars: int) -> None:
    found = stretch(text, query, chars)
    assert len(found) <= chars + 2
    assert found.strip("…") in text
    assert found == text or len(text) > chars


@pytest.mark.parametrize(
    ("needle", "query"),
    [
        ("My flight to Oslo leaves on Tuesday", "when does my flight leave"),
        ("I am allergic to peanuts", "what allergies do I have"),
        ("Die Lieferung geht in die Bahnhofstraße", "BAHNHOFSTRASSE oder Lieferung?"),
        ("أحمد لديه حساسية الفول السوداني", "حساسية"),
        ("私の猫はビスケットです", "猫の名前はビスケット？"),
        ("order 1234 is late", "1234"),
    ],
)
@pytest.mark.parametrize("place", [0, 300, 600])
def test_the_part_with_the_querys_words_is_kept(needle: str, query: str, place: int) -> None:
    filler = ["lorem ipsum dolor sit amet."] * 600
    text = " ".join([*filler[:place], needle, *filler[place:]])
    assert needle in excerpt(text, query, 60)
    assert needle in stretch(text, query, 400)


def test_the_densest_part_wins() -> None:
    text = "a dog here. " + "x " * 400 + "the dog Biscuit eats salmon. " + "x " * 400 + "dog dog dog dog dog"
    assert "Biscuit eats salmon" in excerpt(text, "what does my dog Biscuit eat? salmon?", 40)


def test_at_the_end_it_starts_earlier_rather_than_leaving_room() -> None:
    text = "word " * 500 + "my gate code is tulip"
    found = excerpt(text, "gate code", 50)
    assert found.endswith("my gate code is tulip")
    assert estimate_tokens(found) >= 47
