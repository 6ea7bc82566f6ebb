"""Looks for what there is to do: sessions that went quiet are cut, users with waiting chunks are queued.

What SQL says counts: it knows of every session that has turns in no chunk, whether somebody ended it, walked away, or
died in mid-call, and whatever Redis has lost. One look is bounded, in sessions, users and tasks, so that ten thousand
sessions that end at once wait in SQL, where they are anyway. Above: worker. Below: knowledge_ports, chunking's cutter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import StoreUnavailable
from memory.ingestion.telling import reason_of
from memory.knowledge_ports import ChunkStore, Cutter, DigestStore, SessionRef
from memory.limits import AWAY_IN_A_ROW, CHUNK_TURNS_MAX, INGEST_SESSIONS_MAX, INGEST_USERS_MAX

logger = logging.getLogger(__name__)


class Queue(Protocol):
    """Where users wait for a worker. Each is in it once, however often added; tasks hold the user's number alone."""

    async def waiting(self) -> int:
        """How many tasks wait or are being worked on, all workers together."""
        ...

    async def add_ingestion(self, users: Sequence[int]) -> None: ...

    async def add_digests(self, users: Sequence[int]) -> None: ...


class Scanner:
    """One look at a time. ``ready``: whether chunks can be ingested now, they are cut all the same; ``tells``: whether
    digests can be made now; ``notes``: whether ingestion makes them, so that only what it has left out is due.

    Counts ``scan.looks``, ``.cut`` (chunks), ``.queued`` (users) and ``.faults`` (sessions that can't be cut).
    """

    def __init__(
        self,
        chunks: ChunkStore,
        digests: DigestStore,
        clock: Clock,
        counters: Counters,
        *,
        cutter: Cutter,
        idle_s: float,
        ready: Callable[[], bool],
        tells: Callable[[], bool],
        notes: Callable[[], bool] = lambda: False,
    ) -> None:
        self._chunks, self._digests, self._clock = chunks, digests, clock
        self._cutter, self._idle_s, self._ready, self._tells, self._notes = cutter, idle_s, ready, tells, notes
        self.counters = counters

    async def look(self, queue: Queue) -> bool:
        """Cut and queue what is due; True: there may be more, look again soon.

        Raises:
            StoreUnavailable: a store is away; what was cut by then is cut.
        """
        self.counters.add("scan.looks")
        before = self._clock.now() - timedelta(seconds=self._idle_s)
        refs = await self._chunks.quiet(before=before, limit=INGEST_SESSIONS_MAX)
        cut = away = 0
        for ref in refs:
            try:
                cut += await self._cut(ref)
                away = 0
            except StoreUnavailable:
                away += 1
                if away >= AWAY_IN_A_ROW:
                    raise
        full = await self._queue(queue, before)
        return full or (cut > 0 and len(refs) >= INGEST_SESSIONS_MAX)

    async def _cut(self, ref: SessionRef) -> int:
        total = 0
        try:
            while cut := await self._chunks.cut(ref, self._cutter, limit=CHUNK_TURNS_MAX):
                total += cut
        except StoreUnavailable:
            raise
        except Exception as error:  # one session's trouble is not the others'
            self.counters.add("scan.faults")
            logger.error("A session of user %d can't be cut into chunks: %s", ref.user, reason_of(error))
        self.counters.add("scan.cut", total)
        return total

    async def _queue(self, queue: Queue, before: datetime) -> bool:
        """Queue users as long as there is room; True: there was not enough."""
        room = max(0, INGEST_USERS_MAX - await queue.waiting())
        users = await self._chunks.due(now=self._clock.now(), limit=room) if room and self._ready() else []
        if users:
            await queue.add_ingestion(users)
        refs = await self._undigested(before, room) if room and self._tells() else []
        if refs:
            await queue.add_digests(list(dict.fromkeys(ref.user for ref in refs)))
        self.counters.add("scan.queued", len(users))
        return room == 0 or len(users) >= room or len(refs) >= room

    async def _undigested(self, before: datetime, limit: int) -> list[SessionRef]:
        return await self._digests.undigested(before=before, limit=limit, ingested=self._notes())
