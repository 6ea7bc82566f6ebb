"""One user's recall index, in process: keywords, vectors, and the turns themselves. No IO, no clock, no threads.

Above: the recall host, evaluate, snapshot, tests and tools. Below: bm25, vectors, neighbours, ranking, dates, text.

Not thread-safe: whoever owns an index calls it from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from memory.retrieval import dates, ranking
from memory.retrieval.bm25 import TERMS_PER_TURN_MAX, KeywordIndex, TermHasher
from memory.retrieval.columns import Column
from memory.retrieval.neighbours import Neighbours
from memory.retrieval.text import stems, words
from memory.retrieval.vectors import Vector, VectorTable

RULE_CHARS_MAX = 20_000  # of a turn that are looked at for time words and length
QUERY_CHARS_MAX = 8_000
QUERY_TERMS_MAX = 64  # distinct stems of a query that are looked up


@dataclass(frozen=True, slots=True)
class IndexedTurn:
    """A turn as the index keeps it. ``timestamp`` is aware; it comes back in UTC, to the microsecond."""

    id: str
    session_id: str
    timestamp: datetime
    role: str
    text: str
    name: str | None = None
    mode: str = "voice"
    language: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A turn that was found.

    ``score`` orders the hits of one query and means nothing across queries. ``keyword`` (about 0..1) is the share of
    the query's information that the turn and its neighbours hold as words; ``cosine`` compares the meanings, ``None``
    without a query vector or where the turn has none yet.
    """

    turn: IndexedTurn
    score: float
    keyword: float
    cosine: float | None


Label = tuple[str, str | None, str, str]  # role, name, mode, language


class Interned:
    """Small numbers for values that repeat (session ids, labels)."""

    def __init__(self, values: Iterable[object] = ()) -> None:
        self.values = list(values)
        self._codes = {value: code for code, value in enumerate(self.values)}

    def code(self, value: object) -> int:
        code = self._codes.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def find(self, value: object) -> int | None:
        return self._codes.get(value)
