"""One user's turns as they are held: searched, and given their vectors, while nobody changes them.

Above: following, which keeps them current. Below: index, indexing. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from memory.limits import EMBED_NEWEST_CHARS_MAX, EMBED_NEWEST_MAX
from memory.retrieval.index import Hit, Prepared, UserIndex
from memory.retrieval.indexing import found
from memory.retrieval.tasks import to_the_end
from memory.retrieval.vectors import Vector

_VECTORS_SHARE = 0.9  # of the turns; with fewer, those that have none would rank below whatever has one
_SEARCHED_INLINE = 20_000  # turns; searching more takes longer than going to a thread and back


class Retired(Exception):
    """This index was dropped while it was waited for; the engine may have a newer one."""


class HeldTurns(ABC):
    """The index and the lock that guards it. ``index`` is ``None`` while there is nothing that may be searched."""

    def __init__(self) -> None:
        self.index: UserIndex | None = None
        self.just_said: deque[str] = deque(maxlen=EMBED_NEWEST_MAX)
        self._gate = asyncio.Lock()  # held while the index is changed, and while a thread looks at it

    async def prepare(
        self, query: str, *, now: datetime, exclude_ids: frozenset[str], early: Prepared | None = None
    ) -> Prepared:
        """See ``UserIndex.prepare``; ``early`` once more, where it is of the index as it is.

        Raises:
            Retired: the index is gone.
        """
        async with self._gate:
            index = self.index
            if index is None:
                raise Retired
            if early is not None and index.is_current(early):
                return early
            prepare = partial(index.prepare, query, now=now, exclude_ids=exclude_ids)
            return prepare() if len(index) <= _SEARCHED_INLINE else await to_the_end(prepare)

    async def search(self, prepared: Prepared, *, query_vector: Vector | None, limit: int) -> list[Hit]:
        """See ``UserIndex.finish``. Nothing where the index is gone."""
        async with self._gate:
            index = self.index
            if index is None:
                return []
            search = partial(found, index, prepared, query_vector, limit)
            return search() if len(index) <= _SEARCHED_INLINE else await to_the_end(search)

    def has_vectors(self, exclude_ids: frozenset[str] = frozenset()) -> bool:
        """So many of the turns that can be found have one that those without are not at a disadvantage."""
        if self.index is None or self.index.vectors is None:
            return False
        if not self.vectors_missing:
            return True
        spared = sum(turn_id in exclude_ids for turn_id, _ in self.missing_vectors(len(exclude_ids)))
        eligible = len(self.index) - spared
        return eligible - (self.vectors_missing - spared) >= eligible * _VECTORS_SHARE

    @property
    def vectors_missing(self) -> int:
        """How many turns have no vector yet."""
        vectors = None if self.index is None else self.index.vectors
        return 0 if vectors is None else vectors.missing

    def missing_vectors(self, limit: int) -> list[tuple[str, str]]:
        """Ids and texts of turns without a vector, newest first; none while a thread is at work on the index."""
        return [] if self.index is None or self._gate.locked() else self.index.missing_vectors(limit)

    def just_said_without_vector(self, exclude_ids: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
        """Ids and texts of the newest turns that have no vector yet; so little that a recall can wait for theirs.

        What the recall excludes (the turns of the call itself, as a rule) can wait until nobody does.
        """
        found, room = [], EMBED_NEWEST_CHARS_MAX
        for turn_id, text in self.missing_vectors(EMBED_NEWEST_MAX):
            room -= len(text)
            if turn_id in self.just_said and turn_id not in exclude_ids and room >= 0:
                found.append((turn_id, text))
        return found

    async def set_vectors(self, ids: Sequence[str], vectors: Vector) -> None:
        async with self._gate:
            index = self.index
            if index is not None and index.vectors is not None and index.vectors.dimension == vectors.shape[1]:
                index.set_vectors(ids, vectors)
                self._changed(len(ids))

    @abstractmethod
    def _changed(self, count: int) -> None:
        """So many turns or vectors are new."""
