"""Moves every user's log into the archive, whether or not anybody ends a session. Only the archive's word trims a log.

Above: the recall host, tests. Below: ports. Read, store, confirm: each step may be repeated, so that a crash between
any two of them costs a repetition and nothing else, and any number of archivers may run at once. An erasure that comes
between reading and storing is the archive's to notice, in the transaction that stores.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import DataTooNew, StoreFault, StoreUnavailable
from memory.identity import group_digest
from memory.limits import (
    ARCHIVE_BACKOFF_S_MAX,
    ARCHIVE_POLL_IDLE_S,
    ARCHIVE_POLL_S,
    ARCHIVE_STORE_TIMEOUT_S,
    ARCHIVE_USERS_MAX,
    AWAY_IN_A_ROW,
    LOG_READ_MAX,
    RECALL_YIELD_S_MAX,
    STORE_TIMEOUT_S,
)
from memory.models import Scope
from memory.ports import ArchiveStore, DamagedRecord, DeadLetters, LogRecord, LogSlice, TurnLog
from memory.retrieval.deadlines import while_busy

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S = ARCHIVE_STORE_TIMEOUT_S + STORE_TIMEOUT_S  # a store's own deadlines are shorter; this is the last one
_HELD_MAX = 1_024

_T = TypeVar("_T")


class ArchivesAll(ArchiveStore, DeadLetters, Protocol):
    """An archive that also keeps what can't be stored as a record."""


@dataclass
class _Trouble:
    """A user whose log could not be moved: how often in a row, when it is tried again, and how many at a time."""

    tries: int = 0
    until_s: float = 0.0
    limit: int = LOG_READ_MAX


class Archiver:
    """Moves logs into the archive: ``run`` for good, ``drain`` once.

    Counts ``archiver.moved``, ``.stored``, ``.set_aside``, ``.unavailable`` and ``.faults``. What can't be read or
    stored as a record is set aside in the archive, so that it blocks nothing behind it and isn't lost.

    ``busy``: whether somebody in this process is being waited for. ``run`` then holds each user's move back, but only
    in the first ``RECALL_YIELD_S_MAX`` of a round, so that the log is moved under any load; ``drain`` does not.
    ``before_trim`` is awaited before what was moved of a user leaves the log; it must be short, and not raise.
    """

    def __init__(
        self,
        log: TurnLog,
        archive: ArchivesAll,
        clock: Clock,
        counters: Counters | None = None,
        *,
        busy: Callable[[], bool] | None = None,
        before_trim: Callable[[Scope], Awaitable[None]] | None = None,
    ) -> None:
        self._busy, self._before_trim = busy, before_trim
        self.counters = counters or Counters()
        self._log, self._archive, self._clock = log, archive, clock
        self._waiting: dict[Scope, float] = {}  # since when each user's log was seen to wait
        self._trouble: dict[Scope, _Trouble] = {}
        self._tries = 0  # rounds in a row that ended because a store is away

    @property
    def pending_users(self) -> int:
        """Users whose log waited when last looked at; from about ``ARCHIVE_USERS_MAX`` on there may be more."""
        return len(self._waiting)

    @property
    def oldest_age_s(self) -> float:
        """For how long this archiver has seen a log wait without moving anything of it; 0 if none does."""
        return self._clock.monotonic() - min(self._waiting.values(), default=self._clock.monotonic())

    async def run(self) -> None:
        """Move whatever comes, until cancelled. Ends for no error: it is counted, logged, and tried again later."""
        while True:
            moved = 0
            try:
                moved = await self._round()
                self._tries = 0
            except Exception as error:
                self._tries += 1
                self._count(error)
                if self._tries == 1:
                    logger.warning("Turns stay in the log for now; trying again: %s", _reason(error))
            await self._clock.sleep(self._pause_s(moved))

    async def drain(self) -> int:
        """Move what is pending now; returns how many records left the log, set aside ones and repetitions included.

        Raises:
            StoreUnavailable: a store is away, and the rest stays in the log; or for somebody's log alone, of which the
                next one moves less at a time.
            StoreFault: somebody's log could not be moved; everybody else's was.
        """
        moved = away = 0
        done, failure = set[Scope](), None
        while scopes := [scope for scope in await self._pending(len(done)) if scope not in done]:
            for scope in scopes:
                done.add(scope)
                trouble = self._trouble.get(scope) or _Trouble()
                try:
                    moved += await self._move_all(scope, limit=trouble.limit)
                except Exception as error:
                    failure, away = error, away + 1 if isinstance(error, StoreUnavailable) else 0
                    self._hold(scope, trouble, error)
                    if away >= AWAY_IN_A_ROW:
                        raise
                else:
                    away = 0
                    self._relieve(scope, trouble)
        if failure is not None:
            raise failure
        return moved

    def _pause_s(self, moved: int) -> float:
        if self._tries:
            return float(min(ARCHIVE_POLL_S * 2 ** min(self._tries, 16), ARCHIVE_BACKOFF_S_MAX))
        return ARCHIVE_POLL_S if moved else ARCHIVE_POLL_IDLE_S

    # -- users

    async def _pending(self, besides: int) -> list[Scope]:
        scopes = await _timed(self._log.pending(limit=ARCHIVE_USERS_MAX + besides))
        now = self._clock.monotonic()
        self._waiting = {scope: self._waiting.get(scope, now) for scope in scopes}
        return scopes

    async def _round(self) -> int:
        """One batch of each user that waits. One user's trouble is not another's, unless a store is away for all."""
        moved = away = 0
        yields_until_s = self._clock.monotonic() + RECALL_YIELD_S_MAX
        # Those in trouble wait longest, hence come first: ask for as many more.
        scopes = await self._pending(len(self._trouble))
        self._trouble = {scope: trouble for scope, trouble in self._trouble.items() if scope in self._waiting}
        for scope in scopes:
            trouble = self._trouble.get(scope) or _Trouble()
            if trouble.until_s > self._clock.monotonic():
                continue
            if self._busy is not None:
                await while_busy(self._busy, self._clock, yields_until_s)
            try:
                moved += await self._move(scope, limit=trouble.limit)
            except Exception as error:
                away = away + 1 if isinstance(error, StoreUnavailable) else 0
                if away >= AWAY_IN_A_ROW:
                    raise
                self._hold(scope, trouble, error)
            else:
                away = 0
                self._relieve(scope, trouble)
        return moved

    def _hold(self, scope: Scope, trouble: _Trouble, error: Exception) -> None:
        self._count(error)
        trouble.tries += 1
        pause_s = min(ARCHIVE_POLL_S * 2 ** min(trouble.tries, 16), ARCHIVE_BACKOFF_S_MAX)
        trouble.until_s = self._clock.monotonic() + pause_s
        # It may have been too much for one go: a smaller batch needs less time. A refusal needs company to be judged.
        trouble.limit = max(1, trouble.limit // 2) if isinstance(error, StoreUnavailable) else LOG_READ_MAX
        if trouble.tries == 1:
            logger.warning("The log of user %s stays where it is for now: %s", group_digest(scope), _reason(error))
        if len(self._trouble) >= _HELD_MAX and scope not in self._trouble:
            self._trouble.pop(next(iter(self._trouble)))
        self._trouble[scope] = trouble

    def _relieve(self, scope: Scope, trouble: _Trouble) -> None:
        self._waiting.pop(scope, None)
        trouble.tries, trouble.until_s, trouble.limit = 0, 0.0, trouble.limit * 2
        if trouble.limit >= LOG_READ_MAX:
            self._trouble.pop(scope, None)

    def _count(self, error: Exception) -> None:
        self.counters.add("archiver.unavailable" if isinstance(error, StoreUnavailable) else "archiver.faults")

    # -- records

    async def _move_all(self, scope: Scope, *, limit: int) -> int:
        """Move what the log holds now, ``limit`` records at a time; what is appended meanwhile may stay."""
        target = (await _timed(self._log.read(scope, after="", limit=0))).last
        moved, through = 0, ""
        while True:
            part = await _timed(self._log.read(scope, after=through, limit=limit))
            moved += await self._take(scope, part)
            through = _last_of(part)
            if not through or through >= target:
                return moved

    async def _move(self, scope: Scope, *, limit: int) -> int:
        return await self._take(scope, await _timed(self._log.read(scope, after="", limit=limit)))

    async def _take(self, scope: Scope, part: LogSlice) -> int:
        if part.records:
            self.counters.add("archiver.stored", await self._store(scope, part.records))
        await self._set_aside(scope, part.damaged)
        # Never beyond what the read saw, whatever a damaged record gives for its position. And a log that lists a user
        # but holds nothing may have lost its end to an erasure: let it stop listing the user.
        through = min(_last_of(part) or part.last, part.last)
        if through:
            if self._before_trim is not None:
                await self._before_trim(scope)
            await _timed(self._log.confirm(scope, through=through))
        moved = len(part.records) + len(part.damaged)
        self.counters.add("archiver.moved", moved)
        return moved

    async def _store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        try:
            return await _timed(self._archive.store(scope, records))
        except DataTooNew:
            raise
        except StoreFault:
            if len(records) == 1:
                raise
        return await self._store_each(scope, records)

    async def _store_each(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        """Store one by one; set aside the ones that the archive refuses, if it takes any: else the fault is its own."""
        stored, refused, fault = 0, list[DamagedRecord](), StoreFault("")
        for item in records:
            try:
                stored += await _timed(self._archive.store(scope, [item]))
            except StoreFault as error:
                fault = error
                raw = json.dumps(item.record.to_dict(), default=str)
                refused.append(DamagedRecord(item.position, item.previous, _reason(error), raw))
        if len(refused) == len(records):
            raise fault
        await self._set_aside(scope, refused)
        return stored

    async def _set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> None:
        if not damaged:
            return
        new = await _timed(self._archive.set_aside(scope, damaged))
        if new:
            self.counters.add("archiver.set_aside", new)
            logger.error(
                "%d records of user %s can't be read or stored and were set aside in the archive (dead_letters): %s",
                new,
                group_digest(scope),
                damaged[0].reason,
            )


def _last_of(part: LogSlice) -> str:
    ends = [items[-1].position for items in (part.records, part.damaged) if items]
    return max(ends, default="")


async def _timed(call: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(_CALL_TIMEOUT_S):
            return await call
    except TimeoutError:
        raise StoreUnavailable(f"A store did not answer within {_CALL_TIMEOUT_S:g} s.") from None


def _reason(error: Exception) -> str:
    # A foreign error's text may hold what somebody said.
    return str(error) if isinstance(error, StoreUnavailable | StoreFault) else type(error).__name__
