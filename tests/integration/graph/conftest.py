"""A real FalkorDB, the graph store on it, and ingestion into both; a file that needs another one has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from memory.models import Scope
from memory.stores.graph.store import FalkorGraphStore
from tests.support import graph_server
from tests.support.archives import new_scope, sqlite_url
from tests.support.ingesting import GrammarLLM, Plant
from tests.support.knowing import opened
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One for the tests of a module, which have users of their own."""
    with graph_server.running() as running:
        yield running


@pytest.fixture
def model() -> str:
    """The name of what makes the vectors."""
    return "words"


@pytest.fixture
async def store(server: RedisServer, model: str) -> AsyncIterator[FalkorGraphStore]:
    connected = await FalkorGraphStore.connect(server.url(), model=model)
    yield connected
    await connected.aclose()


@pytest.fixture
def scope() -> Scope:
    """A user that no other test has."""
    return new_scope()


@pytest.fixture
def llm() -> GrammarLLM:
    return GrammarLLM()


@pytest.fixture
async def plant(data_dir: Path, store: FalkorGraphStore, model: str, llm: GrammarLLM) -> AsyncIterator[Plant]:
    """Ingestion on the real graph."""
    async with opened(sqlite_url(data_dir), vectors=model) as stores:
        stores.clock.seconds = 86_400.0
        yield Plant(stores, llm=llm, graph=cast("Any", store))
