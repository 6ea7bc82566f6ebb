"""From the spool into the session store, in order, once in effect: a session's own turns, and what dead ones left.

A record leaves the spool when the store has acknowledged it; a file goes when it has all of them. Ids make repetitions
harmless, since whose a file is is certain before its first record is stored. Above: recorder, plugin, the recall host.
Below: spool, ports.
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
from memory.limits import RECORD_TIMEOUT_S, SPOOL_REPLAY, SPOOL_SCAN_S
from memory.models import Record, Scope, record_from_dict
from memory.ports import Appended
from memory.retrieval.tasks import to_the_end
from memory.spool import Spool
from memory.spool_file import Batch, SpoolFile, id_of
from memory.spool_frames import Spooled

logger = logging.getLogger("memory.spool")

Store = Callable[[Record], Awaitable[None]]


class Sessions(Protocol):
    """Where the turns go: a session store."""

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> object: ...

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended: ...


class SessionSpool:
    """The spool of one session's recorder: turns that wait on disk. No file until the first of them; ``aclose`` it.

    One task appends and moves, one replays. ``scope``: whose they are; ``for_good``: and will be. ``waiting``: how many
    records are there, some of them perhaps stored by now.
    """

    def __init__(self, spool: Spool, scope: Scope, clock: Clock, counters: Counters) -> None:
        self.spool, self.scope, self.for_good = spool, scope, False
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
        file = self.spool.create(self.scope, for_good=self.for_good)
        self._files.append(file)
        file.append(items)

    async def move(self, scope: Scope) -> None:
        """It is known now whose they are: whoever looks for ``scope``'s finds what is there.

        Raises:
            SpoolUnusable: it can't be done now; nothing is lost.
        """
        async with self._one_reads:
            for file in tuple(self._files):
                await to_the_end(self._bind, file, scope)
            self.scope = scope

    def _bind(self, file: SpoolFile, scope: Scope) -> None:
        with file.gate.shared(), self.spool.gate(scope).shared():
            self.spool.bind(file, scope, for_good=self.for_good)

    async def replay(self, store: Store, scope: Scope) -> None:
        """Give the oldest records, ``SPOOL_REPLAY`` at most, to ``store``: to be stored as ``scope``'s, or given up.

        Raises:
            StoreUnavailable: an erasure in the spool takes long.
            Exception: what ``store`` raises: that record and those after it wait on.
        """
        file = self._files[0]

        async def one(item: Spooled) -> None:
            await store(item.record)

        try:
            async with self._one_reads:
                gone = await _replayed(self.spool, file, scope, one, self._counters)
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

    ``owner``: who ``scope`` has turned out to be; a file of which nothing was stored yet becomes theirs. Without a
    ``scope``, turns of callers who were not known are left for ``SPOOL_UNBOUND_S`` to who goes on with their session.
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
            store = _Storing(sessions, file, counters)
            while not await _replayed(spool, file, owner, store.one, counters):
                await clock.sleep(0)
            done += 1
            counters.add("spool.files_replayed")
            logger.warning("turns that an ended process had left in the spool are stored now (%d)", store.stored)
        except SpoolUnusable as error:
            unread = error
        finally:
            await asyncio.to_thread(file.close)
    if unread is not None:
        raise unread
    return done


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
    """Stores one dead file's records under nobody's lease: a session that has gone on elsewhere keeps its own."""

    def __init__(self, sessions: Sessions, file: SpoolFile, counters: Counters) -> None:
        self._sessions, self._counters = sessions, counters
        self._file_id = id_of(file.path)
        self._session_ids: dict[tuple[str, Scope], str] = {}
        self.stored = 0

    async def one(self, item: Spooled) -> None:
        """Raises StoreUnavailable, and StoreFault where not even a session can be claimed: nothing is given up."""
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
                session_id = hashlib.sha256(f"{self._file_id}/{session_id}".encode()).hexdigest()[:32]
                await _timed(self._sessions.claim(session_id, item.scope))
            self._session_ids[asked] = session_id
        return self._session_ids[asked]


async def _replayed(
    spool: Spool, file: SpoolFile, owner: Scope | None, store: Callable[[Spooled], Awaitable[None]], counters: Counters
) -> bool:
    """Store a file's next records, as ``owner``'s where nobody was known; whether these were the last, and the file is
    gone."""
    with contextlib.ExitStack() as passing:
        try:
            for gate in (file.gate, *((spool.gate(owner),) if owner is not None else ())):
                await to_the_end(passing.enter_context, gate.shared())
        except SpoolUnusable as error:
            raise StoreUnavailable(str(error)) from None
        try:
            await to_the_end(spool.bind, file, owner, for_good=True)
        except SpoolUnusable as error:  # they are stored all the same
            counters.add("spool.errors")
            logger.error("it can't be written down whose a file of the spool is (%s): %s", file.path.name, error)
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


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
