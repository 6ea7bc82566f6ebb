"""The test LLM, over HTTP and within an ingestor with all it works with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory.models import Scope
from memory.providers.language import OpenAiLanguageModel
from tests.support.archives import new_scope, sqlite_url
from tests.support.graph_llm import GraphLLM
from tests.support.ingesting import DIMENSION, Plant
from tests.support.knowing import opened


@pytest.fixture
async def server() -> AsyncIterator[GraphLLM]:
    async with GraphLLM() as running:
        yield running


@pytest.fixture
async def llm(server: GraphLLM) -> AsyncIterator[OpenAiLanguageModel]:
    made = OpenAiLanguageModel("gpt-4o-mini", api_key=None, base_url=server.url)
    yield made
    await made.aclose()


@pytest.fixture
def scope() -> Scope:
    """A user that no other test has."""
    return new_scope()


@pytest.fixture
async def plant(data_dir: Path) -> AsyncIterator[Plant]:
    async with opened(sqlite_url(data_dir), vectors=f"hashed/{DIMENSION}") as stores:
        stores.clock.seconds = 86_400.0  # the calls were yesterday
        yield Plant(stores)
