"""One user's index, kept current: loaded from snapshot and archive, then led along the log, and dropped when erased.

Above: engine. Below: held, keeping, following_facts, ports. Belongs to one event loop; one catch-up runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from memory.clock import Clock
from memory.errors import StoreUnavailable
from memory.knowledge_ports import FactSource
from memory.limits import ARCHIVE_READ_CHARS_MAX, EMBED_NEWEST_MAX, LOG_READ_MAX, RECALL_TURNS_MAX
from memory.models import MemoryEntry, Record, Scope
from memory.ports import ArchiveStore, DamagedRecord, LogRecord, LogSlice, Selection, TurnLog
from memory.retrieval.embedding import EmbedDesk
from memory.retrieval.following_facts import FollowedFacts
from memory.retrieval.held import HeldTurns, Retired
from memory.retrieval.index import UserIndex
from memory.retrieval.indexing import add_all, as_turn, common_vectors, remove_selected
from memory.retrieval.keeping import Kept, read_kept
from memory.retrieval.snapshot import dump
from memory.retrieval.snapshot_files import SnapshotHeader, SnapshotStore
from memory.retrieval.tasks import end_all, to_the_end

__all__ = ["FollowedUser", "Retired", "Sources"]

logger = logging.getLogger(__name__)

_ARCHIVE_READ = 200  # records a read: the rows of one are made into objects in one go, on the loop
_ADDED_AT_ONCE = 32  # turns indexed while the gate is held: a few milliseconds
_ADDED_INLINE_CHARS = 2_000  # more text than this (about a millisecond of work) is indexed in a thread


@dataclass(frozen=True, slots=True)
class Sources:
    """Where turns and facts come from and where indexes are kept. ``snapshots`` is ``None`` where none are, ``facts``
    where there are none to be had."""

    log: TurnLog
    archive: ArchiveStore
    snapshots: SnapshotStore | None
    desk: EmbedDesk
    clock: Clock
    facts: FactSource | None = None


class FollowedUser(HeldTurns):
    """The index of one user and how far it has read.

    ``verified`` > n says: since ``tick()`` returned n, the log has confirmed that no erasure has made this index
    void. Only then may it be searched.
    """

    def __init__(self, scope: Scope, key: bytes, sources: Sources) -> None:
        super().__init__()
        self.scope, self._key, self._sources = scope, key, sources
        self.retired = False
        self.ailing = False  # the last catch-up failed, or was waited for in vain
        self.users = 0  # recalls that hold this now
        self.used_s = self.changed_s = self.saved_s = self.read_s = sources.clock.monotonic()
        self.not_saved_before_s = float("-inf")  # where the last attempt failed
        self.unsaved = 0  # turns and vectors that the snapshot lacks
        self.verified = 0
        self._ticks = 0
        self._epoch: int | None = None  # None: nothing is loaded
        self._position, self._cursor = "", 0
        self._bridged: str | None = None  # the gap before this position was filled from the archive
        self._model = ""  # whose vectors the index has
        self._behind = False  # records may lie in the archive that are not in the index
        self._ahead: str | None = None  # how far the log was read without the archive, which was away
        self._before: UserIndex | None = None  # the index before an erasure, for the vectors of what is left
        self._generation = 0
        self._run: asyncio.Task[None] | None = None
        self._begun = 0
        self.facts = FollowedFacts(scope, key, sources.facts, sources.desk, sources.clock, self._changed)

    # -- what the engine asks

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the engine from dropping it for want of room."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.used_s = self._sources.clock.monotonic()

    @property
    def state(self) -> str:
        """What changes with every erasure and every change of the facts."""
        return f"{self._epoch}/{self.facts.version}"

    @property
    def unknown(self) -> bool:
        """Log and archive were read, and nothing of this user is there."""
        return self.settled and not self._position and not self._cursor and not self.index and not self.facts

    @property
    def settled(self) -> bool:
        """Loaded as a whole, and nothing is being read right now."""
        reading = self._run is not None and not self._run.done()
        return self._epoch is not None and not self._behind and not reading and self.facts.settled

    def current(self) -> Coroutine[Any, Any, None]:
        """Return once a catch-up that began after this call has ended: what was appended before is in the index.

        It begins with the call, not when it is awaited.

        Raises:
            StoreUnavailable: the log or the archive is away.
            Retired: the index was dropped meanwhile.
        """
        wanted = self._begun + 1
        self._begin()
        return self._reached(wanted)

    def _begin(self) -> None:
        if self._run is None or self._run.done():
            self._begun += 1
            self.read_s = self._sources.clock.monotonic()
            self._run = asyncio.create_task(self._catch_up())
            self._run.add_done_callback(_looked_at)

    async def _reached(self, wanted: int) -> None:
        while True:
            self._begin()
            run, number = self._run, self._begun
            assert run is not None
            await asyncio.wait((run,))
            if self.retired or run.cancelled():
                raise Retired
            if number >= wanted:
                return run.result()

    async def forget(self, selection: Selection) -> int:
        """Drop what is meant; returns how many turns that were. What is left is read anew, under the new epoch."""
        async with self._gate:
            index = self.index
            if selection.what == "all" or index is None:
                self.retire()
                return 0 if index is None else len(index)
            gone = await to_the_end(remove_selected, index, selection)
            self._expire()
            return gone

    def retire(self) -> None:
        """Drop everything; whoever waits gets ``Retired``."""
        self.retired = True
        self._expire()
        self._before = None
        if self._run is not None:
            self._run.cancel()

    async def save(self) -> bool:
        """Write a snapshot; False where it isn't worth it, or an erasure came in between.

        Raises:
            OSError: it can't be written.
            StoreUnavailable: the log is away.
        """
        snapshots = self._sources.snapshots
        async with self._gate:
            index, epoch, unsaved, generation = self.index, self._epoch, self.unsaved, self._generation
            if snapshots is None or index is None or epoch is None or self._behind or not unsaved:
                return False
            header = SnapshotHeader(self.scope, snapshots.origin, epoch, self._position, self._cursor, self._model)
            body = await to_the_end(
                dump, index, self._key, position=header.position, epoch=header.epoch, model=header.model
            )
        facts = await self.facts.dump(epoch=epoch, model=header.model)
        header = replace(header, facts_at=len(body) if facts else 0)
        if not await snapshots.write(header, body + facts, still_wanted=lambda: generation == self._generation):
            return False
        # An erasure by somebody else, who found no file to remove: theirs came before this one's end.
        head = await self._sources.log.read(self.scope, after="", limit=0)
        if head.epoch != epoch:
            await snapshots.remove(self.scope)
            return False
        self.unsaved = max(0, self.unsaved - unsaved)
        self.saved_s = self._sources.clock.monotonic()
        return True

    async def close(self) -> None:
        """End what runs. Idempotent."""
        self.retire()
        await end_all((self._run,))
        await self.facts.close()

    # -- reading

    async def _catch_up(self) -> None:
        while True:
            if self.retired:
                raise Retired
            if self._epoch is None:
                await self._open()
            if self._behind:
                await self._past_archive()
            elif await self._read_log():
                break
        await self._carry_vectors()
        await self._shorten()
        self.ailing = False

    async def _open(self) -> None:
        """Begin anew: from the snapshot if it is of this epoch, else with nothing and the archive before us."""
        self._expire()
        generation, begun = self._generation, self.tick()
        head = await self._sources.log.read(self.scope, after="", limit=0)
        found = await self._from_snapshot(head.epoch)
        if generation != self._generation:
            return
        if found is None:
            self.index = UserIndex(self._key, self._sources.desk.dimension)
            self._position, self._cursor, self._model = "", 0, self._sources.desk.model
        else:
            self.index, header = found.index, found.header
            self._position, self._cursor, self._model = header.position, header.cursor, header.model
        self.facts.open(None if found is None else found.facts)
        self._epoch, self._behind, self.verified, self.unsaved = head.epoch, found is None, begun, 0

    async def _from_snapshot(self, epoch: int) -> Kept | None:
        snapshots, desk = self._sources.snapshots, self._sources.desk
        if snapshots is None:
            return None
        now = self._sources.clock.now()
        return await read_kept(snapshots, self.scope, self._key, epoch=epoch, model=desk.model, now=now)

    async def _past_archive(self) -> None:
        """Read the archive; while it is away, what the log holds can be found all the same.

        Raises:
            StoreUnavailable: it is away.
        """
        try:
            if self._ahead is None:
                await self._read_archive()
            else:
                await self._sources.archive.position(self.scope)  # it is there again:
                self._expire()  # all is read anew, in its order
        except StoreUnavailable:
            await self._read_ahead()
            raise

    async def _read_ahead(self) -> None:
        while not self.retired:
            generation, begun = self._generation, self.tick()
            after = self._position if self._ahead is None else self._ahead
            part = await self._sources.log.read(self.scope, after=after, limit=LOG_READ_MAX)
            if generation != self._generation or not self._check(part, begun):
                return
            if not await self._add([each.record for each in part.records], generation, just_said=True):
                return
            came, self._ahead = _last_of(part), after
            if came <= after:
                return
            self._ahead = came

    async def _read_archive(self) -> None:
        """Everything after the cursor. Afterwards the log is read on from the last record's position."""
        while not self.retired:
            generation = self._generation
            rows = await self._sources.archive.read(self.scope, after=self._cursor, limit=_ARCHIVE_READ)
            news = self._bridged is not None
            if not await self._add([row.record for row in rows], generation, just_said=news):
                return
            if rows:
                self._cursor = rows[-1].cursor
                self._position = max(self._position, rows[-1].position)
            said = sum(len(row.record.content) for row in rows if isinstance(row.record, MemoryEntry))
            if len(rows) < _ARCHIVE_READ and 2 * said <= ARCHIVE_READ_CHARS_MAX:
                self._behind = False
                return
            # What is there already may be searched when a budget ends; so see that it still may.
            await self._read_head(generation)

    async def _read_head(self, generation: int) -> None:
        begun = self.tick()
        head = await self._sources.log.read(self.scope, after="", limit=0)
        if generation == self._generation:
            self._check(head, begun)

    async def _read_log(self) -> bool:
        """The next part of the log; True when there was nothing after it."""
        generation, begun = self._generation, self.tick()
        part = await self._sources.log.read(self.scope, after=self._position, limit=LOG_READ_MAX)
        if generation != self._generation or not self._check(part, begun):
            return False
        came: list[LogRecord | DamagedRecord] = [*part.records, *part.damaged]
        came.sort(key=lambda each: each.position)
        before = came[0].previous if came else part.last
        if before not in (self._position, self._bridged):
            # Trimmed before we read it, so the archive has it. What it does not have then, it never will.
            self._bridged, self._behind = before, True
            return False
        if not await self._add([each.record for each in part.records], generation, just_said=True):
            return False
        if not came or came[-1].position <= self._position:
            return True
        self._position = came[-1].position
        return self._position >= part.last

    def _check(self, part: LogSlice, begun: int) -> bool:
        if part.epoch != self._epoch:
            self._expire()
            return False
        self.verified = begun
        self.facts.announced(part.facts)
        return True

    def _expire(self) -> None:
        """The index may not be searched any more, and what is being read for it is of no use."""
        self._generation += 1
        self._before = self.index if self.index is not None else self._before
        self.index, self._epoch, self._bridged, self._ahead, self.verified = None, None, None, None, 0
        self.just_said.clear()
        self.facts.drop(for_good=self.retired)

    # -- the index

    async def _add(self, records: Iterable[Record], generation: int, *, just_said: bool = False) -> bool:
        """Index what was said. False: the index was dropped meanwhile."""
        turns = [turn for record in records if (turn := as_turn(record)) is not None]
        for start in range(0, len(turns), _ADDED_AT_ONCE):
            async with self._gate:
                if generation != self._generation or self.index is None:
                    return False
                some = turns[start : start + _ADDED_AT_ONCE]
                if sum(len(turn.text) for turn in some) <= _ADDED_INLINE_CHARS:
                    add_all(self.index, some)
                else:
                    await to_the_end(add_all, self.index, some)
            await asyncio.sleep(0)
        self._changed(len(turns))
        if just_said:
            self.just_said.extend(turn.id for turn in turns[-EMBED_NEWEST_MAX:])
        return generation == self._generation

    def _changed(self, count: int) -> None:
        if count:
            self.unsaved += count
            self.changed_s = self._sources.clock.monotonic()

    async def _carry_vectors(self) -> None:
        """After an erasure: what is left has its vectors already."""
        before, self._before = self._before, None
        if before is None or before.vectors is None or self.index is None or self.index.vectors is None:
            return
        if before.vectors.dimension != self.index.vectors.dimension:
            return
        for ids, vectors in common_vectors(before, self.index):
            await self.set_vectors(ids, vectors)
            await asyncio.sleep(0)

    async def _shorten(self) -> None:
        """Keep within ``RECALL_TURNS_MAX``: the oldest go; they are in the archive."""
        async with self._gate:
            index = self.index
            if index is not None and len(index) > RECALL_TURNS_MAX:
                await to_the_end(index.remove, index.ids()[: len(index) - RECALL_TURNS_MAX * 19 // 20])


def _last_of(part: LogSlice) -> str:
    ends = [items[-1].position for items in (part.records, part.damaged) if items]
    return max(ends, default="")


def _looked_at(run: asyncio.Task[None]) -> None:
    # Whoever waits for a catch-up takes its error; where nobody does, it is no news.
    if not run.cancelled():
        run.exception()
