"""The backends of each contract: in memory, and on real servers. Each test runs on all of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.asyncio import Redis

from memory.models import Scope
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore
from tests.support import archives, redis_server
from tests.support.knowing import Stores, emptied, opened
from tests.support.session_worlds import InMemoryWorld, RedisWorld, Store, World


class Urls(NamedTuple):
    """Of one server: as the store uses it, and with every right."""

    store: str
    admin: str


@pytest.fixture(scope="session")
def redis_urls() -> Iterator[Urls]:
    """The embedded server."""
    data_dir = Path(tempfile.mkdtemp(prefix="vm-"))
    server = EmbeddedServer(data_dir, idle_s=0.0)
    url = asyncio.run(server.ensure())
    yield Urls(url, url)
    asyncio.run(server.aclose())
    shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster_urls() -> Iterator[Urls]:
    """A cluster of one node, without modules: a script whose keys are in several slots is refused."""
    with redis_server.cluster() as servers:
        yield Urls(servers[0].url(), servers[0].url())


@pytest.fixture(scope="session")
def tls_urls() -> Iterator[Urls]:
    """The machine's own Redis, of another version and without modules, by TLS, as a user who may not administer it."""
    with redis_server.by_tls(*redis_server.DURABLE) as server:
        yield Urls(server.add_user("app", "s:e/c@ret", *redis_server.APPLICATION), server.url())


@pytest.fixture(params=["memory", "redis", "cluster", "tls"])
def urls(request: pytest.FixtureRequest) -> Urls | None:
    """Each server runs for all tests, which empty it; ``None``: in memory."""
    found: Urls | None = None if request.param == "memory" else request.getfixturevalue(f"{request.param}_urls")
    return found


@pytest.fixture
async def world(urls: Urls | None) -> AsyncIterator[World]:
    if urls is None:
        yield InMemoryWorld()
        return
    redis: Any = Redis.from_url(urls.admin, decode_responses=True)
    await redis.flushall()
    store = await RedisSessionStore.connect(urls.store)
    yield RedisWorld(store, redis)
    await store.aclose()
    await redis.aclose()


@pytest.fixture
def session_store(world: World) -> Store:
    return world.store


# -- archive, chunks, knowledge, digests


@pytest.fixture(scope="module")
def shared_postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database for all tests of a module."""
    with archives.fresh_database(archives.postgres_server_url(request)) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, data_dir: Path) -> str:
    shared: str = "" if request.param == "sqlite" else request.getfixturevalue("shared_postgres_url")
    return shared or archives.sqlite_url(data_dir)


@pytest.fixture
async def stores(url: str) -> AsyncIterator[Stores]:
    async with opened(url) as found:
        if "postgres" in url:
            await emptied(found.archive)
        yield found


@pytest.fixture
def scope() -> Scope:
    """A user that no other test has."""
    return archives.new_scope()
