"""Moves what the store does not take in time from a session's backlog to the disk. Above: recorder. Below: replay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from memory.backlog import Backlog, Waiting, finished_within
from memory.clock import Clock
from memory.counters import Counters
from memory.errors import SpoolUnusable
from memory.limits import SPOOL_AFTER_S, SPOOL_BATCH, SPOOL_RETRY_S, STORE_TIMEOUT_S
from memory.models import Record, Scope
from memory.replay import SessionSpool
from memory.retrieval.deadlines import done_within

logger = logging.getLogger("memory.recorder")

Prepare = Callable[[Record], Awaitable[Record]]


class Spooling:
    """A task that waits for ``SPOOL_AFTER_S`` with the first turn of an outage, and with none after it.

    ``works``: the disk took what it was last given. ``prepare``: see ``Intake``; nothing is written as it came.
    """

    def __init__(
        self, backlog: Backlog, spool: SessionSpool, prepare: Prepare, clock: Clock, counters: Counters
    ) -> None:
        self.spool = spool
        self.works = True
        self._owner = spool.scope
        self._appends = False
        self._settled = asyncio.Event()  # what is on disk is where it belongs, or was tried to be put there
        self._settled.set()
        self._backlog, self._prepare, self._clock, self._counters = backlog, prepare, clock, counters
        self._task = asyncio.create_task(self._run(), name="memory.spool")

    def belongs_to(self, owner: Scope, prepare: Prepare) -> None:
        """It is known by now whose the turns are, those on disk too."""
        self._owner, self._prepare = owner, prepare
        if owner != self.spool.scope:
            self._settled.clear()
            self._backlog.notify()

    def starts(self) -> None:
        """From now on turns are stored as their owner's, and nobody else will turn out to be that."""
        self.spool.for_good = True
        if self._appends:
            self._settled.clear()

    async def settled(self) -> None:
        """Return once what is on disk is its owner's; a disk that hangs is not waited for.

        Nothing is stored before that: after a crash it could be found on disk as another's.
        """
        if not self._settled.is_set():
            await finished_within(self._settled.wait(), self._clock, STORE_TIMEOUT_S)

    async def aclose(self) -> None:
        """Stop, and let go of the files; a disk that hangs is not waited for. What is there is stored by the next."""
        if self.spool.waiting:
            logger.warning("%d turns wait in the spool until their store is back", self.spool.waiting)
        self._task.cancel()
        if await done_within(self._task, self._clock, STORE_TIMEOUT_S):
            await finished_within(self.spool.aclose(), self._clock, STORE_TIMEOUT_S)

    async def _run(self) -> None:
        while True:
            await self._overdue()
            batch = self._backlog.first(SPOOL_BATCH)
            try:
                if self._owner != self.spool.scope:
                    await self.spool.move(self._owner)
                else:
                    await self._move(batch)
                self.works = True
            except Exception as error:
                self._settled.set()
                self._refused(batch, error)
                await self._clock.sleep(SPOOL_RETRY_S)
            if self._owner == self.spool.scope:
                self._settled.set()
                self._backlog.notify()

    async def _overdue(self) -> None:
        """Return once a record has waited for the store for too long; any has, while it is away. Or at once, when what
        is on disk is somebody else's by now."""
        while self._owner == self.spool.scope:
            oldest = self._backlog.oldest
            if oldest is None or self._backlog.silent:
                await self._backlog.changed()
                continue
            left_s = oldest.since_s + SPOOL_AFTER_S - self._clock.monotonic()
            if self._backlog.away or left_s <= 0:
                self._backlog.away = True  # or as good as
                return
            await self._backlog.changed_within(left_s)

    async def _move(self, batch: Sequence[Waiting]) -> None:
        prepared: list[Record] = []
        for waiting in batch:
            try:
                prepared.append(await self._prepare(waiting.record))
            except Exception as error:
                if not prepared:
                    self._give_up(waiting, error)
                    return
                break  # it comes first the next time
        self._appends = True
        try:
            await self.spool.append(prepared)
        finally:
            self._appends = False
        self._backlog.leave(*batch[: len(prepared)])

    def _give_up(self, waiting: Waiting, error: Exception) -> None:
        if waiting is self._backlog.oldest:
            self._backlog.lost += 1
            self._counters.add("record.lost")
            logger.error("a turn can't be stored (id %s, %s)", waiting.record.id, type(error).__name__)
        self._backlog.leave(waiting)

    def _refused(self, batch: Sequence[Waiting], error: Exception) -> None:
        self.works = False
        new = [waiting for waiting in batch if not waiting.told]
        for waiting in new:
            waiting.told = True
        self._counters.add("record.not_spooled", len(new))
        if new:
            logger.error(
                "%d turns wait in memory alone, the store is away and the spool does not take them (%s): %s",
                len(new),
                ", ".join(waiting.record.id for waiting in new),
                str(error) if isinstance(error, SpoolUnusable) else type(error).__name__,
            )
        self._backlog.notify()
