"""One user's keyword index: BM25 over postings held in arrays, the words only as keyed 64-bit hashes.

Above: index, ranking, snapshot. Below: text, columns. No IO; not thread-safe (its owner is one thread at a time).

New turns go into a tail (a small dict) that is merged into the arrays now and then, so that adding is cheap however
long the history is. Removing turns leaves neither their postings nor a hash that no other turn has.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.retrieval.columns import Column

TERM_BYTES = 8
LENGTH_MAX = 1_024  # stems counted for a turn's length, so that one huge turn does not shift the mean for the others
TF_MAX = 255
TAIL_TURNS_MIN = 512

# BM25's parameters, searched on LoCoMo and LongMemEval (see ranking.py).
K1 = 0.9
B = 0.4
# Turns of ordinary talk imagined besides the user's own: with a handful of turns, idf says nothing by itself.
PRIOR_TURNS = 100

Terms = NDArray[np.uint64]


class TermHasher:
    """Stems to 64-bit numbers, under a key: without the key a snapshot does not tell which words were said."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"recall terms").digest()

    def __call__(self, stem: str) -> int:
        data = stem.encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(data, digest_size=TERM_BYTES, key=self._key).digest(), "little")

    def counts(self, stems: Iterable[str]) -> dict[int, int]:
        """Hash -> how often, in order of first appearance."""
        return {self(stem): count for stem, count in Counter(stems).items()}


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a term is: turn positions, ascending, and the term's BM25 weight in each."""

    turns: NDArray[np.intp]
    weights: NDArray[np.float32]


class KeywordIndex:
    """Postings by term hash. Turns are numbered 0..n-1 in the order of their ``add``."""

    def __init__(self) -> None:
        self._terms: Terms = np.zeros(0, np.uint64)  # ascending
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)  # term i: postings starts[i]..starts[i+1]
        self._turns: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._tf: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._lengths = Column(np.uint16)
        self._total = 0
        self._tail: dict[int, tuple[array[int], array[int]]] = {}
        self._tail_turns = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, counts: dict[int, int]) -> None:
        """Index the next turn by its stems' hashes and counts (``TermHasher.counts``)."""
        position = len(self)
        for term, count in counts.items():
            turns, tf = self._tail.setdefault(term, (array("I"), array("B")))
            turns.append(position)
            tf.append(min(count, TF_MAX))
        length = min(sum(counts.values()), LENGTH_MAX)
        self._lengths.append(length)
        self._total += length
        self._tail_turns += 1
        if self._tail_turns >= max(TAIL_TURNS_MIN, len(self) // 32):
            self.compact()

    def idf(self, turns_with_term: int) -> float:
        """How much a term tells that is in so many of this user's turns; > 0, greatest for an unseen one."""
        n = len(self) + PRIOR_TURNS
        return float(np.log1p((n - turns_with_term + 0.5) / (turns_with_term + 0.5)))

    def posting(self, term: int) -> Posting | None:
        """Where ``term`` is and how much it weighs there; ``None`` if nowhere."""
        turns, tf = self._find(term)
        if not len(turns):
            return None
        mean = max(self._total / len(self), 1.0)
        weights = tf.astype(np.float32)
        norm = self._lengths.values[turns].astype(np.float32)
        norm *= np.float32(K1 * B / mean)
        norm += np.float32(K1 * (1 - B))
        norm += weights
        weights *= np.float32(self.idf(len(turns)) * (K1 + 1))
        weights /= norm
        return Posting(turns, weights)

    def _find(self, term: int) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        at = int(np.searchsorted(self._terms, np.uint64(term)))
        if at < len(self._terms) and int(self._terms[at]) == term:
            low, high = int(self._starts[at]), int(self._starts[at + 1])
        else:
            low = high = 0
        turns, tf = self._turns[low:high].astype(np.intp), self._tf[low:high]
        late = self._tail.get(term)
        if late is None:
            return turns, tf
        late_turns, late_tf = np.array(late[0], np.intp), np.array(late[1], np.uint8)
        return np.concatenate([turns, late_turns]), np.concatenate([tf, late_tf])

    def compact(self) -> None:
        """Merge the tail into the arrays."""
        if not self._tail:
            self._tail_turns = 0
            return
        late = sorted(self._tail)
        counts = np.array([len(self._tail[term][0]) for term in late], np.int64)
        turns = np.concatenate([np.array(self._tail[term][0], np.uint32) for term in late])
        tf = np.concatenate([np.array(self._tail[term][1], np.uint8) for term in late])
        terms = np.array(late, np.uint64)
        # A tail turn comes after every merged one, so that each term's postings go to the end of those it has.
        at = np.searchsorted(self._terms, terms)
        found = at < len(self._terms)
        found[found] = self._terms[at[found]] == terms[found]
        ends = self._starts[at + found]
        places = np.repeat(ends, counts)
        sizes = np.diff(self._starts)
        sizes[at[found]] += counts[found]
        self._set(
            np.insert(self._terms, at[~found], terms[~found]),
            np.insert(sizes, at[~found], counts[~found]),
            np.insert(self._turns, places, turns),
            np.insert(self._tf, places, tf),
        )
        self._tail, self._tail_turns = {}, 0

    def _set(self, terms: Terms, sizes: NDArray[np.int64], turns: NDArray[np.uint32], tf: NDArray[np.uint8]) -> None:
        self._terms, self._turns, self._tf = terms, turns, tf
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the turns whose ``mask`` is False and number the others anew. No trace of them stays behind."""
        self.compact()
        kept = mask[self._turns]
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        sizes = np.diff(before[self._starts])
        numbers = (np.cumsum(mask) - 1).astype(np.uint32)
        self._set(self._terms[sizes > 0], sizes[sizes > 0], numbers[self._turns[kept]], self._tf[kept])
        self._lengths.keep(mask)
        self._total = int(self._lengths.values.sum(dtype=np.int64))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything, as arrays, for a snapshot (merged first)."""
        self.compact()
        sizes = np.diff(self._starts).astype(np.uint32)
        lengths = self._lengths.values
        return {"terms": self._terms, "sizes": sizes, "turns": self._turns, "tf": self._tf, "lengths": lengths}

    @classmethod
    def from_arrays(
        cls,
        terms: Terms,
        sizes: NDArray[np.uint32],
        turns: NDArray[np.uint32],
        tf: NDArray[np.uint8],
        lengths: NDArray[np.uint16],
    ) -> KeywordIndex:
        """The index ``arrays`` came from.

        Raises:
            ValueError: the arrays contradict each other.
        """
        index = cls()
        index._set(terms, sizes.astype(np.int64), turns, tf)
        index._lengths.fill(lengths)
        index._total = int(lengths.sum(dtype=np.int64))
        if len(terms) != len(sizes) or int(index._starts[-1]) != len(turns) or len(turns) != len(tf):
            raise ValueError("postings of unequal length")
        if len(turns) and int(turns.max()) >= len(lengths):
            raise ValueError("a posting of a turn that is not there")
        return index
