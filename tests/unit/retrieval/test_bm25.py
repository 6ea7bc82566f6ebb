"""Postings: the arrays say what a plain dictionary would."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.bm25 import LENGTH_MAX, KeywordIndex, TermHasher

DOCUMENTS = st.lists(st.lists(st.integers(1, 12), max_size=8), max_size=30)


def _index(documents: list[list[int]], *, merge_each: int = 0) -> KeywordIndex:
    index = KeywordIndex()
    for number, document in enumerate(documents):
        index.add(dict(Counter(document)))
        if merge_each and number % merge_each == 0:
            index.compact()
    return index


def _where(index: KeywordIndex, term: int) -> list[int]:
    posting = index.posting(term)
    return [] if posting is None else posting.turns.tolist()


@given(DOCUMENTS, st.integers(0, 4))
def test_postings_are_where_the_terms_are(documents: list[list[int]], merge_each: int) -> None:
    index = _index(documents, merge_each=merge_each)
    for term in range(14):
        assert _where(index, term) == [number for number, document in enumerate(documents) if term in document]


@given(DOCUMENTS, st.integers(0, 4))
def test_merging_changes_no_weight(documents: list[list[int]], merge_each: int) -> None:
    one, other = _index(documents), _index(documents, merge_each=merge_each)
    other.compact()
    for term in range(14):
        first, second = one.posting(term), other.posting(term)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            np.testing.assert_array_equal(first.turns, second.turns)
            np.testing.assert_array_equal(first.weights, second.weights)


@given(DOCUMENTS, st.data())
def test_what_is_kept_is_as_if_the_rest_had_never_been(documents: list[list[int]], data: st.DataObject) -> None:
    mask = np.array([data.draw(st.booleans()) for _ in documents], np.bool_)
    index = _index(documents, merge_each=3)
    index.keep(mask)
    never = _index([document for document, kept in zip(documents, mask, strict=True) if kept])
    for name, array in never.arrays().items():
        np.testing.assert_array_equal(index.arrays()[name], array)


@given(DOCUMENTS)
def test_arrays_give_the_index_back(documents: list[list[int]]) -> None:
    index = _index(documents)
    back = KeywordIndex.from_arrays(**index.arrays())  # type: ignore[arg-type]
    back.add({3: 2, 99: 1})
    index.add({3: 2, 99: 1})
    assert [_where(back, term) for term in (3, 5, 99)] == [_where(index, term) for term in (3, 5, 99)]


def test_contradicting_arrays_are_refused() -> None:
    arrays = _index([[1, 2], [2]]).arrays()
    for name, wrong in {"turns": [0, 0, 7], "tf": [1], "sizes": [1, 1], "lengths": [2]}.items():
        broken = {**arrays, name: np.array(wrong, arrays[name].dtype)}
        with pytest.raises(ValueError, match="posting"):
            KeywordIndex.from_arrays(**broken)


def test_rare_terms_weigh_more_and_long_turns_less() -> None:
    index = _index([[1, 2], [1], [1, 3, 4, 5, 6, 7, 8]])
    rare, common = index.posting(2), index.posting(1)
    assert rare is not None
    assert common is not None
    assert rare.weights[0] > common.weights[0] > common.weights[2]


def test_a_huge_turn_does_not_shift_the_mean_for_the_others() -> None:
    index = KeywordIndex()
    index.add(dict.fromkeys(range(50_000), 1))
    index.add({60_000: 300})
    assert index.arrays()["lengths"].tolist() == [LENGTH_MAX, 300]
    assert _where(index, 49_999) == [0]


def test_hashes_depend_on_the_key_and_hold_no_word() -> None:
    one, other = TermHasher(b"one"), TermHasher(b"other")
    assert one("peanut") == TermHasher(b"one")("peanut") != other("peanut")
    assert one.counts(["a", "b", "a"]) == {one("a"): 2, one("b"): 1}
    assert 0 <= one("\ud800") < 2**64
