"""Turns and indexes for tests of recall: little worlds with a time, sessions and made-up vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.retrieval.index import Hit, IndexedTurn, UserIndex

KEY = b"a key for tests"
NOW = datetime(2025, 6, 4, 12, 0, tzinfo=UTC)  # a Wednesday
DIMENSION = 8

# Few words, so that made-up turns share them.
WORDS = ("peanut", "allergy", "dog", "Biscuit", "Lyon", "flight", "sushi", "went", "the", "is", "42", "حساسية", "花生")
TEXTS = st.lists(
    st.sampled_from(WORDS),
    min_size=1,
    max_size=6,
).map(" ".join)


def turn(text: str, turn_id: str = "", *, minute: float = 0, session: str = "s", role: str = "user") -> IndexedTurn:
    """A turn said ``minute`` minutes into a history that begins a month before NOW."""
    said = NOW - timedelta(days=30) + timedelta(minutes=minute)
    return IndexedTurn(turn_id or text, session, said, role, text)


def index_of(turns: Iterable[IndexedTurn], *, dimension: int | None = None) -> UserIndex:
    """An index of ``turns``."""
    index = UserIndex(KEY, dimension)
    for each in turns:
        index.add(each)
    return index


def find(
    index: UserIndex,
    query: str,
    *,
    k: int = 8,
    now: datetime = NOW,
    vector: NDArray[np.float32] | None = None,
    min_relevance: bool = False,
) -> list[Hit]:
    """A search with defaults."""
    return index.search(query, query_vector=vector, k=k, now=now, min_relevance=min_relevance)


def ids(hits: Iterable[Hit]) -> list[str]:
    """The ids of hits, in order."""
    return [hit.turn.id for hit in hits]


def vector_of(text: str) -> NDArray[np.float32]:
    """A unit vector that depends on ``text`` alone."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
    vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


def with_vectors(index: UserIndex) -> UserIndex:
    """``index``, every turn of it with its vector."""
    missing = index.missing_vectors(len(index))
    if missing:
        index.set_vectors([turn_id for turn_id, _ in missing], np.stack([vector_of(text) for _, text in missing]))
    return index


# Turns of three sessions in any order, by their words, session and minute.
HISTORIES = st.lists(st.tuples(TEXTS, st.sampled_from("abc"), st.integers(0, 500)), min_size=1, max_size=24).map(
    lambda rows: [
        turn(text, f"t{number}", minute=minute, session=session) for number, (text, session, minute) in enumerate(rows)
    ]
)
