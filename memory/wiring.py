"""Where adapters are chosen: settings in, opened stores out. The only module that knows both ports and adapters.

Adapters are imported when they are opened, so that a call's job process never pays for SQL, models or indexes.
Above: service, plugin, cli. Below: retrieval, stores, providers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from memory.clock import Clock, SystemClock
from memory.datadir import prepare
from memory.errors import StoreFault
from memory.hosting import HostSpec, HostUse
from memory.knowledge_ports import FactNotices, FactSource
from memory.ports import (
    ArchiveStore,
    DeadLetters,
    Embedder,
    Erasable,
    Retriever,
    SessionStore,
    Summarizer,
    TurnLog,
    WriterLeases,
)
from memory.settings import Settings, environment
from memory.spool import Spool

if TYPE_CHECKING:
    from memory.models import Scope
    from memory.privacy.erasure import ErasableGraph, GraphErasure
    from memory.retrieval.client import HostRetriever
    from memory.stores.late import LateArchive

logger = logging.getLogger(__name__)

# Each query reads the model's 11 MB, often out of the caches: with glibc's heap in pages of 2 MB a tenth sooner.
_LARGE_PAGES = {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

RECALL_HOST = "recall"


class Sessions(SessionStore, WriterLeases, TurnLog, FactNotices, Erasable, Protocol):
    """The session store, which is the log's writer as well, and tells of new facts."""

    async def durability(self) -> list[str]:
        """What may make it lose turns that it took, or can't be checked: a sentence each, with the fix.

        Raises:
            StoreUnavailable: it is away.
        """
        ...

    async def filled(self) -> dict[str, int]:
        """``used_bytes`` and ``max_bytes`` (0: unbounded) of its memory; empty where that can't be told.

        Raises:
            StoreUnavailable: it is away.
        """
        ...


class Archive(ArchiveStore, DeadLetters, Erasable, Protocol):
    """The archive, which can forget, and keeps what it can't store."""

    async def beyond_reach(self) -> list[str]:
        """Where what was erased stays in its files, whatever it does: a sentence each.

        Raises:
            StoreUnavailable: it is away.
        """
        ...


class Recalls(Retriever, Erasable, Protocol):
    """A retriever, which drops what it holds of a user when told to."""


@dataclass
class Backend:
    """The opened stores of one event loop. ``archive()`` opens on first use: most processes never need SQL."""

    sessions: Sessions
    retriever: Recalls | None
    open_archive: Callable[[], Awaitable[Archive]]
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    spool: Spool | None = None  # where turns wait while ``sessions`` are away
    stats: Callable[[], Awaitable[Mapping[str, Any]]] | None = None  # what the recall host says of itself
    graph: ErasableGraph | None = None  # what an erasure has still to reach
    _archive: Archive | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def archive(self) -> Archive:
        async with self._opening:
            if self._archive is None:
                self._archive = await self.open_archive()
        return self._archive

    async def aclose(self) -> None:
        """Close everything, last opened first. Idempotent."""
        while self.closers:
            await self.closers.pop()()


async def open_backend(settings: Settings) -> Backend:
    """Open the stores that ``settings`` name: Redis by URL or the embedded server, and the recall host's client.

    Raises:
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable: with what to do.
        StoreUnavailable: Redis is away.
    """
    await asyncio.to_thread(prepare, settings.data_dir)
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        sessions = await open_sessions(settings, closers)
    except BaseException:
        while closers:  # half opened and nobody's: the embedded server would stay for a caller that isn't there
            with contextlib.suppress(Exception):
                await closers.pop()()
        raise

    async def archive() -> Archive:
        return await open_archive(settings, closers)

    retriever = open_retriever(settings, closers)
    backend = Backend(sessions, retriever, archive, closers, open_spool(settings), retriever.stats)
    backend.graph = GraphErasures(settings, backend.archive)
    return backend


class GraphErasures:
    """ErasableGraph: opens the graph only where something of the user has to go from it, for as long as that takes."""

    def __init__(self, settings: Settings, archive: Callable[[], Awaitable[Archive]]) -> None:
        self._settings, self._archive = settings, archive

    async def settle(self, scope: Scope) -> GraphErasure:
        from memory.wiring_upkeep import settle_erasure

        return await settle_erasure(self._settings, await self._archive(), scope)


async def open_sessions(settings: Settings, closers: list[Callable[[], Awaitable[None]]]) -> Sessions:
    """Redis by URL, or the embedded server, started if need be and held until closed.

    Raises:
        StoreFault: this Redis may lose turns and ``MEMORY_REQUIRE_DURABLE`` is set; the message says what to mend.
        StoreUnavailable, EmbeddedServerUnavailable: it is away, or can't run here.
    """
    from memory.stores.redis import RedisSessionStore

    url, on_lost = await redis_place(settings, closers)
    store = await RedisSessionStore.connect(url, on_lost=on_lost)
    closers.append(store.aclose)
    if on_lost is None:  # the embedded server is configured by us
        await _warn_or_refuse(store, settings)
    return store


async def redis_place(
    settings: Settings, closers: list[Callable[[], Awaitable[None]]]
) -> tuple[str, Callable[[], Awaitable[object]] | None]:
    """Redis by URL, or the embedded server, started if need be and held until closed: where it is, and what brings it
    back when it is lost.

    Raises:
        EmbeddedServerUnavailable: it can't run here.
    """
    url = redis_url(settings)
    if url is not None:
        return url, None
    from memory.stores.embedded import EmbeddedServer

    server = EmbeddedServer(settings.data_dir, idle_s=settings.host_idle_seconds)
    closers.append(server.aclose)
    return await server.ensure(), server.ensure


async def _warn_or_refuse(store: Sessions, settings: Settings) -> None:
    if faults := " ".join(await store.durability()):
        if settings.require_durable:
            raise StoreFault(f"MEMORY_REQUIRE_DURABLE is set, and this Redis may lose turns: {faults}")
        logger.warning("This Redis may lose turns: %s", faults)


async def open_archive(settings: Settings, closers: list[Callable[[], Awaitable[None]]]) -> Archive:
    """The SQL archive, migrated to this version's schema."""
    from memory.ingestion.forgetting import forgotten
    from memory.stores.sql import SqlArchive

    archive = await SqlArchive.open(database_url(settings), forgotten=forgotten)
    closers.append(archive.aclose)
    return archive


async def open_late_archive(
    settings: Settings, closers: list[Callable[[], Awaitable[None]]], clock: Clock
) -> LateArchive:
    """The SQL archive for who goes on without it: opened now, or as soon as it is there.

    Raises:
        DataTooNew, DataDirectoryUnusable, StoreFault: it can never be opened as things are.
    """
    from memory.stores.late import LateArchive

    archive = LateArchive(lambda: open_archive(settings, closers), clock, facts=facts_of)
    closers.append(archive.aclose)
    await archive.start()
    return archive


def facts_of(archive: ArchiveStore) -> FactSource:
    """The facts in the archive's database."""
    from memory.stores.knowledge_sql import SqlKnowledgeStore
    from memory.stores.sql import SqlArchive

    assert isinstance(archive, SqlArchive)
    return SqlKnowledgeStore(archive.database, archive.users, archive.clock)


def open_spool(settings: Settings) -> Spool:
    """Where this data directory's turns wait while Redis is away. Touches nothing yet."""
    return Spool(settings.data_dir)


def open_retriever(settings: Settings, closers: list[Callable[[], Awaitable[None]]]) -> HostRetriever:
    """A thin client of the data directory's recall host; connects on first use."""
    from memory.retrieval.client import HostRetriever

    retriever = HostRetriever(HostUse(recall_host(settings)))
    closers.append(retriever.aclose)
    return retriever


def recall_host(settings: Settings) -> HostSpec:
    """How the recall host of this data directory and these stores is run and found."""
    env = {**_LARGE_PAGES, **environment(settings)}
    return HostSpec.module(_recall_host_name(settings), settings.data_dir, "memory", "host", env=env)


def _recall_host_name(settings: Settings) -> str:
    # A host goes on with the stores it was started with: who names others, or mends a wrong URL, gets one of their own.
    kept = (redis_url(settings), settings.database_url, settings.embedder, settings.graphiti_enabled)
    if kept == (None, None, "local", True):
        return RECALL_HOST
    return f"{RECALL_HOST}-{hashlib.sha256(repr(kept).encode()).hexdigest()[:6]}"


def open_embedder(settings: Settings) -> Embedder | None:
    """The local embedder, or ``None`` where settings say so.

    Raises:
        EmbedderUnavailable: a part of it is missing; the message says which and how to install it.
    """
    if settings.embedder == "none":
        return None
    from memory.providers.embedders import LocalEmbedder

    return LocalEmbedder(data_dir=settings.data_dir)


def open_summarizer() -> Summarizer:
    """What sums up a conversation that is too long: without an LLM, by quoting."""
    from memory.providers.summarizer import ExtractiveSummarizer

    return ExtractiveSummarizer()


def in_memory_backend(*, embedder: Embedder | None = None, clock: Clock | None = None) -> Backend:
    """Stores and index in this process, gone with it: for tests and for trying out. Same contracts as the real ones."""
    from memory.retrieval.engine import RecallEngine
    from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore

    clock = clock or SystemClock()
    sessions, archive = InMemorySessionStore(clock), InMemoryArchive()
    engine = RecallEngine(log=sessions, archive=archive, embedder=embedder, clock=clock)

    async def opened() -> Archive:
        return archive

    return Backend(sessions, engine, opened, [engine.aclose])


def redis_url(settings: Settings) -> str | None:
    """The URL of the Redis that settings name, or ``None`` for the embedded server."""
    if settings.redis_url or not settings.redis_host:
        return settings.redis_url
    secret = settings.redis_password
    password = f":{quote(secret.get_secret_value(), safe='')}@" if secret else ""
    host = f"[{settings.redis_host}]" if ":" in settings.redis_host else settings.redis_host
    return f"redis://{password}{host}:{settings.redis_port}/0"


def database_url(settings: Settings) -> str:
    """The SQLAlchemy URL of the archive, with an async driver."""
    url = settings.database_url or f"sqlite:///{settings.data_dir / 'memory.db'}"
    for plain, driver in (("postgres://", "postgresql+asyncpg://"), ("postgresql://", "postgresql+asyncpg://")):
        url = url.replace(plain, driver, 1) if url.startswith(plain) else url
    return url.replace("sqlite://", "sqlite+aiosqlite://", 1) if url.startswith("sqlite://") else url
