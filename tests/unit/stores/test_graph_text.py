"""The graph's texts: words that are found, and values as Cypher spells them."""

from __future__ import annotations

import re
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.stores.graph import keywords
from memory.stores.graph.driver import literal, vector

texts = st.text(alphabet=st.characters(codec=None), max_size=200)


@given(texts)
def test_a_query_holds_words_and_nothing_that_means_something(text: str) -> None:
    query = keywords.query(text)
    assert query == "" or re.fullmatch(r"@words:\([^\W_]+(\|[^\W_]+)*\)", query)
    assert query.count("|") < keywords.QUERY_WORDS_MAX
    anywhere = keywords.any_field(text)
    assert anywhere == "" or re.fullmatch(r"[^\W_]+(\|[^\W_]+)*", anywhere)


@given(texts)
def test_a_text_is_found_by_its_own_words(text: str) -> None:
    words = keywords.indexed(text).split()
    query = keywords.query(text)
    assert set(query.removeprefix("@words:(").removesuffix(")").split("|")) - {""} <= set(words)
    assert keywords.words(keywords.indexed(text)) == words or any(len(word) == 64 for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't_stop (order #12-34)", ["don", "t", "stop", "order", "12", "34"]),
        ("يُحِبُّ القهوة؟", ["يحب", "القهوه"]),
        ("北京市 Café", ["北京", "京市", "cafe"]),
        ("京", ["京"]),
        ("٣٤ ５", ["34", "5"]),
        ("_ - ’ \x00", []),
    ],
)
def test_words_are_folded(text: str, words: list[str]) -> None:
    assert keywords.words(text) == words


@given(texts)
def test_a_text_can_not_leave_its_quotes(text: str) -> None:
    spelled = literal(text)
    inner = re.sub(r"\\(.)", "", spelled[1:-1])
    assert (spelled[0], spelled[-1]) == ('"', '"')
    assert '"' not in inner
    assert "\\" not in inner
    spelled.encode()


def test_values_are_spelled_as_cypher_does() -> None:
    given = {"a": [1, 2.0, 0.25, None, True, False], "b": {"c": 'x"y\\'}, "d": ()}
    assert literal(given) == '{`a`:[1,2.0,0.25,null,true,false],`b`:{`c`:"x\\"y\\\\"},`d`:[]}'


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_vectors_keep_their_numbers(numbers: list[float]) -> None:
    spelled = literal({"v": vector(array("f", numbers).tobytes())})
    found = [float(number) for number in spelled.removeprefix("{`v`:[").removesuffix("]}").split(",")]
    assert array("f", found) == array("f", numbers)
    assert vector(b"") is None
