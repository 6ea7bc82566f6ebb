"""PostgreSQL away for so long that Redis is full: turns wait on disk, and all are archived, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agent.health import overall
from agent.keeper import Keeper, State
from agent.settings import load
from memory.clock import SystemClock
from memory.counters import Counters
from memory.limits import ARCHIVE_BACKOFF_S_MAX
from memory.models import MemoryEntry
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.recorder import Recorder
from memory.spool import Spool
from tests.support import postgres
from tests.support.postgres import Postgres
from tests.support.recalls import scope_of
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.timeout(300)

TURNS, TURN_BYTES = 30, 50_000
# The session layer's copies of all turns fit, those together with the log's don't: what the archive takes makes room.
ROOM_BYTES = 2_400_000
WAIT_S = 60.0 + ARCHIVE_BACKOFF_S_MAX


@pytest.fixture
def archive_server() -> Iterator[Postgres]:
    with postgres.stoppable() as own:
        own.stop()
        yield own


@pytest.fixture
async def keeper(
    server: RedisServer, archive_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Keeper]:
    monkeypatch.setenv("REDIS_URL", server.url())
    monkeypatch.setenv("DATABASE_URL", archive_server.url().replace("+asyncpg", ""))
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # without local speech
    monkeypatch.setenv("GRAPHITI_ENABLED", "false")
    made = Keeper(load())
    await made.start()
    yield made
    await made.aclose()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.05)


def limit_memory(server: RedisServer) -> None:
    with contextlib.closing(server.client()) as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM_BYTES)


@pytest.mark.promise("P-durable")
async def test_P_durable_a_log_that_is_full_while_postgresql_is_away_goes_on_in_the_spool(
    keeper: Keeper, server: RedisServer, archive_server: Postgres, data_dir: Path
) -> None:
    backend, scope, clock = keeper._backend, scope_of(), SystemClock()
    assert backend is not None
    await asyncio.to_thread(limit_memory, server)
    recorder = Recorder(Intake(CardRedactor(), clock), clock, Counters(), session_id="s1")
    recorder.spool_as(scope, Spool(data_dir))
    recorder.start(backend.sessions, scope)
    said = [f"turn {number} ".ljust(TURN_BYTES, "x") for number in range(TURNS)]
    for content in said:
        recorder.record(MemoryEntry(role="user", content=content, mode="voice"))
        assert await recorder.durable(30)  # in the log, or on the disk: never in memory alone
    assert 0 < recorder.spooled < TURNS

    states: dict[str, State] = {}

    async def told() -> bool:
        states.update(await keeper.states())
        return bool(states["archive"].details.get("pending_users")) and states["redis"].status == "unhealthy"

    await until(told)
    assert "is full (maxmemory)" in states["redis"].message
    assert int(str(states["redis"].details["used_bytes"])) > ROOM_BYTES
    assert states["archive"].status == "unhealthy"
    assert (states["spool"].status, states["spool"].details["files"]) == ("healthy", 1)
    assert overall(states) == "degraded"

    await asyncio.to_thread(archive_server.start)

    async def stored() -> bool:
        return not recorder.spooled and not recorder.pending

    await until(stored)
    archive = await backend.archive()
    last = (await backend.sessions.read(scope, after="", limit=0)).last

    async def archived() -> bool:
        return await archive.position(scope) == last

    await until(archived)
    kept = [item.record for item in await archive.read(scope, after=0, limit=10 * TURNS)]
    assert [record.content for record in kept if isinstance(record, MemoryEntry)] == said

    async def well() -> bool:
        return overall(await keeper.states()) == "healthy"

    await until(well)
    await recorder.aclose()
