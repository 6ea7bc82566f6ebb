"""One user's recall index, in process: keywords, vectors, and the turns themselves. No IO, no clock, no threads.

Above: the recall host, evaluate, snapshot, tests and tools. Below: turns, bm25, vectors, ranking, dates, text.

Not thread-safe: whoever owns an index calls it from one thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from memory.retrieval import ranking, relevance
from memory.retrieval.bm25 import KeywordIndex, TermHasher
from memory.retrieval.dates import date_words
from memory.retrieval.query import Query, names_something, read
from memory.retrieval.text import stems, stems_of, words
from memory.retrieval.turns import IndexedTurn, TurnTable
from memory.retrieval.vectors import Vector, VectorTable, quantised

_PLEASANTRY_CHARS_MAX = 120
_REPEATS_ROOM = 16  # so much further down the ranking is looked for what is not said twice

__all__ = ["Hit", "IndexedTurn", "Prepared", "UserIndex"]

WORDS_PER_TURN_MAX = 65_536  # of one turn that are indexed (about 350 kB of English): a bound on the time of an add
QUERY_TERMS_MAX = 64  # distinct stems of a query that are looked up


@dataclass(frozen=True, slots=True)
class Hit:
    """A turn that was found.

    ``score`` orders the hits of one query and means nothing across queries. ``keyword`` (0..1) is the share of the
    query's content that the turn and its neighbours hold as words, each word weighted by what it tells. ``cosine``
    compares the meanings; ``None`` without a query vector or where the turn has none yet.
    """

    turn: IndexedTurn
    score: float
    keyword: float
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What of a search needs no query vector: the query read, and every turn scored by its words."""

    query: str
    now: datetime
    exclude_ids: frozenset[str]
    exclude_session: str | None
    state: object  # of the index that the rest is true of
    asked: Query
    names_speaker: bool
    newest: NDArray[np.intp] | None  # places, where what came last is asked for
    frame: ranking.Frame
    allowed: NDArray[np.bool_]
    words: Vector
    share: Vector  # of the query's content that each turn holds (about 0..1)


class UserIndex:
    """What one user and their agent said, searchable.

    ``key``: secret of this user's hashes. ``dimension``: of the vectors; ``None`` for an index without.
    """

    def __init__(self, key: bytes, dimension: int | None, *, weights: ranking.Weights = ranking.WEIGHTS) -> None:
        self._hash = TermHasher(key)
        self._weights = weights
        self.turns = TurnTable()
        self.keywords = KeywordIndex()
        self.vectors = None if dimension is None else VectorTable(dimension)
        self._state = object()  # another one whenever a turn comes or goes

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self.turns

    def ids(self) -> list[str]:
        """The ids of all turns, in the order of their ``add``."""
        return list(self.turns.ids)

    def add(self, turn: IndexedTurn) -> None:
        """Add a turn; it is found by its words from now on. An id that is there already changes nothing."""
        if turn.id in self.turns:
            return
        spoken = list(islice(words(turn.text), WORDS_PER_TURN_MAX))
        about = f"{date_words(turn.timestamp)} {turn.name or ''}"
        self.keywords.add(self._hash.counts(stems(about) + stems_of(spoken)))
        self.turns.add(turn, len(spoken))
        if self.vectors is not None:
            self.vectors.add()
        self._state = object()

    def set_vectors(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Give turns their vectors, shape (len(ids), dimension). Ids that are gone by now are passed over.

        Raises:
            ValueError: another shape, or a vector that is not finite; then none of them is set.
        """
        if self.vectors is None:
            raise ValueError("this index was made without vectors (dimension=None)")
        if vectors.shape != (len(ids), self.vectors.dimension):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(ids)} turns of {self.vectors.dimension}")
        rows = [quantised(vector, self.vectors.dimension) for vector in vectors]
        for turn_id, row in zip(ids, rows, strict=True):
            position = self.turns.position(turn_id)
            if position is not None:
                self.vectors.set(position, row)

    def missing_vectors(self, limit: int) -> list[tuple[str, str]]:
        """Ids and texts of at most ``limit`` turns without a vector, newest first: they are asked about soonest."""
        if self.vectors is None or not self.vectors.missing:
            return []
        places = np.flatnonzero(~self.vectors.present)[::-1][:limit].tolist()
        return [(self.turns.ids[place], self.turns.text(place)) for place in places]

    def remove(self, ids: Collection[str]) -> int:
        """Forget turns; returns how many were there. Nothing of them stays, not even the hash of a word."""
        places = [place for turn_id in ids if (place := self.turns.position(turn_id)) is not None]
        mask = np.ones(len(self), np.bool_)
        mask[places] = False
        return self._keep(mask)

    def remove_session(self, session_id: str) -> int:
        """Forget a session; returns how many turns it had."""
        return self._keep(~self.turns.in_session(session_id))

    def _keep(self, mask: NDArray[np.bool_]) -> int:
        gone = int(len(mask) - mask.sum())
        if gone:
            self.turns.keep(mask)
            self.keywords.keep(mask)
            if self.vectors is not None:
                self.vectors.keep(mask)
            self._state = object()
        return gone

    def search(
        self,
        query: str,
        *,
        query_vector: Vector | None,
        k: int,
        now: datetime,
        exclude_ids: frozenset[str] = frozenset(),
        exclude_session: str | None = None,
        min_relevance: bool = True,
    ) -> list[Hit]:
        """The turns that bear on ``query``, best first, at most ``k``.

        ``now`` (aware) is what "yesterday" in the query counts from, in its time zone. Excluded turns are not
        returned but still lend their neighbours context. With ``min_relevance`` the list is empty when nothing is
        about the query; without it whatever ranks highest is returned.

        Raises:
            ValueError: ``query_vector`` has another dimension than the index, or is not finite.
        """
        prepared = self.prepare(query, now=now, exclude_ids=exclude_ids, exclude_session=exclude_session)
        return self.finish(prepared, query_vector=query_vector, k=k, min_relevance=min_relevance)

    def prepare(
        self,
        query: str,
        *,
        now: datetime,
        exclude_ids: frozenset[str] = frozenset(),
        exclude_session: str | None = None,
    ) -> Prepared:
        """The part of ``search`` that can be done while the query's vector is being made."""
        asked = read(query, now)
        allowed = self._allowed(exclude_ids, exclude_session)
        named = self._speakers(asked)
        newest = self._newest(allowed) if asked.latest else None
        speaker = self.turns.said_by(named[0]) if len(named) == 1 else None
        wanted = ranking.Wanted(asked.when, asked.periods, speaker, newest, not asked.content)
        turns = self.turns.features()
        keywords, share = self._keywords(asked, turns)
        return Prepared(
            query,
            now,
            exclude_ids,
            exclude_session,
            self._state,
            asked,
            bool(named),
            newest,
            ranking.frame(turns, wanted, self._weights),
            allowed,
            ranking.raised(keywords),
            share,
        )

    def is_current(self, prepared: Prepared) -> bool:
        """Whether it is of this index, and no turn came or went since."""
        return prepared.state is self._state

    def finish(
        self, prepared: Prepared, *, query_vector: Vector | None, k: int, min_relevance: bool = True
    ) -> list[Hit]:
        """What ``search`` returns now, whatever came and went since ``prepare``; may be called again. Raises as it."""
        if not len(self) or k <= 0:
            return []
        if not self.is_current(prepared):
            prepared = self.prepare(
                prepared.query,
                now=prepared.now,
                exclude_ids=prepared.exclude_ids,
                exclude_session=prepared.exclude_session,
            )
        if not min_relevance:
            return self._ranked(prepared, query_vector, k, repeats=True)
        hits = self._ranked(prepared, query_vector, k, repeats=False)
        latest = set() if prepared.newest is None else {self.turns.ids[place] for place in prepared.newest.tolist()}
        return self._relevant(prepared.asked, hits, latest, names_speaker=prepared.names_speaker)

    def _ranked(self, prepared: Prepared, vector: Vector | None, k: int, *, repeats: bool) -> list[Hit]:
        """The best ``k``; the best of each wording alone, unless ``repeats``."""
        share = prepared.share
        cosines, present = self._cosines(vector)
        scores = ranking.combine(prepared.words, cosines, present, self._weights)
        scores = ranking.in_context(scores, self.turns.features().links, prepared.frame, self._weights)
        scores[~prepared.allowed] = -np.inf
        places = ranking.best(scores, k if repeats else k * _REPEATS_ROOM).tolist()
        if not repeats:
            places = list(islice(self._distinct(places, prepared.query), k))
        return [
            Hit(
                self.turns.turn(place),
                float(scores[place]),
                min(float(share[place]), 1.0),
                float(cosines[place]) if cosines is not None and present is not None and present[place] else None,
            )
            for place in places
        ]

    def _distinct(self, places: Iterable[int], query: str) -> Iterator[int]:
        """The first of each wording. A question that was asked before says nothing to who asks it again."""
        known = {_wording(query)}
        for place in places:
            wording = _wording(self.turns.text(place))
            if wording not in known:
                known.add(wording)
                yield place

    def _relevant(self, asked: Query, hits: list[Hit], latest: set[str], *, names_speaker: bool) -> list[Hit]:
        best = max(hits[0].score, 1e-9) if hits else 1.0
        found = [
            relevance.Evidence(hit.keyword, hit.cosine, hit.score / best, hit.turn.timestamp.timestamp())
            for hit in hits
        ]
        if not relevance.bears(asked, found, len(self), names_speaker=names_speaker):
            return []
        return [
            hit
            for hit, evidence in zip(hits, found, strict=True)
            if hit.turn.id in latest or (relevance.worth_showing(asked, evidence) and not _is_pleasantry(hit.turn))
        ]

    def _keywords(self, asked: Query, turns: ranking.Turns) -> tuple[Vector, Vector]:
        """Every turn's keyword score, and the share of the query's content it holds (about 0..1)."""
        counts = dict(islice(Counter(asked.stems).items(), QUERY_TERMS_MAX))
        postings = {stem: self.keywords.posting(self._hash(stem)) for stem in counts}
        found = [(stem, posting, counts[stem]) for stem, posting in postings.items() if posting is not None]
        scores = ranking.keyword_scores([(posting, n) for _, posting, n in found], turns, self._weights)
        content = [(posting, n) for stem, posting, n in found if stem in asked.content]
        named = ranking.keyword_scores(content, turns, self._weights) if len(content) < len(found) else scores
        information = sum(
            counts[stem] * self.keywords.idf(0 if posting is None else len(posting.turns))
            for stem, posting in postings.items()
            if stem in asked.content
        )
        return scores, named / np.float32(max(information, 1e-9))

    def _cosines(self, query_vector: Vector | None) -> tuple[Vector | None, NDArray[np.bool_] | None]:
        if query_vector is None or self.vectors is None:
            return None, None
        return self.vectors.cosines(query_vector), self.vectors.present

    def _speakers(self, asked: Query) -> list[str]:
        """Those who speak in this history and are named, by their first name, in the query."""
        return [name for name in self.turns.names() if (parts := stems(name)) and parts[0] in asked.stems]

    def _allowed(self, ids: frozenset[str], session_id: str | None) -> NDArray[np.bool_]:
        allowed = np.ones(len(self), np.bool_)
        if session_id is not None:
            allowed &= ~self.turns.in_session(session_id)
        allowed[[place for turn_id in ids if (place := self.turns.position(turn_id)) is not None]] = False
        return allowed

    def _newest(self, allowed: NDArray[np.bool_]) -> NDArray[np.intp]:
        places = np.flatnonzero(allowed)
        order = np.argsort(-self.turns.times.values[places], kind="stable")
        return places[order[: self._weights.latest_turns]]


def _wording(text: str) -> str:
    return text.casefold().strip(" .,;:!?…")


def _is_pleasantry(turn: IndexedTurn) -> bool:
    """A greeting or the like of the assistant's. The user's own "Yes, please." may answer a question, and stays."""
    if turn.role != "assistant" or len(turn.text) > _PLEASANTRY_CHARS_MAX:
        return False
    return not names_something(turn.text)
