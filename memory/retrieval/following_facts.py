"""One user's facts, kept current: begun from a snapshot, read on in SQL when newer ones are announced, dropped with the
turns at an erasure.

What tells that facts have changed is the version in each read of the log. Whoever committed may have died before
announcing it: so SQL is also looked at when a session starts, and every ``FACTS_CHECK_S`` while the user talks.

Above: following, engine. Below: facts, knowledge_ports, embedding. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from memory.clock import Clock
from memory.identity import group_digest
from memory.knowledge_ports import FactChanges, FactSource
from memory.limits import (
    ARCHIVE_STORE_TIMEOUT_S,
    EMBED_NEWEST_CHARS_MAX,
    EMBED_NEWEST_MAX,
    FACTS_CHECK_S,
    FACTS_RETRY_S_MAX,
)
from memory.models import Fact, Passage, Scope
from memory.retrieval.current import together
from memory.retrieval.deadlines import Deadline
from memory.retrieval.embedding import EmbedDesk
from memory.retrieval.facts import FactIndex, Known
from memory.retrieval.facts_snapshot import dump_facts
from memory.retrieval.index import Hit
from memory.retrieval.indexing import as_passage, common_vectors
from memory.retrieval.tasks import end_all, to_the_end
from memory.retrieval.vectors import Vector

logger = logging.getLogger(__name__)

_READ = 500  # facts a read: their rows are made into objects in one go, on the loop
_APPLIED_INLINE = 16  # facts; more are indexed in a thread
_SEARCHED_INLINE = 20_000  # facts; searching more takes longer than going to a thread and back
_RETRY_S_MIN = 0.5
_AILING_WAIT_S = 0.05  # for SQL that has just kept a recall waiting in vain


class FollowedFacts:
    """The facts of one user. ``source`` is ``None`` where there are none to be had: then nothing is lacking, either.

    ``changed`` is called with how many facts or vectors a snapshot lacks now.
    """

    def __init__(
        self,
        scope: Scope,
        key: bytes,
        source: FactSource | None,
        desk: EmbedDesk,
        clock: Clock,
        changed: Callable[[int], None],
    ) -> None:
        self._scope, self._key, self._source, self._desk, self._clock = scope, key, source, desk, clock
        self._changed = changed
        self.index: FactIndex | None = None
        self._before: FactIndex | None = None  # before an erasure, for the vectors of what is left
        self._gate = asyncio.Lock()  # held while the index is changed, and while a thread looks at it
        self._announced = 0
        self._answered = -1  # the newest announcement that a read came after; -1: not all is read yet
        self._looked_s = float("-inf")  # when all there was had been read
        self._ailing = False  # the last read failed, or was waited for in vain
        self._told = False
        self._retry_at_s, self._pause_s = 0.0, _RETRY_S_MIN
        self._run: asyncio.Task[None] | None = None
        self._begun = 0
        self._just_come: deque[str] = deque(maxlen=EMBED_NEWEST_MAX)

    def __len__(self) -> int:
        return 0 if self.index is None else len(self.index)

    @property
    def version(self) -> int:
        """Of the user's knowledge, as far as it is here."""
        return 0 if self.index is None else self.index.version

    # -- what the turns' index tells

    def open(self, kept: FactIndex | None) -> None:
        """Begin, from what a snapshot has kept if it is of this epoch."""
        self.drop()
        if self._source is not None:
            self.index = kept or FactIndex(self._key, self._desk.dimension)
            self._begin()

    def drop(self, *, for_good: bool = False) -> None:
        """What is held may be told no more, and what is being read for it is of no use."""
        self._before = None if for_good else self.index or self._before
        self.index, self._answered, self._announced = None, -1, 0
        self._just_come.clear()
        if for_good and self._run is not None:
            self._run.cancel()

    def announced(self, version: int) -> None:
        """The log says that the facts are of this version."""
        self._announced = max(self._announced, version)
        if self._due():
            self._begin()

    def look(self) -> None:
        """See whether there are any that nobody has announced, if that is some time ago."""
        if self.index is not None and self._clock.monotonic() - self._looked_s >= FACTS_CHECK_S:
            self._begin()

    @property
    def whole(self) -> bool:
        """All there was when SQL was last looked at is here."""
        return self._source is None or self._answered >= 0

    @property
    def settled(self) -> bool:
        """All is read, and nothing is being read right now."""
        return self.whole and (self._run is None or self._run.done())

    # -- what the engine asks

    async def looked(self) -> None:
        """Return once SQL has been looked at by a read that began after this call, or was found to be away."""
        wanted = self._begun + 1
        while self.index is not None and self._begun < wanted:
            if self._run is not None and not self._run.done():
                await asyncio.wait((self._run,))
            elif not self._begin():
                return
        if self._run is not None:
            await asyncio.wait((self._run,))

    async def current(self, deadline: Deadline, *, reserve_s: float) -> bool:
        """Whether all that was announced is here, having waited for it until ``reserve_s`` before the deadline; where
        SQL has just been waited for in vain, only a moment."""
        if not self._due():
            return True
        if not self._begin() or self._run is None:
            return False
        if self._ailing:
            reserve_s = max(reserve_s, deadline.remaining_s() - _AILING_WAIT_S)
        await deadline.met_by(self._run, reserve_s=reserve_s)
        self._ailing = self._due()
        return not self._ailing

    async def find(
        self, query: str, *, vector: Vector | None, k: int, now: datetime, exclude_turns: frozenset[str]
    ) -> list[Known]:
        """See ``FactIndex.find``."""
        async with self._gate:
            if self.index is None or not len(self.index):
                return []
            find = partial(self.index.find, query, vector=vector, k=k, now=now, exclude_turns=exclude_turns)
            return find() if len(self.index) <= _SEARCHED_INLINE else await to_the_end(find)

    async def profile(
        self, queries: Sequence[str], vectors: Vector | None, *, limit: int, now: datetime
    ) -> list[Known]:
        """See ``FactIndex.profile``."""
        async with self._gate:
            if self.index is None:
                return []
            profile = partial(self.index.profile, queries, vectors, limit=limit, now=now)
            return profile() if len(self.index) * len(queries) <= _SEARCHED_INLINE else await to_the_end(profile)

    async def together(
        self, hits: Sequence[Hit], known: Sequence[Known], now: datetime
    ) -> tuple[tuple[Passage, ...], tuple[Fact, ...]]:
        """See ``current.together``."""
        async with self._gate:
            if self.index is None:
                return tuple(as_passage(hit) for hit in hits), ()
            return together(hits, known, self.index, now)

    @property
    def vectors_missing(self) -> int:
        """How many facts that hold have no vector yet."""
        vectors = None if self.index is None else self.index.index.vectors
        return 0 if vectors is None else vectors.missing

    def missing_vectors(self, limit: int) -> list[tuple[str, str]]:
        """Ids and texts of facts without a vector, newest first; none while a thread is at work on the index."""
        return [] if self.index is None or self._gate.locked() else self.index.index.missing_vectors(limit)

    def just_come_without_vector(self) -> list[tuple[str, str]]:
        """Ids and texts of the newest facts that have no vector yet; so little that a recall can wait for theirs."""
        found, room = [], EMBED_NEWEST_CHARS_MAX
        for fact_id, text in self.missing_vectors(EMBED_NEWEST_MAX):
            room -= len(text)
            if fact_id in self._just_come and room >= 0:
                found.append((fact_id, text))
        return found

    async def set_vectors(self, ids: Sequence[str], vectors: Vector) -> None:
        async with self._gate:
            if self.index is not None and self.index.takes(vectors):
                self.index.index.set_vectors(ids, vectors)
                self._changed(len(ids))

    async def dump(self, *, epoch: int, model: str) -> bytes:
        """The facts as a snapshot keeps them, up to the version that is read; empty where there are none."""
        async with self._gate:
            if self.index is None or not len(self.index):
                return b""
            return await to_the_end(dump_facts, self.index, self._key, epoch=epoch, model=model)

    async def close(self) -> None:
        """End what runs. Idempotent."""
        self.drop(for_good=True)
        await end_all((self._run,))

    # -- reading

    def _due(self) -> bool:
        index = self.index
        return index is not None and (self._answered < 0 or self._announced > max(index.version, self._answered))

    def _begin(self) -> bool:
        """Have a read running; False where SQL is away and had better be left alone."""
        if self._run is not None and not self._run.done():
            return True
        if self._source is None or self._clock.monotonic() < self._retry_at_s:
            return False
        self._begun += 1
        self._run = asyncio.create_task(self._read_on(self._source))
        return True

    async def _read_on(self, source: FactSource) -> None:
        """Everything after what is here, until it is all, for as long as newer versions are announced meanwhile."""
        try:
            while (index := self.index) is not None:
                announced = self._announced
                async with asyncio.timeout(ARCHIVE_STORE_TIMEOUT_S):
                    part = await source.changes(self._scope, after=index.version, limit=_READ)
                if index is not self.index or not await self._take(index, part):
                    continue
                if part.complete and index is self.index:
                    self._answered, self._looked_s, self._pause_s = announced, self._clock.monotonic(), _RETRY_S_MIN
                    self._ailing = self._told = False
                    if not self._due():
                        return
        except Exception as error:  # whatever it is, recall goes on with what is here
            self._failed(error)

    async def _take(self, index: FactIndex, part: FactChanges) -> bool:
        """Index what came. False: it was of no use, or all has to be read anew."""
        if part.version < index.version:  # SQL has begun anew, or is of an older day: what is here was never said there
            self.open(None)
            return False
        if not part.complete and part.version == index.version:
            raise ValueError("changes that lead nowhere")
        async with self._gate:
            if index is not self.index:
                return False
            apply = partial(index.apply, part.facts, self._clock.now())
            count = apply() if len(part.facts) <= _APPLIED_INLINE else await to_the_end(apply)
            index.version = part.version
        if self._answered >= 0:
            self._just_come.extend(fact.id for fact in part.facts[-EMBED_NEWEST_MAX:])
        if part.complete:
            await self._carry_vectors(index)
        self._changed(count)
        return True

    async def _carry_vectors(self, index: FactIndex) -> None:
        """Facts that outlive an erasure keep their vectors."""
        before, self._before = self._before, None
        if before is None or before.index.vectors is None:
            return
        async with self._gate:
            for ids, vectors in common_vectors(before.index, index.index):
                if index.takes(vectors):
                    index.index.set_vectors(ids, vectors)

    def _failed(self, error: Exception) -> None:
        if not self._told:
            name = group_digest(self._scope)
            logger.warning("Recall can't read the facts of user %s: %s", name, type(error).__name__)
        self._ailing = self._told = True
        self._retry_at_s = self._clock.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, FACTS_RETRY_S_MAX)
