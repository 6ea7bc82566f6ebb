"""Thousands of sessions that end at once, on real Redis and SQLite: they wait in SQL, not in Redis or in memory."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis

from memory.counters import Counters
from memory.ingestion import scan
from memory.ingestion.asked import LanguageModels
from memory.ingestion.confidential import Confidential
from memory.ingestion.digesting import Digester
from memory.ingestion.scan import Queue
from memory.ingestion.tasks import NAME, TaskEngine
from memory.ingestion.worker import FactsPart, IngestWork, Knowledge
from memory.limits import INGEST_USERS_MAX
from memory.providers.summarizer import ExtractiveSummarizer
from memory.stores.embedded import EmbeddedServer
from memory.wiring import open_backend
from tests.support.archives import entry, logged, new_scope, sqlite_url
from tests.support.graph_llm import serving
from tests.support.ingest_process import World, environment, ingesting
from tests.support.ingesting import DIMENSION, Plant
from tests.support.knowing import opened
from tests.support.redis_server import RedisServer

_MB = 1_048_576


class Watched(IngestWork):
    """Notes how many tasks wait whenever somebody looks, and how much memory this process has."""

    depths: list[int]
    rss: list[int]

    async def look(self, queue: Queue) -> bool:
        more = await super().look(queue)
        self.depths.append(await queue.waiting())
        gc.collect()
        self.rss.append(psutil.Process().memory_info().rss)
        return more


@pytest.fixture
async def plant(data_dir: Path) -> AsyncIterator[Plant]:
    async with opened(sqlite_url(data_dir), vectors=f"hashed/{DIMENSION}") as stores:
        stores.clock.seconds = 86_400.0
        yield Plant(stores)


def working(plant: Plant) -> Watched:
    async def nothing() -> int:
        return 0

    async def answers() -> str:
        return "FalkorDB connected"

    async def opening() -> Knowledge:
        return Knowledge(plant.ingestor, LanguageModels(lambda: plant.llm), lambda _: None, answers)

    facts = FactsPart(plant.stores.clock, opening, "")
    scanner = plant.scanner(ready=lambda: facts.ready, tells=lambda: True)
    digester = Digester(
        plant.stores.digests,
        ExtractiveSummarizer(),
        plant.stores.clock,
        plant.counters,
        confidential=Confidential(),
        idle_s=60.0,
        teller=lambda: None,
    )
    work = Watched(scanner, facts, digester, plant.counters, drain=nothing, settle=nothing)
    work.depths, work.rss = [], []
    return work


async def burst(plant: Plant, server: RedisServer, *, users: int, sessions: int, within_s: float) -> Watched:
    """All sessions of all users, ended at the same moment, ingested by one worker."""
    said: Sequence[str] = ("I live in Leeds.", "I am allergic to peanuts.", "Thank you, bye.")
    for number in range(users):
        records = [entry(said[at % 3], session=f"{number}-{at}", minute=at) for at in range(sessions)]
        await plant.stores.store(new_scope(user_id=f"user {number}"), records)
    plant.stores.clock.seconds += 61
    work, stop = working(plant), asyncio.Event()
    engine = TaskEngine(server.url(), work, Counters(), scan_s=0.5)
    running = asyncio.create_task(engine.run(stop))
    try:
        async with asyncio.timeout(within_s):
            while (await plant.stores.chunks.counts())["done"] < users * sessions:
                assert not running.done()
                await asyncio.sleep(0.2)
    finally:
        stop.set()
        await running
    return work


async def test_a_burst_of_ended_sessions_neither_fills_redis_nor_is_lost(
    plant: Plant, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "INGEST_SESSIONS_MAX", 20)
    monkeypatch.setattr(scan, "INGEST_USERS_MAX", 10)
    work = await burst(plant, server, users=30, sessions=4, within_s=100.0)
    assert max(work.depths) <= 2 * 10 + 1, "users in ingestion and in digests, and the next look"
    counts = await plant.stores.chunks.counts()
    assert (counts["done"], counts["waiting"], counts["uncut"], counts["dead"]) == (120, 0, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(1_500)
async def test_ten_thousand_sessions_that_end_at_once_cost_no_memory(plant: Plant, server: RedisServer) -> None:
    work = await burst(plant, server, users=500, sessions=20, within_s=1_400.0)
    assert max(work.depths) <= 2 * INGEST_USERS_MAX + 1
    settled = work.rss[len(work.rss) // 4]
    assert max(work.rss) - settled < 60 * _MB
    used = int(server.client().info("memory")["used_memory_peak"])
    assert used < 64 * _MB


LIVE_S, LIVE_PAUSE_S, BUDGET_MS = 45.0, 0.25, 500.0


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.promise("P-silent")
async def test_P_silent_ten_thousand_ended_sessions_starve_no_live_call(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as llm:
        values = environment(data_dir, llm.url)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        world = await World.open(values)
        backend = await open_backend(world.settings)
        assert backend.retriever is not None
        try:
            for number in range(500):
                records = [entry("I live in Leeds.", session=f"{number}-{at}", minute=at) for at in range(20)]
                await world.archive.store(new_scope(user_id=f"user {number}"), logged(records))
            assert (await world.chunks.counts())["uncut"] == 10_000
            await world.say("ana", "My cat is called Biscuit.", archived=False)
            scope, query = world.scope("ana"), "What is my cat called?"
            await backend.retriever.recall(scope, query, limit=8, budget_ms=60_000)  # the host has started
            rss: list[int] = []
            waiting: list[int] = []
            async with ingesting(values) as worker:
                await worker.until_healthy("llm")
                process, until_s = psutil.Process(worker.pid), time.monotonic() + LIVE_S
                while time.monotonic() < until_s:
                    found = await backend.retriever.recall(scope, query, limit=8, budget_ms=BUDGET_MS)
                    assert [passage.text for passage in found.passages] == ["My cat is called Biscuit."]
                    assert not set(found.degraded) & {"history"}
                    rss.append(process.memory_info().rss)
                    waiting.append(await _in_redis(world))
                    await asyncio.sleep(LIVE_PAUSE_S)
            counts = await world.chunks.counts()
            assert counts["done"] > 0
            assert counts["done"] + counts["waiting"] + counts["uncut"] >= 10_000, "what is not done yet waits in SQL"
            assert max(waiting) <= 2 * INGEST_USERS_MAX + 1
            settled = rss[len(rss) // 3]
            assert max(rss[len(rss) // 3 :]) - settled < 60 * _MB
        finally:
            await backend.aclose()
            await world.aclose()


async def _in_redis(world: World) -> int:
    """How many tasks the engine holds."""
    server = EmbeddedServer(world.settings.data_dir, idle_s=1.0)
    client: Any = Redis.from_url(await server.ensure())
    try:
        return int(await client.xlen(f"{NAME}:stream")) + int(await client.zcard(f"{NAME}:queue"))
    finally:
        await client.aclose()
        await server.aclose()
