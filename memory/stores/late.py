"""An archive that need not be there: opened in the background, and asked again when it is back.

For processes that have something to do without it, such as recall from the log. Above: wiring. Below: ports, clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from memory.clock import Clock
from memory.errors import StoreUnavailable, VoiceMemoryError
from memory.knowledge_ports import FactChanges, FactSource
from memory.limits import ARCHIVE_OPEN_S, ARCHIVE_RETRY_S_MAX, ARCHIVE_RETRY_S_MIN
from memory.models import MemoryEntry, Scope
from memory.ports import ArchivedRecord, ArchiveStore, DamagedRecord, DeadLetters, Erasable, LogRecord, Selection

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Archive(ArchiveStore, DeadLetters, Erasable, Protocol):
    """What is opened."""


class LateArchive:
    """An archive that is opened by ``start``, as soon as it is there. Close it with ``aclose``, before what it opened.

    Each call raises StoreUnavailable while it is away; after a read that was waited for in vain that is said at once,
    for ``ARCHIVE_RETRY_S_MIN`` at first and ``ARCHIVE_RETRY_S_MAX`` at last: an outage costs one deadline, not one a
    call. ``facts`` gives the facts that lie beside the archive; without it there are none.
    """

    def __init__(
        self,
        open_archive: Callable[[], Awaitable[Archive]],
        clock: Clock,
        *,
        facts: Callable[[Archive], FactSource] | None = None,
    ) -> None:
        self._open, self._clock, self._facts = open_archive, clock, facts
        self._archive: Archive | None = None
        self._problem = "The archive is not open yet."
        self._closed_until_s, self._pause_s = 0.0, ARCHIVE_RETRY_S_MIN
        self._fault: Exception | None = None
        self._tried = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open it, or begin to: returns once it is open, or away, or takes longer than ``ARCHIVE_OPEN_S``.

        Raises:
            VoiceMemoryError: it can never be opened as things are, such as for its password; with what to do.
        """
        self._opening = asyncio.create_task(self._keep_opening(), name="memory.archive")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARCHIVE_OPEN_S):
                await self._tried.wait()
        if self._fault is not None:
            raise self._fault

    async def aclose(self) -> None:
        """Stop trying. Idempotent."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    async def problem(self, timeout_s: float) -> str:
        """Why it can't be used now, "" if it can; asks it, ``timeout_s`` at most."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.position(_NOBODY)
        except TimeoutError:
            return f"The archive did not answer within {timeout_s:g} s."
        except VoiceMemoryError as error:
            return str(error)
        return ""

    async def _keep_opening(self) -> None:
        pause_s = ARCHIVE_RETRY_S_MIN
        while self._archive is None:
            try:
                self._archive = await self._open()
            except Exception as error:
                self._told(error)
            self._tried.set()
            if self._archive is None:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, ARCHIVE_RETRY_S_MAX)
        logger.info("The archive is open.")

    def _told(self, error: Exception) -> None:
        problem = str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
        if problem != self._problem:
            logger.warning("The archive can't be opened now; its turns wait in the log: %s", problem)
        self._problem = problem
        self._fault = None if isinstance(error, StoreUnavailable) else error

    def _there(self) -> Archive:
        if self._archive is None or self._clock.monotonic() < self._closed_until_s:
            raise StoreUnavailable(self._problem)
        return self._archive

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Archive]:
        """For calls that are quick: whether one of them is answered says whether the archive is there."""
        archive = self._there()
        try:
            yield archive
        except StoreUnavailable as error:
            self._problem = str(error)
            self._closed_until_s = self._clock.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, ARCHIVE_RETRY_S_MAX)
            raise
        self._pause_s = ARCHIVE_RETRY_S_MIN

    # -- ArchiveStore, DeadLetters, Erasable

    async def store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        return await self._there().store(scope, records)

    async def read(self, scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        with self._asked() as archive:
            return await archive.read(scope, after=after, limit=limit)

    async def history(
        self, scope: Scope, *, session_id: str | None, before: datetime | None, limit: int
    ) -> list[MemoryEntry]:
        with self._asked() as archive:
            return await archive.history(scope, session_id=session_id, before=before, limit=limit)

    async def changes(self, scope: Scope, *, after: int, limit: int) -> FactChanges:
        """See FactSource."""
        if self._facts is None:
            return FactChanges(0, ())
        with self._asked() as archive:
            return await self._facts(archive).changes(scope, after=after, limit=limit)

    async def position(self, scope: Scope) -> str:
        with self._asked() as archive:
            return await archive.position(scope)

    async def set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> int:
        return await self._there().set_aside(scope, damaged)

    async def erase(self, scope: Scope, selection: Selection) -> int:
        return await self._there().erase(scope, selection)


_NOBODY = Scope(org_id="archive", agent_id="archive", user_id="archive")
