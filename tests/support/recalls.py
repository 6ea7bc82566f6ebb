"""Parts for tests of recall: a clock that tests move, an embedder of words, stores that stall or fail on demand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from memory.errors import StoreUnavailable
from memory.models import MemoryEntry, Recall, Scope
from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memory.ports import ArchivedRecord, LogSlice

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
DIMENSION = 64


async def settle() -> None:
    """Let everything run that needs nothing but the loop."""
    for _ in range(40):
        await asyncio.sleep(0)


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self._now_s = 1_000.0
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self._now_s)

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.append((self._now_s + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, waking whoever is due in the right order."""
        await settle()
        until_s = self._now_s + seconds
        while due := [pair for pair in self._sleeping if pair[0] <= until_s]:
            first = min(due, key=lambda pair: pair[0])
            self._sleeping.remove(first)
            self._now_s = max(self._now_s, first[0])
            if not first[1].done():
                first[1].set_result(None)
                await settle()
        self._now_s = until_s
        await settle()


class WordEmbedder:
    """Vectors of the words in a text: texts that share words are close. ``calls`` is what it was asked for.

    ``hold``: cleared, it does not answer until set. ``error``: raised instead of an answer.
    """

    def __init__(self, model: str = "words") -> None:
        self.model = model
        self.dimension = DIMENSION
        self.calls: list[list[str]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.error: Exception | None = None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return np.stack([self._vector(text) for text in texts])

    def asked_for(self, text: str) -> int:
        return sum(text in call for call in self.calls)

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector = np.full(self.dimension, 1e-3, np.float32)
        for word in text.casefold().replace(",", " ").replace("?", " ").split():
            vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % self.dimension] += 1
        unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
        return unit


@dataclass
class Trouble:
    """What a store does besides its work."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    away: bool = False
    reads: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open.set()

    async def meet(self, what: object) -> None:
        self.reads.append(what)
        await self.open.wait()
        if self.away:
            raise StoreUnavailable("The store is away.")


class TroubledLog(InMemorySessionStore):
    """A log that can stall (``trouble.open``), be away, and counts its reads (the value of ``after``)."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.trouble = Trouble()

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        await self.trouble.meet(after)
        return await super().read(scope, after=after, limit=limit)


class TroubledArchive(InMemoryArchive):
    """An archive that can stall, be away, and counts its reads (the cursor)."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = Trouble()

    async def read(self, scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        await self.trouble.meet(after)
        return await super().read(scope, after=after, limit=limit)

    async def position(self, scope: Scope) -> str:
        if self.trouble.away:
            raise StoreUnavailable("The store is away.")
        return await super().position(scope)


def scope_of(user: str = "ana", *, org: str = "acme") -> Scope:
    return Scope(org_id=org, agent_id="desk", user_id=user)


def said(text: str, *, session: str = "s1", role: Any = "user", user: str = "ana", **fields: Any) -> MemoryEntry:
    return MemoryEntry(role=role, content=text, session_id=session, user_id=user, **{"mode": "voice", **fields})


def texts(recall: Recall | None) -> list[str]:
    return [] if recall is None else [passage.text for passage in recall.passages]


async def archive_all(log: InMemorySessionStore, archive: InMemoryArchive, scope: Scope) -> None:
    """What the archiver does: move the log, then let it be trimmed."""
    part = await InMemorySessionStore.read(log, scope, after="", limit=500)
    while part.records:
        await archive.store(scope, part.records)
        await log.confirm(scope, through=part.records[-1].position)
        part = await InMemorySessionStore.read(log, scope, after="", limit=500)
