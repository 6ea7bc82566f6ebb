"""Ingestion as it is deployed: real processes, Redis, FalkorDB, SQL, and an LLM over HTTP; ended, killed, robbed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from memory.identity import group_id
from memory.knowledge import ChunkState
from memory.stores.embedded import EmbeddedServer
from tests.support import archives, redis_server
from tests.support.graph_llm import GraphLLM, Trouble, serving
from tests.support.ingest_process import World, environment, ingesting

SAID = ("I live in Leeds.", "I am allergic to peanuts.")
FACTS = ["User is allergic to peanuts", "User lives in Leeds"]
CHILD = ("-m", "tests.integration.ingest_child")


@pytest.fixture
def llm() -> Iterator[GraphLLM]:
    with serving() as running:
        yield running


@pytest.fixture
def values(data_dir: Path, llm: GraphLLM, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    made = environment(data_dir, llm.url)
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
async def world(values: dict[str, str]) -> AsyncIterator[World]:
    opened = await World.open(values)
    yield opened
    await opened.aclose()


async def graph_of(world: World, user: str) -> tuple[int, int]:
    """Episodes and live facts in the user's graph, as FalkorDB itself says."""
    server = EmbeddedServer(world.settings.data_dir, idle_s=1.0)
    try:
        client: Any = Redis.from_url(await server.ensure(), decode_responses=True)
        graph = group_id(world.scope(user))
        queries = ("MATCH (e:Episodic) RETURN count(e)", "MATCH ()-[r:RELATES_TO]->() RETURN count(r.uuid)")
        episodes, facts = (client.execute_command("GRAPH.RO_QUERY", graph, query)[1][0][0] for query in queries)
        client.close()
    finally:
        await server.aclose()
    return int(episodes), int(facts)


@pytest.mark.promise("P-durable")
async def test_P_durable_what_was_said_on_call_1_is_a_fact_in_sql_and_graph_and_announced(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    await world.say("ana", *SAID, archived=False)
    async with ingesting(values) as worker:
        await world.until_facts("ana", FACTS)
        assert await graph_of(world, "ana") == (1, 2)

        async def announced() -> bool:
            return (await world.sessions.read(world.scope("ana"), after="", limit=0)).facts == 1

        await world.until(announced)
        health = await worker.health()
        assert health["status"] == "healthy"
        assert health["components"]["graphiti"] == {"status": "healthy", "message": "FalkorDB connected"}
        assert health["components"]["ingestion"]["details"]["done"] == 1
        assert health["components"]["llm"]["details"]["calls"] >= 1
        await worker.until_said("Ingested a chunk")
        assert await worker.end() == 0
    assert "Leeds" not in worker.said
    assert "peanuts" not in worker.said
    assert llm.stats.calls["ExtractionAnswer"] == 1


@pytest.mark.case("L29")
async def test_L29_the_backlog_of_a_user_drains_in_order_and_its_depth_is_visible(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    values["MEMORY_CHUNK_TOKENS"] = "100"
    texts = [f"My order {1000 + number} is delayed." for number in range(39)]
    await world.say("ana", *texts, "I am allergic to peanuts.")
    llm.trouble_always("chat", Trouble(delay_s=0.2))
    async with ingesting(values) as worker:
        depths = []

        async def drained() -> bool:
            counts = (await worker.health())["components"].get("ingestion", {}).get("details", {})
            depths.append(counts.get("waiting", 0))
            return bool(counts.get("done")) and not counts.get("waiting")

        await world.until(drained)
    assert max(depths) > 2
    _, known = await world.knows("ana")
    assert [episode.ordinal for episode in known.episodes] == list(range(len(known.episodes)))
    assert "User is allergic to peanuts" in await world.facts("ana")


@pytest.mark.promise("P-durable")
@pytest.mark.case("L38")
async def test_P_durable_L38_sigterm_in_mid_call_ends_within_ten_seconds_and_loses_nothing(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    await world.say("ana", *SAID)
    llm.trouble_always("chat", "silent")
    async with ingesting(values) as worker:

        async def asked() -> bool:
            return llm.stats.calls["ExtractionAnswer"] == 1

        await world.until(asked)
        begun = time.monotonic()
        assert await worker.end() == 0
        assert time.monotonic() - begun < 10.0
    [waiting] = await world.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert waiting.chunk.attempts == 0, "to be told to stop is not the chunk's fault"
    llm.mend()
    async with ingesting(values):
        await world.until_facts("ana", FACTS)
    assert await graph_of(world, "ana") == (1, 2)


@pytest.mark.promise("P-durable")
async def test_P_durable_a_call_that_is_answered_while_it_ends_is_ingested(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    await world.say("ana", *SAID)
    llm.trouble("chat", Trouble(delay_s=1.5))
    async with ingesting(values) as worker:

        async def asked() -> bool:
            return llm.stats.llm_calls >= 1

        await world.until(asked)
        assert await worker.end() == 0
    counts = await world.chunks.counts()
    assert counts["done"] + counts["waiting"] == 1


@pytest.mark.promise("P-durable")
@pytest.mark.parametrize("where", ["llm", "embeddings"])
async def test_P_durable_sigkill_in_mid_call_is_ingested_exactly_once(
    world: World, values: dict[str, str], llm: GraphLLM, where: str
) -> None:
    await world.say("ana", *SAID)
    if where == "llm":
        llm.trouble_always("chat", "silent")
    else:
        llm.trouble("embeddings", Trouble(), "silent")  # the first one only asks how long vectors are
    async with ingesting(values, *CHILD) as worker:

        async def asked() -> bool:
            return llm.stats.calls["ExtractionAnswer"] == 1 and (where == "llm" or llm.stats.calls["embeddings"] == 2)

        await world.until(asked)
        await worker.end(signal.SIGKILL)
    llm.mend()
    asked_before = llm.stats.calls["ExtractionAnswer"]
    async with ingesting(values, *CHILD):
        await world.until_facts("ana", FACTS)
    _, known = await world.knows("ana")
    assert (len(known.episodes), len(known.facts), len(known.wordings)) == (1, 2, 0)
    assert await graph_of(world, "ana") == (1, 2)
    if where == "embeddings":
        assert llm.stats.calls["ExtractionAnswer"] == asked_before, "what was answered is not paid for twice"


@pytest.mark.promise("P-durable")
async def test_P_durable_a_graph_deleted_under_the_process_is_restored_without_an_llm(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    async with ingesting(values) as worker:
        await world.say("ana", *SAID)
        await world.until_facts("ana", FACTS)
        server = EmbeddedServer(world.settings.data_dir, idle_s=1.0)
        client: Any = Redis.from_url(await server.ensure())
        client.execute_command("GRAPH.DELETE", group_id(world.scope("ana")))
        client.close()
        await server.aclose()
        extractions = llm.stats.calls["ExtractionAnswer"]
        await world.say("ana", "My dog is called Rex.", session="call-2")
        await worker.until_said("restored")

        async def known() -> bool:
            return len((await world.knows("ana"))[1].episodes) == 2

        await world.until(known)
    assert llm.stats.calls["ExtractionAnswer"] == extractions + 1
    episodes, facts = await graph_of(world, "ana")
    assert (episodes, facts) == (2, len((await world.knows("ana"))[1].facts))


@pytest.mark.case("L28")
async def test_L28_a_refused_key_is_seen_in_health_and_what_waits_is_ingested_later(
    world: World, values: dict[str, str], llm: GraphLLM
) -> None:
    llm.trouble_always("chat", "401")
    await world.say("ana", *SAID)
    async with ingesting(values) as worker:

        async def told() -> bool:
            return "401" in (await worker.health())["components"].get("llm", {}).get("message", "")

        await world.until(told)
        health = await worker.health()
        assert health["status"] == "degraded"
        assert "the operator has to act" in health["components"]["llm"]["message"]
        assert "OPENAI_API_KEY" in health["components"]["llm"]["message"]
    assert llm.stats.llm_calls <= 3
    assert (await world.chunks.counts())["waiting"] == 1
    [waiting] = await world.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert "401" in waiting.chunk.reason
    assert await world.chunks.move([waiting.chunk.id], to=ChunkState.WAITING, from_=[ChunkState.WAITING]) == 1
    llm.mend()
    async with ingesting(values):  # restarted, as one does with a new key
        await world.until_facts("ana", FACTS)


async def test_without_an_llm_chunks_wait_and_sessions_are_told_by_quoting(
    world: World, values: dict[str, str]
) -> None:
    values.pop("OPENAI_BASE_URL")
    await world.say("ana", *SAID)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_BASE_URL")
        async with ingesting(values) as worker:

            async def told() -> bool:
                return bool(await world.digests.digests(world.scope("ana"), limit=1))

            await world.until(told)
            health = await worker.health()
            assert health["components"]["graphiti"]["status"] == "skipped"
            assert "OPENAI_API_KEY" in health["components"]["graphiti"]["message"]
            await worker.until_said("No facts are extracted: no LLM")
            assert await worker.end() == 0
    [digest] = await world.digests.digests(world.scope("ana"), limit=5)
    assert digest.made_by == "extractive"
    assert (await world.chunks.counts())["waiting"] == 1


async def test_two_workers_share_the_work_of_one_archive_in_postgresql(
    values: dict[str, str], llm: GraphLLM, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with archives.fresh_database(archives.postgres_server_url(request)) as url:
        plain = url.replace("postgresql+asyncpg", "postgresql")
        values["DATABASE_URL"] = plain
        monkeypatch.setenv("DATABASE_URL", plain)
        world = await World.open(values)
        try:
            users = [f"user-{number}" for number in range(12)]
            for user in users:
                await world.say(user, *SAID, session=f"call-of-{user}")
            async with ingesting(values), ingesting(values):
                for user in users:
                    await world.until_facts(user, FACTS)
            for user in users:
                _, known = await world.knows(user)
                assert (len(known.episodes), len(known.facts)) == (1, 2)
        finally:
            await world.aclose()
    assert llm.stats.calls["ExtractionAnswer"] == len(users)


@pytest.mark.promise("P-durable")
async def test_P_durable_what_a_machine_that_died_left_in_redis_alone_is_ingested_by_another(
    values: dict[str, str], data_dir: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_url = archives.postgres_server_url(request)
    with redis_server.running(*redis_server.DURABLE) as redis, archives.fresh_database(server_url) as url:
        shared = {"REDIS_URL": redis.url(), "DATABASE_URL": url.replace("postgresql+asyncpg", "postgresql")}
        values |= shared
        for name, value in shared.items():
            monkeypatch.setenv(name, value)
        world = await World.open(values)
        host = await host_of_another_machine(values, data_dir / "other")
        try:
            await world.say("ana", "Hello there.", archived=False)
            await world.until(lambda: _archived(world, 1))  # by that machine's recall host, as long as it lives
            host.send_signal(signal.SIGSTOP)
            await world.say("ana", *SAID, session="call-2", archived=False)
            host.kill()
            await host.wait()
            assert await _archived(world, 1)
            assert await world.sessions.pending(limit=9) == [world.scope("ana")]
            async with ingesting(values):
                await world.until_facts("ana", FACTS)
            found = await world.archive.read(world.scope("ana"), after=0, limit=99)
            assert [item.record.to_dict()["content"] for item in found] == ["Hello there.", *SAID]
            assert await world.sessions.pending(limit=9) == []
        finally:
            if host.returncode is None:
                host.kill()
            await host.wait()
            await world.aclose()


async def host_of_another_machine(values: dict[str, str], there: Path) -> asyncio.subprocess.Process:
    """A recall host, and so an archiver, with a data directory of its own."""
    environment = {**os.environ, **values, "VOICEASSIST_DATA_DIR": str(there), "MEMORY_HOST_IDLE_SECONDS": "60"}
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "memory", "host", env=environment)


async def _archived(world: World, count: int) -> bool:
    return len(await world.archive.read(world.scope("ana"), after=0, limit=99)) == count


async def test_a_wrong_setting_is_refused_at_start(values: dict[str, str]) -> None:
    values["MEMORY_ENABLED"] = "false"
    async with ingesting(values) as worker:
        assert await worker.end(0) == 2
    assert "MEMORY_ENABLED" in worker.said
