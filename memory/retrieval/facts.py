"""One user's facts as recall holds them: searchable those that hold, or will; by the turns they come from, all of them.

Above: following_facts, current, facts_snapshot. Below: index and its parts, models. No IO, no clock, no threads; not
thread-safe, as ``UserIndex`` isn't.

A fact's words and meaning are searched as a turn's are, each fact for itself: facts have no neighbours. One that has
ended is kept by id, so that a turn that stated it can be told to be out of date.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

import numpy as np

from memory.limits import FACTS_MAX
from memory.models import Fact, Source
from memory.retrieval.index import Hit, IndexedTurn, UserIndex
from memory.retrieval.text import stems
from memory.retrieval.vectors import Vector

VECTORS_SHARE = 0.9  # of what can be found; with fewer, what has none would rank below whatever has one
SOURCES_MAX = 8  # of a fact that are told: the first, and the newest
_KEPT_SHARE = 19, 20  # of FACTS_MAX when there are more
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FUSION = 60  # reciprocal rank fusion's usual constant
_ECHO_SHARE = 2 / 3  # of an ended fact's words, which a reply that repeats it has
_ECHO_STEMS_MIN = 2
_OF_EVERY_FACT = frozenset(stems("the user users"))


@dataclass(frozen=True, slots=True)
class Known:
    """A fact that was found, the ids of all turns it comes from, and when it was said last."""

    fact: Fact
    turns: frozenset[str]
    said_at: datetime

    @property
    def stems(self) -> frozenset[str]:
        """Its content words, without those that every fact has."""
        return frozenset(stems(self.fact.text)) - _OF_EVERY_FACT


class FactIndex:
    """All facts of one user that have come so far, up to ``version`` of the user's knowledge.

    ``key``: secret of this user's hashes. ``dimension``: of the vectors; ``None`` for an index without.
    """

    def __init__(self, key: bytes, dimension: int | None) -> None:
        self.index = UserIndex(key, dimension)
        self.version = 0
        self._rows: dict[str, str] = {}  # every fact as JSON: smaller than objects, and quicker to load
        self._spans: dict[str, tuple[float, float]] = {}  # in epoch seconds, of facts in the index that begin or end
        self._over: dict[str, float] = {}  # when facts ended that are not in the index any more
        self._of_turn: dict[str, tuple[str, ...]] = {}
        self._over_in: defaultdict[str, set[str]] = defaultdict(set)  # by session

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[str]:
        """Every fact as it is kept, in the order of their coming."""
        return list(self._rows.values())

    def apply(self, facts: Iterable[Fact], now: datetime) -> int:
        """Take over facts in their newest state; returns how many that were. Those that are over by ``now`` are
        searched no more. Beyond FACTS_MAX the ones that ended first go, then the oldest."""
        rows = [_row(fact) for fact in facts]
        self.take(rows, now)
        self._shorten()
        return len(rows)

    def restore(self, index: UserIndex, version: int, rows: Iterable[str], now: datetime) -> None:
        """Take over what a snapshot holds; what has ended since stays in the index, and is found no more.

        Raises:
            ValueError, TypeError, IndexError: it contradicts itself.
        """
        for text in rows:
            row = json.loads(text)
            self._link(row, text, now.timestamp(), over=row[0] not in index)
        if len(index) + len(self._over) != len(self._rows):
            raise ValueError("a fact without its row")
        self.index, self.version = index, version

    def take(self, rows: Iterable[str], now: datetime) -> None:
        """Take over facts as rows; see ``apply``."""
        news = {str(row[0]): (row, text) for row, text in ((json.loads(text), text) for text in rows)}
        self._unlink(news.keys() & self._rows.keys())
        searched, now_s = [], now.timestamp()
        for row, text in news.values():
            over = _span(row)[1] <= now_s
            self._link(row, text, now_s, over=over)
            if not over:
                searched.append(_indexed(row))
        self._search_only(searched, news.keys())

    def find(
        self, query: str, *, vector: Vector | None, k: int, now: datetime, exclude_turns: frozenset[str] = frozenset()
    ) -> list[Known]:
        """Facts that hold at ``now`` and bear on ``query``, best first, at most ``k``.

        Left out are those that were said in ``exclude_turns`` alone: whoever asks has them before them.
        """
        if k <= 0 or not len(self.index):
            return []
        hidden = self._not_at(now) | self._said_only_in(exclude_turns)
        meant = vector if vector is not None and self._has_vectors(len(hidden)) else None
        hits = self._hits(query, meant, k, now, hidden)
        if not hits and meant is not None and self.index.vectors is not None and self.index.vectors.missing:
            hits = self._hits(query, None, k, now, hidden)  # one that came just now has only its words
        return [self.known(hit.turn.id) for hit in hits]

    def profile(self, queries: Sequence[str], vectors: Vector | None, *, limit: int, now: datetime) -> list[Known]:
        """The facts that are best for several queries together, best first. ``vectors``: a row a query.

        Nothing is asked of their relevance: of whom anything is known, there is a profile.
        """
        hidden = self._not_at(now)
        scores: defaultdict[str, float] = defaultdict(float)
        meant = vectors is not None and self.takes(vectors) and self._has_vectors(len(hidden))
        for number, query in enumerate(queries):
            vector = vectors[number] if meant and vectors is not None else None
            hits = self.index.search(
                query, query_vector=vector, k=2 * limit, now=now, exclude_ids=hidden, min_relevance=False
            )
            for rank, hit in enumerate(hits):
                scores[hit.turn.id] += 1 / (_FUSION + rank)
        return [self.known(fact_id) for fact_id in sorted(scores, key=lambda fact_id: -scores[fact_id])[:limit]]

    def known(self, fact_id: str) -> Known:
        row = json.loads(self._rows[fact_id])
        sources = [Source(session_id=session, turns=tuple(turns), said_at=said) for session, turns, said in row[5]]
        fact = Fact(
            id=row[0],
            text=row[1],
            category=row[2],
            valid_at=row[3],
            invalid_at=row[4],
            sources=tuple(sources[:1] + sources[1:][-(SOURCES_MAX - 1) :]),
        )
        turns = frozenset(turn_id for source in sources for turn_id in source.turns)
        said = max((source.said_at for source in sources), default=fact.valid_at or _LONG_AGO)
        return Known(fact, turns, said)

    def takes(self, vectors: Vector) -> bool:
        """Whether these are of the index's dimension."""
        return self.index.vectors is not None and vectors.ndim == 2 and vectors.shape[1] == self.index.vectors.dimension

    def out_of_date(self, hit: Hit, now: datetime) -> bool:
        """Whether the turn states, or as a reply repeats, what has ended since."""
        turn, now_s = hit.turn, now.timestamp()
        if any(self._ended(fact_id) <= now_s for fact_id in self._of_turn.get(turn.id, ())):
            return True
        if turn.role == "user":
            return False
        said_s, mine = turn.timestamp.timestamp(), None
        for fact_id in self._over_in.get(turn.session_id, ()):
            if said_s < self._over[fact_id] <= now_s:
                mine = frozenset(stems(turn.text)) if mine is None else mine
                theirs = self.known(fact_id).stems
                if len(theirs) >= _ECHO_STEMS_MIN and len(theirs & mine) >= _ECHO_SHARE * len(theirs):
                    return True
        return False

    # -- parts

    def _hits(self, query: str, vector: Vector | None, k: int, now: datetime, hidden: frozenset[str]) -> list[Hit]:
        return self.index.search(query, query_vector=vector, k=k, now=now, exclude_ids=hidden)

    def _ended(self, fact_id: str) -> float:
        return self._over[fact_id] if fact_id in self._over else self._spans.get(fact_id, (-inf, inf))[1]

    def _not_at(self, now: datetime) -> frozenset[str]:
        now_s = now.timestamp()
        return frozenset(fact_id for fact_id, (begins, ends) in self._spans.items() if not begins <= now_s < ends)

    def _said_only_in(self, turns: frozenset[str]) -> frozenset[str]:
        touched = {fact_id for turn_id in turns for fact_id in self._of_turn.get(turn_id, ())}
        return frozenset(
            fact_id
            for fact_id in touched
            if all(turn in turns for _, of, _ in json.loads(self._rows[fact_id])[5] for turn in of)
        )

    def _has_vectors(self, hidden: int) -> bool:
        vectors = self.index.vectors
        if vectors is None:
            return False
        return len(vectors.present) - vectors.missing >= max(1, len(self.index) - hidden) * VECTORS_SHARE

    def _search_only(self, searched: Sequence[IndexedTurn], news: Iterable[str]) -> None:
        """Of ``news``, have ``searched`` in the index as they are now, and no other."""
        turns, vectors = self.index.turns, self.index.vectors
        before = {turn.id: at for turn in searched if (at := turns.position(turn.id)) is not None}
        same = {turn.id for turn in searched if turn.id in before and turns.turn(before[turn.id]) == turn}
        # Said once more, a fact is another turn of the same words: its vector stays.
        kept = [
            turn.id
            for turn in searched
            if turn.id in before.keys() - same
            and turns.text(before[turn.id]) == turn.text
            and vectors is not None
            and vectors.present[before[turn.id]]
        ]
        rows = None if vectors is None else vectors.rows[[before[fact_id] for fact_id in kept]].astype(np.float32)
        self.index.remove([fact_id for fact_id in news if fact_id not in same])
        for turn in searched:
            self.index.add(turn)
        if rows is not None:
            self.index.set_vectors(kept, rows)

    def _link(self, row: list[Any], text: str, now_s: float, *, over: bool) -> None:
        fact_id = row[0]
        begins, ends = _span(row)
        self._rows[fact_id] = text
        if over:
            self._over[fact_id] = ends
        elif begins > now_s or ends < inf:
            self._spans[fact_id] = begins, ends
        for session_id, turns, _ in row[5]:
            for turn_id in turns:
                self._of_turn[turn_id] = tuple(dict.fromkeys((*self._of_turn.get(turn_id, ()), fact_id)))
            if over:
                self._over_in[session_id].add(fact_id)

    def _unlink(self, fact_ids: Iterable[str]) -> None:
        for fact_id in fact_ids:
            for session_id, turns, _ in json.loads(self._rows[fact_id])[5]:
                for turn_id in turns:
                    left = tuple(one for one in self._of_turn.get(turn_id, ()) if one != fact_id)
                    if left:
                        self._of_turn[turn_id] = left
                    else:
                        self._of_turn.pop(turn_id, None)
                if session_id in self._over_in:
                    self._over_in[session_id].discard(fact_id)
                    if not self._over_in[session_id]:
                        del self._over_in[session_id]
            self._over.pop(fact_id, None)
            self._spans.pop(fact_id, None)

    def _shorten(self) -> None:
        if len(self._rows) <= FACTS_MAX:
            return
        excess = len(self._rows) - FACTS_MAX * _KEPT_SHARE[0] // _KEPT_SHARE[1]
        doomed = sorted(self._over, key=lambda fact_id: self._over[fact_id])[:excess]
        oldest = np.argsort(self.index.turns.times.values, kind="stable")[: excess - len(doomed)].tolist()
        doomed += [self.index.turns.ids[place] for place in oldest]
        self._unlink(doomed)
        self.index.remove(doomed)
        for fact_id in doomed:
            del self._rows[fact_id]


def _row(fact: Fact) -> str:
    sources = [[source.session_id, list(source.turns), source.said_at.isoformat()] for source in fact.sources]
    times = [moment.isoformat() if moment is not None else None for moment in (fact.valid_at, fact.invalid_at)]
    return json.dumps([fact.id, fact.text, fact.category, *times, sources])


def _span(row: list[Any]) -> tuple[float, float]:
    begins, ends = (datetime.fromisoformat(moment).timestamp() if moment else None for moment in row[3:5])
    return -inf if begins is None else begins, inf if ends is None else ends


def _indexed(row: list[Any]) -> IndexedTurn:
    # A session of its own: what is said next to it is not its neighbourhood.
    moments = [said for _, _, said in row[5]] or [row[3]]
    said_at = datetime.fromisoformat(moments[-1]) if moments[-1] else _LONG_AGO
    return IndexedTurn(id=row[0], session_id=row[0], timestamp=said_at, role="user", text=row[1])
