"""Stores what is said, in order, off the turn's path: a bounded queue, and one task that appends to the session store.

While the store is away or slow, a second task moves the queue into the spool on disk; what is there is stored first
when the store is back. One recorder per session. Above: plugin. Below: the session store's port, replay, intake.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import NotTheWriter, SessionOwnership, SpoolUnusable, StoreUnavailable
from memory.limits import (
    RECORD_QUEUE_MAX,
    RECORD_RETRY_S_MAX,
    RECORD_TIMEOUT_S,
    SHUTDOWN_FLUSH_S,
    SPOOL_AFTER_S,
    SPOOL_BATCH,
    SPOOL_RETRY_S,
    STORE_TIMEOUT_S,
    WRITER_HEARTBEAT_S,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, Record, Scope, new_id
from memory.ports import SessionStore, WriterLeases
from memory.privacy.intake import Intake
from memory.replay import SessionSpool, replay_left
from memory.retrieval.deadlines import Deadline, done_within
from memory.spool import Spool

logger = logging.getLogger("memory.recorder")

_RETRY_S_MIN = 0.05
_ATTEMPTS_MAX = 3  # for errors that trying again hardly mends; an unavailable store is asked until the end
_LONG_TEXT = 50_000  # characters; redacting more would be felt on the event loop
_AWAY = (StoreUnavailable, OSError, TimeoutError)

_T = TypeVar("_T")


class Sessions(SessionStore, WriterLeases, Protocol):
    """Where a recorder stores."""


@dataclass(slots=True)
class _Waiting:
    record: Record
    since_s: float
    told: bool = False  # that the spool did not take it


class Recorder:
    """Appends one session's entries and events to the store, each once, in the order of ``record``.

    Nothing here raises into the caller. ``start`` may come late: until then what is recorded waits, on disk from
    ``spool_as`` on. While another
    process records the same session this one is silent; it takes over when that one's lease has lapsed, with what it
    heard since. Close with ``aclose``.

    ``writer`` names this recorder in its lease, uniquely. ``takes_over`` is the name of one that is known to be dead:
    its lease isn't waited out.
    """

    def __init__(
        self,
        intake: Intake,
        clock: Clock,
        counters: Counters,
        *,
        session_id: str,
        writer: str | None = None,
        takes_over: str | None = None,
    ) -> None:
        self.session_id = session_id
        self._intake = intake
        self._clock = clock
        self._counters = counters
        self._writer = writer or new_id()
        self._takes_over = takes_over
        self._queue: deque[_Waiting] = deque()
        self._settled = 0  # how many have left the queue, stored or given up
        self._lost = 0
        self._changed = asyncio.Event()  # something arrived, left, or ended: whoever waits looks again
        self._task: asyncio.Task[None] | None = None
        self._spooling: asyncio.Task[None] | None = None
        self._spool: SessionSpool | None = None
        self._spool_works = True
        self._looked_for_left = False
        self._away = False  # the store: somebody has waited for it in vain since it last answered
        self._place: tuple[Sessions, Scope] | None = None
        self._claimed_at_s: float | None = None
        self._silent = False
        self._closed = False

    @property
    def pending(self) -> int:
        """How many records wait to be stored; those on disk are not among them."""
        return len(self._queue)

    @property
    def spooled(self) -> int:
        """How many records wait on disk for their store."""
        return self._spool.waiting if self._spool is not None else 0

    @property
    def silent(self) -> bool:
        """Whether another process records this session."""
        return self._silent

    async def silenced(self) -> None:
        """Return once another process records this session."""
        while not self._silent:
            await self._changed.wait()

    def start(self, sessions: Sessions, scope: Scope) -> None:
        """From now on what was and will be recorded is stored, as ``scope``'s. Once."""
        if self._task is None and not self._closed:
            self._place = sessions, scope
            self._away = False
            self._task = asyncio.create_task(self._run(sessions, scope), name="memory.recorder")

    def spool_as(self, scope: Scope, spool: Spool) -> None:
        """From now on what the store does not take in time goes to the disk, as ``scope``'s. Once."""
        if self._spooling is None and not self._closed:
            self._spool = SessionSpool(spool, scope, self._clock, self._counters)
            self._spooling = asyncio.create_task(self._keep(self._spool), name="memory.spool")

    def store_is_away(self) -> None:
        """The store can't be opened: don't wait for it with the next turns."""
        self._away = True
        self._notify()

    def record(self, record: Record) -> None:
        """Take a record to be stored; returns at once. Beyond ``RECORD_QUEUE_MAX`` waiting ones it is lost, counted."""
        if self._closed or len(self._queue) >= RECORD_QUEUE_MAX:
            self._counters.add("record.lost")
            logger.error(
                "a turn was not recorded (id %s): %s",
                record.id,
                "the session is closed" if self._closed else "too many wait; is the store (REDIS_URL) away?",
            )
            return
        self._queue.append(_Waiting(record, self._clock.monotonic()))
        self._counters.add("record.queued")
        self._notify()

    async def durable(self, timeout_s: float) -> bool:
        """Wait until everything recorded so far is stored or on disk, ``timeout_s`` at most. False: it isn't, or some
        was lost.

        Where neither store nor disk takes anything, that is waited for once and not again until one of them does. True
        as well while another process records this session: storing it is up to that one.
        """
        lost, target = self._lost, self._settled + len(self._queue)
        if not (self._away and not self._spool_usable):
            await self._settled_within(target, timeout_s)
            self._away = self._away or self._settled < target
        return self._silent or (self._settled >= target and self._lost == lost)

    async def stored(self, timeout_s: float) -> bool:
        """Wait until everything recorded so far is in the store, ``timeout_s`` at most; whether it is."""
        deadline = Deadline(self._clock, timeout_s * 1_000)
        lost, target = self._lost, self._settled + len(self._queue)
        await self._settled_within(target, timeout_s)
        emptied = asyncio.create_task(self._emptied())
        try:
            await deadline.met_by(emptied)
        finally:
            await _cancelled(emptied)
        return self._silent or (self._settled >= target and not self.spooled and self._lost == lost)

    async def aclose(self, timeout_s: float = SHUTDOWN_FLUSH_S) -> None:
        """Store what still waits, within ``timeout_s``; what can't be is counted, logged by id and dropped.

        The lease ends with it, so that the session can be gone on with at once.
        """
        if not self._closed:
            self._closed = True
            await self._flush(timeout_s)
        for task in (self._task, self._spooling):
            if task is not None:
                await _cancelled(task)
        await self._release()
        if self._queue and not self._silent:
            self._counters.add("record.lost", len(self._queue))
            logger.error(
                "%d turns were not stored before the session's end: %s. Was the store (REDIS_URL) away?",
                len(self._queue),
                ", ".join(waiting.record.id for waiting in self._queue),
            )
        self._queue.clear()
        if self._spool is not None:
            if self.spooled:
                logger.warning("%d turns wait in the spool until their store is back", self.spooled)
            await self._spool.aclose()
        self._notify()

    async def _flush(self, timeout_s: float) -> None:
        deadline = Deadline(self._clock, timeout_s * 1_000)
        if self._task is not None or self._spooling is not None:
            await self._settled_within(self._settled + len(self._queue), timeout_s)
        if self._task is not None and self.spooled and not self._away:
            await self.stored(deadline.remaining_s())

    async def _release(self) -> None:
        if self._place is None or self._claimed_at_s is None or self._queue:
            return
        (sessions, scope), self._place = self._place, None
        releasing = asyncio.ensure_future(sessions.release(self.session_id, scope, writer=self._writer))
        try:
            await done_within(releasing, self._clock, STORE_TIMEOUT_S)
            if releasing.done():
                releasing.result()
        except Exception as error:
            logger.warning("the session's lease could not be given up (%s); it lapses", type(error).__name__)
        finally:
            await _cancelled(releasing)

    async def _settle(self, target: int) -> None:
        while self._settled < target and not self._silent and not (self._task and self._task.done()):
            await self._changed.wait()

    async def _settled_within(self, target: int, timeout_s: float) -> None:
        if self._settled < target and not self._silent:
            settling = asyncio.create_task(self._settle(target))
            try:
                await done_within(settling, self._clock, timeout_s)
            finally:
                await _cancelled(settling)

    async def _emptied(self) -> None:
        while self.spooled and not self._silent and self._task is not None and not self._task.done():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, sessions: Sessions, scope: Scope) -> None:
        retry_s = _RETRY_S_MIN
        while True:
            try:
                await self._step(sessions, scope)
                retry_s, self._away = _RETRY_S_MIN, False
                continue
            except NotTheWriter:
                await self._stand_by()
                continue
            except SessionOwnership:
                # Another user's, such as a room that is used again: a session of its own, so that nothing mixes.
                self.session_id = new_id()
                self._counters.add("record.session_renamed")
                logger.warning("the session id belongs to another user; the turns go into a session of their own")
            except _AWAY:
                self._counters.add("record.retries")
                self.store_is_away()
            except Exception as error:
                self._counters.add("record.errors")
                logger.error("the session can't be claimed (%s); trying again", type(error).__name__)
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RECORD_RETRY_S_MAX)

    async def _step(self, sessions: Sessions, scope: Scope) -> None:
        """Renew the lease if it is time, then store what is oldest, or wait until there is something or it is time.

        What is on disk is oldest: what an ended process has left of this user, then this session's own.
        """
        if self._takes_over is not None:
            await self._attempt(sessions.release(self.session_id, scope, writer=self._takes_over))
            self._takes_over = None
        now_s = self._clock.monotonic()
        if self._claimed_at_s is None or now_s - self._claimed_at_s >= WRITER_HEARTBEAT_S:
            await self._attempt(sessions.claim(self.session_id, scope, writer=self._writer))
            self._claimed_at_s = now_s
            self._speak_again()
        if self._spool is not None and not self._looked_for_left:
            await self._look_for_left(self._spool.spool, sessions, scope)
        if self._spool is not None and self.spooled:
            await self._spool.replay(lambda record: self._store(sessions, scope, record))
            self._notify()
        elif self._queue:
            oldest = self._queue[0]
            await self._store(sessions, scope, oldest.record)
            self._leave(oldest)
        else:
            await self._arrival(self._claimed_at_s + WRITER_HEARTBEAT_S - now_s)

    async def _look_for_left(self, spool: Spool, sessions: Sessions, scope: Scope) -> None:
        try:
            await replay_left(spool, sessions, self._counters, self._clock, scope=scope)
        except SpoolUnusable as error:
            self._counters.add("spool.errors")
            logger.error("turns that an ended process has left stay in the spool: %s", error)
        self._looked_for_left = True

    async def _arrival(self, timeout_s: float) -> None:
        """Wait until something arrives, leaves or ends, ``timeout_s`` at most."""
        arrival = asyncio.create_task(self._changed.wait())
        try:
            await done_within(arrival, self._clock, timeout_s)
        finally:
            await _cancelled(arrival)

    async def _store(self, sessions: Sessions, scope: Scope, record: Record) -> None:
        """Append ``record``, or give it up.

        Raises:
            NotTheWriter, StoreUnavailable, OSError, TimeoutError: it is still to be stored.
        """
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                prepared = await self._prepared(record, scope)
                appended = await self._attempt(sessions.append(scope, prepared, writer=self._writer))
                self._counters.add("record.stored" if appended.stored else "record.repeated")
                return
            except (NotTheWriter, *_AWAY):
                raise
            except Exception as error:
                self._counters.add("record.errors")
                if attempt < _ATTEMPTS_MAX:
                    await self._clock.sleep(_RETRY_S_MIN * attempt)
                    continue
                self._given_up(record, error)

    def _given_up(self, record: Record, error: Exception) -> None:
        self._lost += 1
        self._counters.add("record.lost")
        logger.error("a turn can't be stored (id %s, %s)", record.id, type(error).__name__)

    async def _prepared(self, record: Record, scope: Scope) -> Record:
        if not isinstance(record, MemoryEntry):
            return self._intake.event(record, scope, self.session_id)
        if len(record.content) > _LONG_TEXT:
            return await asyncio.to_thread(self._intake.entry, record, scope, self.session_id)
        return self._intake.entry(record, scope, self.session_id)

    async def _attempt(self, call: Coroutine[Any, Any, _T]) -> _T:
        """``call``, for ``RECORD_TIMEOUT_S`` at most; it may have had its effect all the same.

        Raises:
            TimeoutError: no answer in time.
        """
        task = asyncio.ensure_future(call)
        try:
            if await done_within(task, self._clock, RECORD_TIMEOUT_S):
                return task.result()
            raise TimeoutError
        finally:
            await _cancelled(task)

    def _leave(self, *waiting: _Waiting) -> None:
        """``waiting`` are stored, on disk, or given up. Whichever the other task has seen to already is gone."""
        for each in waiting:
            if self._queue and self._queue[0] is each:
                self._queue.popleft()
                self._settled += 1
        self._notify()

    # -- the spool

    @property
    def _spool_usable(self) -> bool:
        return self._spool is not None and self._spool_works

    async def _keep(self, spool: SessionSpool) -> None:
        """Move what the store does not take in time to the disk, for good."""
        while True:
            await self._overdue()
            batch = list(islice(self._queue, SPOOL_BATCH))
            try:
                await self._spool_batch(spool, batch)
                self._spool_works = True
            except SpoolUnusable as error:
                self._refused(batch, error)
                await self._clock.sleep(SPOOL_RETRY_S)

    async def _overdue(self) -> None:
        """Wait until a record has waited for the store for too long; any does while it is away."""
        while self._silent or not self._queue:
            await self._changed.wait()
        while self._queue and not self._away and not self._silent:
            left_s = self._queue[0].since_s + SPOOL_AFTER_S - self._clock.monotonic()
            if left_s <= 0:
                self._away = True  # or as good as: the turns after this one don't wait again
            else:
                await self._arrival(left_s)

    async def _spool_batch(self, spool: SessionSpool, batch: Sequence[_Waiting]) -> None:
        prepared: list[Record] = []
        for waiting in batch:
            try:
                prepared.append(await self._prepared(waiting.record, spool.scope))
            except Exception as error:
                if prepared:
                    break  # it comes first the next time
                self._given_up(waiting.record, error)
                self._leave(waiting)
                return
        if prepared:
            await spool.append(prepared)
            self._leave(*batch[: len(prepared)])

    def _refused(self, batch: Sequence[_Waiting], error: SpoolUnusable) -> None:
        self._spool_works = False
        new = [waiting for waiting in batch if not waiting.told]
        for waiting in new:
            waiting.told = True
        self._counters.add("record.not_spooled", len(new))
        if new:
            logger.error(
                "%d turns wait in memory alone, the store is away and the spool does not take them (%s): %s",
                len(new),
                ", ".join(waiting.record.id for waiting in new),
                error,
            )
        self._notify()

    async def _stand_by(self) -> None:
        """Another process records this session. Keep only what it could not store any more if it is dead by now."""
        self._claimed_at_s = None
        if not self._silent:
            self._silent = True
            self._counters.add("record.not_the_writer")
            logger.warning("another process records this session; this one stays silent unless that one ends")
            self._notify()
        await self._clock.sleep(WRITER_HEARTBEAT_S)
        oldest_s = self._clock.monotonic() - WRITER_LEASE_S - 2 * WRITER_HEARTBEAT_S
        while self._queue and self._queue[0].since_s < oldest_s:
            self._leave(self._queue[0])

    def _speak_again(self) -> None:
        if self._silent:
            self._silent = False
            self._counters.add("record.taken_over")
            logger.warning("the process that recorded this session has ended; this one goes on")


async def _cancelled(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
