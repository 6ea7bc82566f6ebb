"""From the spool into the session store, in order, once in effect: a session's own turns, and what dead ones left.

A record leaves the spool when the store has acknowledged it; a file goes when it has all of them. Ids make repetitions
harmless. Above: recorder, plugin, the recall host. Below: spool, ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import SessionOwnership, SpoolUnusable, StoreFault, StoreUnavailable, VoiceMemoryError
from memory.limits import RECORD_TIMEOUT_S, SPOOL_BATCH, SPOOL_REPLAY, SPOOL_SCAN_S
from memory.models import Record, Scope, record_from_dict
from memory.ports import Appended
from memory.retrieval.tasks import to_the_end
from memory.spool import Batch, Gate, Spool, SpoolFile
from memory.spool_frames import Spooled

logger = logging.getLogger("memory.spool")

Store = Callable[[Record], Awaitable[None]]


class Sessions(Protocol):
    """Where the turns go: a session store."""

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> object: ...

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended: ...


class SessionSpool:
    """The spool of one session's recorder: turns that wait on disk. No file until the first of them; ``aclose`` it.

    One task appends and moves, one replays. ``scope``: whose they are. ``waiting``: how many records are there, some of
    them perhaps stored by now.
    """

    def __init__(self, spool: Spool, scope: Scope, clock: Clock, counters: Counters) -> None:
        self.spool, self.scope = spool, scope
        self._clock, self._counters = clock, counters
        self._files: list[SpoolFile] = []
        self._one_reads = asyncio.Lock()

    @property
    def waiting(self) -> int:
        return sum(file.records for file in self._files)

    async def append(self, records: Sequence[Record]) -> None:
        """Put prepared records on the disk, all or none; durable when this returns.

        Raises:
            SpoolUnusable: it takes no more.
        """
        now = self._clock.now()
        await to_the_end(self._append, [Spooled(self.scope, now, record) for record in records])
        self._counters.add("record.spooled", len(records))

    def _append(self, items: Sequence[Spooled]) -> None:
        if self._files and self._files[-1].append(items):
            return
        file = self.spool.create(self.scope)
        self._files.append(file)
        file.append(items)

    async def move(self, scope: Scope) -> None:
        """It is known now whose they are: put what is there where whoever looks for ``scope``'s finds it.

        Raises:
            SpoolUnusable: it can't be done now; nothing is lost.
        """
        async with self._one_reads:
            if self._files:
                await to_the_end(self._move, scope)
            self.scope = scope

    def _move(self, scope: Scope) -> None:
        before, left = self.scope, self._files
        with self.spool.gate(scope).shared():  # what is on its way is in the new place before an erasure looks there
            self._files, self.scope = [], scope
            try:
                while left:
                    batch = left[0].batch(SPOOL_BATCH)
                    if batch.records:
                        self._append([Spooled(scope, item.at, _of_user(item.record, scope)) for item in batch.records])
                    _tell_damage(batch, self._counters)
                    if left[0].passed(batch.end):
                        left.pop(0)
            except BaseException:
                self.scope = before
                raise
            finally:
                self._files += left

    async def replay(self, store: Store) -> None:
        """Give the oldest records, ``SPOOL_REPLAY`` at most, to ``store``, which stores them or gives them up.

        Raises:
            StoreUnavailable: an erasure in the spool takes long.
            Exception: what ``store`` raises: that record and those after it wait on.
        """
        file = self._files[0]

        async def one(item: Spooled) -> None:
            await store(item.record)

        try:
            async with self._one_reads:
                gone = await _replayed(file, one, self._counters, self.spool.gate(self.scope))
        except SpoolUnusable as error:
            # It may be read later, by another; what is said from now on is not held up.
            self._counters.add("spool.errors")
            logger.error("turns stay in a file of the spool (%s): %s", file.path.name, error)
            await asyncio.to_thread(file.close)
            gone = True
        if gone and file in self._files:
            self._files.remove(file)

    async def aclose(self) -> None:
        """Let go of the files; what still waits is stored by whoever comes next. Idempotent."""
        for file in self._files:
            await asyncio.to_thread(file.close)


async def replay_left(
    spool: Spool,
    sessions: Sessions,
    counters: Counters,
    clock: Clock,
    *,
    scope: Scope | None = None,
    owner: Scope | None = None,
) -> int:
    """Store what dead processes have left in the spool, of one user if given; returns how many files that were.

    ``owner``: who ``scope`` has turned out to be, to be stored as theirs. Without a ``scope``, turns of callers who
    were not known are left for ``SPOOL_UNBOUND_S`` to whoever goes on with their session.
    Files that another process replays, or whose writer lives, are left to it; so are those that can't be read.

    Raises:
        StoreUnavailable: the store is away; what was not stored stays.
        SpoolUnusable: a file can't be read; the others were.
    """
    done, unread = 0, None
    for path in await asyncio.to_thread(spool.files, scope):
        if scope is None and not await asyncio.to_thread(spool.is_anybodys, path):
            continue
        file = await asyncio.to_thread(spool.adopt, path)
        if file is None:
            continue
        try:
            bound = (scope, owner) if scope is not None and owner is not None else None
            gate = spool.gate(owner) if owner is not None else None
            done += await _adopted(file, _Storing(sessions, file, counters, bound), gate, counters, clock)
        except SpoolUnusable as error:
            unread = error
        finally:
            await asyncio.to_thread(file.close)
    if unread is not None:
        raise unread
    return done


async def _adopted(file: SpoolFile, store: _Storing, gate: Gate | None, counters: Counters, clock: Clock) -> int:
    while not await _replayed(file, store.one, counters, gate):
        await clock.sleep(0)
    counters.add("spool.files_replayed")
    logger.warning("turns that an ended process had left in the spool are stored now (%d)", store.stored)
    return 1


class Replayer:
    """Looks for spools that dead processes have left, every ``SPOOL_SCAN_S``: ``run`` until cancelled."""

    def __init__(self, spool: Spool, sessions: Sessions, clock: Clock, counters: Counters) -> None:
        self._spool, self._sessions, self._clock, self._counters = spool, sessions, clock, counters
        self._told = False
        self.files = 0

    async def run(self) -> None:
        while True:
            try:
                await replay_left(self._spool, self._sessions, self._counters, self._clock)
                self.files = len(await asyncio.to_thread(self._spool.files))
                self._told = False
            except Exception as error:
                self._counters.add("spool.errors")
                if not self._told:
                    logger.warning("The spool's turns wait on: %s", _reason(error))
                self._told = True
            await self._clock.sleep(SPOOL_SCAN_S)


class _Storing:
    """Stores one dead file's records under nobody's lease: a session that has gone on elsewhere keeps its own.

    ``bound``: whose they are said to be, and who that has turned out to be.
    """

    def __init__(
        self, sessions: Sessions, file: SpoolFile, counters: Counters, bound: tuple[Scope, Scope] | None = None
    ) -> None:
        self._sessions, self._counters, self._bound = sessions, counters, bound
        self._name = file.path.name
        self._session_ids: dict[tuple[str, Scope], str] = {}
        self.stored = 0

    async def one(self, item: Spooled) -> None:
        """Raises StoreUnavailable, and StoreFault where not even a session can be claimed: nothing is given up."""
        if self._bound is not None and item.scope == self._bound[0]:
            item = Spooled(self._bound[1], item.at, _of_user(item.record, self._bound[1]))
        record = _of_session(item.record, await self._claimed(item))
        try:
            await _timed(self._sessions.append(item.scope, record))
        except StoreFault as error:
            # Where all is refused by now, such as for other credentials, that is no fault of the record.
            await _timed(self._sessions.claim(record.session_id, item.scope))
            self._counters.add("record.lost")
            logger.error("a turn of the spool can't be stored (id %s): %s", record.id, error)
            return
        self.stored += 1

    async def _claimed(self, item: Spooled) -> str:
        asked = (item.record.session_id, item.scope)
        if asked not in self._session_ids:
            session_id = asked[0]
            try:
                await _timed(self._sessions.claim(session_id, item.scope))
            except SessionOwnership:
                # Another user's by now, such as a room used again: one of its own, and the same one each time.
                session_id = hashlib.sha256(f"{self._name}/{session_id}".encode()).hexdigest()[:32]
                await _timed(self._sessions.claim(session_id, item.scope))
            self._session_ids[asked] = session_id
        return self._session_ids[asked]


async def _replayed(
    file: SpoolFile, store: Callable[[Spooled], Awaitable[None]], counters: Counters, gate: Gate | None
) -> bool:
    """Store a file's next records; whether these were the last, and the file is gone. ``gate``: of whom they become."""
    with contextlib.ExitStack() as passing:
        try:
            for each in filter(None, (file.gate, gate)):
                await to_the_end(passing.enter_context, each.shared())
        except SpoolUnusable as error:
            raise StoreUnavailable(str(error)) from None
        batch = await asyncio.to_thread(file.batch, SPOOL_REPLAY)
        for item in batch.records:
            await store(item)
        _tell_damage(batch, counters)
        return await to_the_end(file.passed, batch.end)


def _tell_damage(batch: Batch, counters: Counters) -> None:
    if batch.damaged:
        counters.add("spool.damaged", batch.damaged)
        logger.error("a part of the spool is damaged: what was in %d places of a file is lost", batch.damaged)


async def _timed(call: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(RECORD_TIMEOUT_S):
            await call
    except OSError as error:
        raise StoreUnavailable(f"The store is away ({type(error).__name__}).") from None


def _of_session(record: Record, session_id: str) -> Record:
    if record.session_id == session_id:
        return record
    return record_from_dict({**record.to_dict(), "session_id": session_id})


def _of_user(record: Record, scope: Scope) -> Record:
    user_id = scope.user_id if scope.kind == "user" else ""
    return record if record.user_id == user_id else record_from_dict({**record.to_dict(), "user_id": user_id})


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
