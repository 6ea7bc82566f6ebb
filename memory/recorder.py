"""Stores what is said, in order, off the turn's path: a bounded queue, and one task that appends to the session store.

While the store is away or slow, a second task moves the queue into the spool on disk; what is there is stored first
when the store is back. One recorder per session. Above: plugin. Below: the session store's port, spooling, intake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from memory.backlog import Backlog, cancelled, finished_within
from memory.clock import Clock
from memory.counters import Counters
from memory.errors import (
    NotTheWriter,
    SessionOwnership,
    SpoolUnusable,
    StoreFault,
    StoreUnavailable,
    VoiceMemoryError,
)
from memory.limits import (
    RECORD_COURTESY_S,
    RECORD_QUEUE_MAX,
    RECORD_RETRY_S_MAX,
    RECORD_TIMEOUT_S,
    SHUTDOWN_FLUSH_S,
    STORE_TIMEOUT_S,
    WRITER_HEARTBEAT_S,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, Record, Scope, new_id
from memory.ports import SessionState, SessionStore, WriterLeases
from memory.privacy.intake import Intake
from memory.replay import SessionSpool, replay_left
from memory.retrieval.deadlines import Deadline, done_within
from memory.retrieval.right_of_way import RightOfWay
from memory.spool import Spool
from memory.spooling import Spooling

logger = logging.getLogger("memory.recorder")

_RETRY_S_MIN = 0.05
_ATTEMPTS_MAX = 3  # for errors that trying again hardly mends; an unavailable store is asked until the end
_AWAY = (StoreUnavailable, OSError, TimeoutError)

_T = TypeVar("_T")


class Sessions(SessionStore, WriterLeases, Protocol):
    """Where a recorder stores."""


class Recorder:
    """Appends one session's entries and events to the store, each once, in the order of ``record``.

    Nothing here raises into the caller. ``start`` may come late: until then what is recorded waits, on disk from
    ``spool_as`` on. While another process records the same session this one is silent; it takes over when that one's
    lease has lapsed, with what it heard since. Close with ``aclose``.

    ``writer`` names this recorder in its lease, uniquely. ``takes_over`` is the name of one that is known to be dead:
    its lease isn't waited out. ``lease_id``: what the lease is on, if not the session. Such a session is recorded by
    several at once that hear different things, such as one that is held in two rooms: one process in each.
    ``way``: what is stored waits a little (until ``RECORD_COURTESY_S`` after it came) for who has it.
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
        lease_id: str | None = None,
        way: RightOfWay | None = None,
    ) -> None:
        self.session_id = session_id
        self._intake = intake
        self._clock = clock
        self._counters = counters
        self._way = way or RightOfWay(clock)
        self._writer = writer or new_id()
        self._takes_over, self._lease_id = takes_over, lease_id
        self._backlog = Backlog(clock)
        self._task: asyncio.Task[None] | None = None
        self._spooling: Spooling | None = None
        self._spool_scope: Scope | None = None
        self._unbound: Scope | None = None  # whose the turns were before it was known
        self._looked_for_left = False
        self._entries: deque[str] = deque(maxlen=RECORD_QUEUE_MAX)  # ids of what this session has stored
        self._place: tuple[Sessions, Scope] | None = None
        self._claimed_at_s: float | None = None
        self._closed = False

    @property
    def pending(self) -> int:
        """How many records wait to be stored; those on disk are not among them."""
        return len(self._backlog)

    @property
    def spooled(self) -> int:
        """How many records wait on disk for their store."""
        return self._spooling.spool.waiting if self._spooling is not None else 0

    @property
    def _on_disk(self) -> bool:
        return self.spooled > 0

    @property
    def silent(self) -> bool:
        """Whether another process records this session."""
        return self._backlog.silent

    async def looked_for_left(self, *, patient: bool) -> None:
        """Return once what an ended process has left of this user is stored, or is somebody else's to store.

        Not ``patient``: or the store is away.
        """
        while not (self._looked_for_left or self.silent or (self._backlog.away and not patient)):
            await self._backlog.changed()

    async def silenced(self) -> None:
        """Return once another process records this session."""
        while not self.silent:
            await self._backlog.changed()

    def start(self, sessions: Sessions, scope: Scope) -> None:
        """From now on what was and will be recorded is stored, as ``scope``'s. Once."""
        if self._task is None and not self._closed:
            self._place = sessions, scope
            self._backlog.away = False
            if self._spooling is not None:
                self._spooling.starts()
            self._task = asyncio.create_task(self._run(sessions, scope), name="memory.recorder")

    def spool_as(self, scope: Scope, spool: Spool) -> None:
        """From now on what the store does not take in time goes to the disk, as ``scope``'s; so does what is there.

        Before it is known whose the turns are, that is the session's and the participant's own scope. What a process
        that has died left under the last such scope is stored as those of whom the session is ``start``-ed for.
        """
        if self._closed:
            return

        async def prepare(record: Record) -> Record:
            return await self._prepared(record, scope)

        if self._spooling is None:
            session_spool = SessionSpool(spool, scope, self._clock, self._counters)
            self._spooling = Spooling(self._backlog, session_spool, prepare, self._clock, self._counters)
        elif scope != self._spool_scope:
            self._unbound = self._spool_scope
            self._spooling.belongs_to(scope, prepare)
        self._spool_scope = scope

    def store_is_away(self) -> None:
        """It can't be opened, or does not answer: the next turns don't wait for it."""
        self._backlog.away = True
        self._backlog.notify()

    def record(self, record: Record) -> None:
        """Take a record to be stored; returns at once. Beyond ``RECORD_QUEUE_MAX`` waiting ones it is lost, counted."""
        if self._closed or not self._backlog.add(record):
            self._counters.add("record.lost")
            logger.error(
                "a turn was not recorded (id %s): %s",
                record.id,
                "the session is closed" if self._closed else "too many wait; is the store (REDIS_URL) away?",
            )
            return
        self._counters.add("record.queued")

    async def durable(self, timeout_s: float) -> bool:
        """Wait until everything recorded so far is stored or on disk, ``timeout_s`` at most. False: it isn't, or some
        was lost.

        Where neither store nor disk takes anything, that is waited for once and not again until one of them does. True
        as well while another process records this session: storing it is up to that one.
        """
        backlog, spooling = self._backlog, self._spooling
        lost, target = backlog.lost, backlog.total
        # As a rule it was long ago: then the reply's first frame waits for no other task of a busy loop.
        if backlog.settled < target and (not backlog.away or (spooling is not None and spooling.works)):
            await finished_within(self._settle(target), self._clock, timeout_s)
            backlog.away = backlog.away or backlog.settled < target
        return backlog.silent or (backlog.settled >= target and backlog.lost == lost)

    async def stored(self, timeout_s: float) -> bool:
        """Wait until everything recorded so far is in the store, ``timeout_s`` at most; whether it is."""
        lost, target = self._backlog.lost, self._backlog.total
        await finished_within(self._settle(target, and_emptied=True), self._clock, timeout_s)
        settled = self._backlog.settled >= target and not self._on_disk
        return self.silent or (settled and self._backlog.lost == lost)

    async def aclose(self, timeout_s: float = SHUTDOWN_FLUSH_S) -> None:
        """Store what still waits, within ``timeout_s``; what can't be is counted, logged by id and dropped.

        The lease ends with it, so that the session can be gone on with at once.
        """
        if not self._closed:
            self._closed = True
            await self._flush(timeout_s)
        if self._task is not None:
            self._task.cancel()
            await done_within(self._task, self._clock, STORE_TIMEOUT_S)  # not for a disk that hangs
        if self._spooling is not None:
            await self._spooling.aclose()
        await self._release()
        if self._backlog and not self.silent:
            left = self._backlog.first(RECORD_QUEUE_MAX)
            self._counters.add("record.lost", len(left))
            logger.error(
                "%d turns were not stored before the session's end: %s. Was the store (REDIS_URL) away?",
                len(left),
                ", ".join(waiting.record.id for waiting in left),
            )
        self._backlog.clear()

    async def _flush(self, timeout_s: float) -> None:
        if self._task is None and self._spooling is None:
            return
        deadline = Deadline(self._clock, timeout_s * 1_000)
        await finished_within(self._settle(self._backlog.total), self._clock, timeout_s)
        if self._task is not None:
            # A store that was only just opened counts as away while it takes what has waited for it.
            patience_s = STORE_TIMEOUT_S if self._backlog.away else timeout_s
            await self.stored(min(deadline.remaining_s(), patience_s))

    async def _release(self) -> None:
        if self._place is None or self._claimed_at_s is None or self._backlog:
            return
        (sessions, scope), self._place = self._place, None
        try:
            await self._attempt(sessions.release(self._leased, scope, writer=self._writer), STORE_TIMEOUT_S)
        except Exception as error:
            logger.warning("the session's lease could not be given up (%s); it lapses", type(error).__name__)

    async def _settle(self, target: int, *, and_emptied: bool = False) -> None:
        """Return once so many records have left the backlog (and the spool is empty), or nobody will see to it."""
        while self._backlog.settled < target or (and_emptied and self._on_disk):
            if self.silent or (self._task and self._task.done()):
                return
            await self._backlog.changed()

    async def _run(self, sessions: Sessions, scope: Scope) -> None:
        retry_s, told = _RETRY_S_MIN, ""
        while True:
            try:
                await self._step(sessions, scope)
                retry_s, told, self._backlog.away = _RETRY_S_MIN, "", False
                continue
            except NotTheWriter:
                await self._stand_by()
                continue
            except SessionOwnership:
                # Another user's, such as a room that is used again: a session of its own, so that nothing mixes.
                self.session_id = new_id()
                self._entries.clear()
                self._counters.add("record.session_renamed")
                logger.warning("the session id belongs to another user; the turns go into a session of their own")
                if retry_s == _RETRY_S_MIN:
                    retry_s *= 2
                    continue
            except _AWAY:
                self._counters.add("record.retries")
                self._claimed_at_s = None  # it may have forgotten the lease
                self.store_is_away()
            except Exception as error:
                self._counters.add("record.errors")
                reason = str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
                if reason != told:  # until it is mended, once is enough
                    logger.error("turns can't be stored just now, and are tried again: %s", reason)
                told = reason
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RECORD_RETRY_S_MAX)

    async def _step(self, sessions: Sessions, scope: Scope) -> None:
        """Renew the lease if it is time, then store what is oldest, or wait until there is something or it is time.

        What is on disk is oldest: what an ended process has left of this user, then this session's own.
        """
        if self._takes_over is not None:
            await self._attempt(sessions.release(self._leased, scope, writer=self._takes_over))
            self._takes_over = None
        now_s = self._clock.monotonic()
        if self._claimed_at_s is None or now_s - self._claimed_at_s >= WRITER_HEARTBEAT_S:
            state = await self._claimed(sessions, scope)
            self._claimed_at_s = now_s
            self._check_kept(state.known)
            self._speak_again()
        if (first := self._backlog.oldest) is not None:  # those behind it wait meanwhile, and not once more each
            await self._way.free(first.since_s + RECORD_COURTESY_S - now_s)
        spool = None
        if self._spooling is not None:
            spool = self._spooling.spool
            await self._spooling.settled()
        oldest = self._backlog.oldest
        if not self._looked_for_left:
            await self._look_for_left(spool, sessions, scope)
        if spool is not None and spool.waiting:
            await spool.replay(lambda record: self._store(sessions, scope, record), scope)
            self._backlog.notify()
        elif oldest is not None:
            await self._store(sessions, scope, oldest.record)
            self._backlog.leave(oldest)
        else:
            await self._backlog.changed_within(self._claimed_at_s + WRITER_HEARTBEAT_S - now_s)

    @property
    def _leased(self) -> str:
        return self._lease_id or self.session_id

    @property
    def _fence(self) -> str | None:
        """Who appends, where the lease on the session itself says who may."""
        return self._writer if self._lease_id is None else None

    async def _claimed(self, sessions: Sessions, scope: Scope) -> SessionState:
        if self._lease_id is not None:
            with contextlib.suppress(SessionOwnership):  # it was another user's room: there is nobody to keep out of it
                await self._attempt(sessions.claim(self._lease_id, scope, writer=self._writer))
        return await self._attempt(sessions.claim(self.session_id, scope, writer=self._fence))

    def _check_kept(self, known: bool) -> None:
        """Say what the store may have lost, in an outage or in a restart that nobody noticed: it no longer knows a
        session that had turns."""
        if self._entries and not known:
            self._counters.add("record.forgotten", len(self._entries))
            logger.error(
                "The store has forgotten this session (restarted without an append-only file?). Of its turns only those"
                " are kept that were in the archive by then: %s",
                ", ".join(self._entries),
            )
            self._entries.clear()

    async def _look_for_left(self, spool: SessionSpool | None, sessions: Sessions, scope: Scope) -> None:
        try:
            if spool is not None:
                for left in filter(None, (scope, self._unbound)):
                    await replay_left(spool.spool, sessions, self._counters, self._clock, scope=left, owner=scope)
        except SpoolUnusable as error:
            self._counters.add("spool.errors")
            logger.error("turns that an ended process has left stay in the spool: %s", error)
        self._looked_for_left = True
        self._backlog.notify()

    async def _store(self, sessions: Sessions, scope: Scope, record: Record) -> None:
        """Append ``record``, or give it up where the store refuses it and nothing else.

        Raises:
            NotTheWriter, SessionOwnership, StoreUnavailable, StoreFault, OSError: it is still to be stored.
        """
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                prepared = await self._prepared(record, scope)
                appended = await self._attempt(sessions.append(scope, prepared, writer=self._fence))
                self._counters.add("record.stored" if appended.stored else "record.repeated")
                self._check_kept(not appended.first)
                if isinstance(prepared, MemoryEntry):
                    self._entries.append(prepared.id)
                return
            except (NotTheWriter, *_AWAY):
                raise
            except Exception as error:
                self._counters.add("record.errors")
                if attempt < _ATTEMPTS_MAX:
                    await self._clock.sleep(_RETRY_S_MIN * attempt)
                    continue
                if isinstance(error, StoreFault):
                    self._claimed_at_s = None
                    await self._claimed(sessions, scope)  # such as other credentials: that is no fault of the record
                self._backlog.lost += 1
                self._counters.add("record.lost")
                logger.error("a turn can't be stored (id %s, %s)", record.id, type(error).__name__)

    async def _prepared(self, record: Record, scope: Scope) -> Record:
        if isinstance(record, MemoryEntry):
            return await self._intake.entry_aside(record, scope, self.session_id)
        return self._intake.event(record, scope, self.session_id)

    async def _attempt(self, call: Coroutine[Any, Any, _T], timeout_s: float = RECORD_TIMEOUT_S) -> _T:
        """``call``, for ``timeout_s`` at most; it may have had its effect all the same.

        Raises:
            TimeoutError: no answer in time.
        """
        task = asyncio.ensure_future(call)
        try:
            if await done_within(task, self._clock, timeout_s):
                return task.result()
            raise TimeoutError
        finally:
            await cancelled(task)

    async def _stand_by(self) -> None:
        """Another process records this session. Keep only what it could not store any more if it is dead by now."""
        self._claimed_at_s = None
        if not self.silent:
            self._backlog.silent = True
            self._counters.add("record.not_the_writer")
            logger.warning("another process records this session; this one stays silent unless that one ends")
            self._backlog.notify()
        await self._clock.sleep(WRITER_HEARTBEAT_S)
        oldest_s = self._clock.monotonic() - WRITER_LEASE_S - 2 * WRITER_HEARTBEAT_S
        while (oldest := self._backlog.oldest) is not None and oldest.since_s < oldest_s:
            self._backlog.leave(oldest)

    def _speak_again(self) -> None:
        if self.silent:
            self._backlog.silent = False
            self._counters.add("record.taken_over")
            logger.warning("the process that recorded this session has ended; this one goes on")
