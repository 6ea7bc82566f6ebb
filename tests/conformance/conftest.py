"""The backends of the session store's contract: in memory, and on a real Redis. Each test runs on both."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore
from tests.support.session_worlds import InMemoryWorld, RedisWorld, Store, World


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis for the whole run; tests empty it."""
    data_dir = Path(tempfile.mkdtemp(prefix="vm-"))
    server = EmbeddedServer(data_dir, idle_s=0.0)
    yield asyncio.run(server.ensure())
    asyncio.run(server.aclose())
    shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture
async def redis_world(redis_url: str) -> AsyncIterator[RedisWorld]:
    redis: Any = Redis.from_url(redis_url, decode_responses=True)
    await redis.flushall()
    store = await RedisSessionStore.connect(redis_url)
    yield RedisWorld(store, redis)
    await store.aclose()
    await redis.aclose()


@pytest.fixture(params=["memory", "redis"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return InMemoryWorld()
    found: World = request.getfixturevalue("redis_world")
    return found


@pytest.fixture
def session_store(world: World) -> Store:
    return world.store
