"""Vectors in 8 bits: how close their cosines are to the exact ones, and how many rows have none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.vectors import VectorTable, quantised

DIMENSION = 384


def _table(vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> VectorTable:
    table = VectorTable(vectors.shape[1])
    for place, vector in enumerate(vectors):
        table.add()
        table.set(place, quantised(vector, vectors.shape[1]))
    return table


@given(seed=st.integers(0, 1_000), scale=st.sampled_from((1e-3, 1.0, 1e3)), rows=st.integers(1, 40))
def test_cosines_are_those_of_the_exact_vectors_to_a_hundredth(seed: int, scale: float, rows: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((rows, DIMENSION)).astype(np.float32)
    query = (vectors[0] + random.standard_normal(DIMENSION).astype(np.float32)) * np.float32(scale)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    found = _table(vectors).cosines(query)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors @ query / lengths, atol=0.01)


@pytest.mark.parametrize("query", [np.zeros(DIMENSION, np.float32), -np.eye(1, DIMENSION, dtype=np.float32)[0]])
def test_a_query_without_direction_is_close_to_nothing_and_the_opposite_is_as_far_as_can_be(query: np.ndarray) -> None:
    table = _table(np.eye(1, DIMENSION, dtype=np.float32))
    np.testing.assert_allclose(table.cosines(query), [query[0]], atol=1e-6)
    assert VectorTable(DIMENSION).cosines(query).shape == (0,)


def test_a_query_of_another_kind_is_refused() -> None:
    table = VectorTable(DIMENSION)
    with pytest.raises(ValueError, match="shape"):
        table.cosines(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="NaN"):
        table.cosines(np.full(DIMENSION, np.nan, np.float32))


@given(st.lists(st.tuples(st.sampled_from(("add", "set", "keep", "fill")), st.integers(0, 7)), max_size=30))
def test_what_has_no_vector_is_counted_whatever_comes_and_goes(steps: list[tuple[str, int]]) -> None:
    table, row = VectorTable(4), np.ones(4, np.int8)
    for step, number in steps:
        if step == "add":
            table.add()
        elif step == "set" and len(table.present):
            table.set(number % len(table.present), row)
        elif step == "keep":
            table.keep(np.arange(len(table.present)) % 8 != number)
        elif step == "fill":
            table.fill(table.rows.copy(), table.present.copy())
        assert table.missing == int((~table.present).sum())
