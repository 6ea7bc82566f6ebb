"""Graphs made what SQL knows: restored, deleted, left for later. Real SQL; the graph is in memory and can be away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory.errors import StoreFault, StoreUnavailable
from memory.ingestion import graph_upkeep
from memory.ingestion.graph_upkeep import is_current, restore_graph, settle_erasure, settle_pending
from memory.knowledge import Chunk, Knowledge
from memory.knowledge_ports import GraphStore
from memory.models import Scope
from memory.ports import Selection
from memory.privacy.erasure import GraphErasure
from tests.support.archives import entry, new_scope, sqlite_url
from tests.support.ingesting import MemoryGraph
from tests.support.knowing import Stores, learnt, opened


@pytest.fixture
async def stores(data_dir: Path) -> AsyncIterator[Stores]:
    async with opened(sqlite_url(data_dir), vectors="hashed") as found:
        yield found


class Graphs:
    """The one graph server, which can be away."""

    def __init__(self) -> None:
        self.graph = MemoryGraph()
        self.asked: list[str] = []

    async def __call__(self, vectors: str) -> GraphStore:
        self.asked.append(vectors)
        return self.graph


async def learn(stores: Stores, graphs: Graphs, scope: Scope, *texts: str, number: int = 0) -> Chunk:
    """Ingest a session in which these texts were learnt."""
    chunk = await stores.chunk(scope, [entry("hello", session=f"s{number}")], start=1 + number)
    patch = learnt(chunk, *texts)

    async def project(version: int) -> None:
        await graphs.graph.save(scope, patch, version=version, expected=version - 1)

    assert await stores.knowledge.commit(chunk, patch, project)
    return chunk


async def pending(stores: Stores) -> int:
    return len(await stores.knowledge.pending_graph_erasures(limit=100))


async def test_a_lost_graph_is_restored_from_sql(stores: Stores, scope: Scope) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "tea", "milk")
    before = graphs.graph.graphs.pop(scope)
    assert not await is_current(scope, stores.knowledge, graphs)
    assert await restore_graph(scope, stores.knowledge, graphs) == 1
    assert graphs.graph.graphs[scope] == before
    assert graphs.asked[-1] == "hashed"
    assert await is_current(scope, stores.knowledge, graphs)
    assert await pending(stores) == 0


async def test_of_whom_nothing_is_known_there_is_no_graph(stores: Stores, scope: Scope) -> None:
    graphs = Graphs()
    graphs.graph.graphs[scope] = (3, Knowledge())
    assert not await is_current(scope, stores.knowledge, graphs)
    await restore_graph(scope, stores.knowledge, graphs)
    assert graphs.graph.graphs == {}
    assert await is_current(scope, stores.knowledge, graphs)


async def test_a_restore_that_was_cut_off_is_finished_by_the_next_look(stores: Stores, scope: Scope) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "tea")
    del graphs.graph.graphs[scope]
    graphs.graph.fault = lambda: StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await restore_graph(scope, stores.knowledge, graphs)
    assert await pending(stores) == 1
    with pytest.raises(StoreUnavailable):
        await settle_pending(stores.knowledge, graphs)
    graphs.graph.fault = lambda: None
    assert await settle_pending(stores.knowledge, graphs) == 1
    assert len(graphs.graph.graphs[scope][1].facts) == 1
    assert await pending(stores) == 0
    assert await settle_pending(stores.knowledge, graphs) == 0


async def test_P_forget_an_erasure_while_the_graph_is_restored_reaches_it(
    stores: Stores, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "the secret")
    restore = graphs.graph.restore

    async def erased_meanwhile(*words: object, **fields: object) -> None:
        await restore(*words, **fields)  # type: ignore[arg-type]
        await stores.archive.erase(scope, Selection("all"))

    monkeypatch.setattr(graphs.graph, "restore", erased_meanwhile)
    await restore_graph(scope, stores.knowledge, graphs)
    assert graphs.graph.graphs == {}


async def test_who_goes_on_talking_is_restored_later(
    stores: Stores, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "tea")
    restore, number = graphs.graph.restore, [0]

    async def ingested_meanwhile(*words: object, **fields: object) -> None:
        await restore(*words, **fields)  # type: ignore[arg-type]
        number[0] += 1
        graphs.graph.graphs[scope] = (number[0], Knowledge())
        await learn(stores, graphs, scope, f"{number}", number=number[0])

    monkeypatch.setattr(graphs.graph, "restore", ingested_meanwhile)
    with pytest.raises(StoreUnavailable, match="change"):
        await restore_graph(scope, stores.knowledge, graphs)
    assert await pending(stores) == 1


# -- erasures


async def test_an_erasure_tells_how_many_facts_went_and_that_the_graph_has_it(stores: Stores, scope: Scope) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "tea", "milk")
    await learn(stores, graphs, scope, "honey", number=1)
    await stores.archive.erase(scope, Selection("session", session_id="s0"))
    assert await settle_erasure(scope, stores.knowledge, graphs) == GraphErasure(2, "done")
    assert graphs.graph.graphs[scope] == await stores.knowledge.read(scope)
    assert [fact.statement.text for fact in graphs.graph.graphs[scope][1].facts] == ["honey"]
    await stores.archive.erase(scope, Selection("all"))
    assert await settle_erasure(scope, stores.knowledge, graphs) == GraphErasure(1, "done")
    assert graphs.graph.graphs == {}
    assert await stores.rows("graph_todo") == 0


async def test_an_erasure_of_turns_alone_asks_for_no_graph(stores: Stores, scope: Scope) -> None:
    graphs = Graphs()
    await stores.store(scope, [entry("hello")])
    await stores.archive.erase(scope, Selection("all"))
    assert await settle_erasure(scope, stores.knowledge, graphs) == GraphErasure()
    assert graphs.asked == []


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFault("refused")])
async def test_a_graph_that_is_away_forgets_when_it_is_back(stores: Stores, scope: Scope, error: Exception) -> None:
    graphs = Graphs()
    await learn(stores, graphs, scope, "the secret", "tea")
    await stores.archive.erase(scope, Selection("all"))
    graphs.graph.fault = lambda: error
    assert await settle_erasure(scope, stores.knowledge, graphs) == GraphErasure(2, "pending")
    assert await settle_erasure(scope, stores.knowledge, graphs) == GraphErasure(0, "pending")
    graphs.graph.fault = lambda: None
    assert await settle_pending(stores.knowledge, graphs) == 1
    assert graphs.graph.graphs == {}
    assert await stores.rows("graph_todo") == 0


async def test_a_graph_that_does_not_answer_is_waited_for_within_bounds(
    stores: Stores, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_upkeep, "GRAPH_ERASE_S", 0.05)
    graphs = Graphs()
    await learn(stores, graphs, scope, "the secret")
    await stores.archive.erase(scope, Selection("all"))

    async def hangs(vectors: str) -> GraphStore:
        await asyncio.Event().wait()
        return graphs.graph

    async with asyncio.timeout(30):
        assert await settle_erasure(scope, stores.knowledge, hangs) == GraphErasure(1, "pending")


async def test_one_graphs_refusal_is_not_the_others(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs()
    scopes = [new_scope(), new_scope()]
    for scope in scopes:
        await learn(stores, graphs, scope, "the secret")
        await stores.archive.erase(scope, Selection("all"))
    delete = graphs.graph.delete

    async def refused(scope: Scope) -> bool:
        if scope == scopes[0]:
            raise StoreFault("not ours")
        return await delete(scope)

    monkeypatch.setattr(graphs.graph, "delete", refused)
    assert await settle_pending(stores.knowledge, graphs) == 1
    assert set(graphs.graph.graphs) == {scopes[0]}
    assert await pending(stores) == 1


@pytest.mark.promise("P-erased")
async def test_P_erased_a_graph_that_takes_too_long_each_time_keeps_no_other_from_forgetting(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    scopes = [new_scope(), new_scope(), new_scope()]
    for scope in scopes:
        await learn(stores, graphs, scope, "the secret")
        await stores.archive.erase(scope, Selection("all"))
    delete = graphs.graph.delete

    async def slow(scope: Scope) -> bool:
        if scope == scopes[0]:
            raise StoreUnavailable("FalkorDB stopped a query that took longer than its TIMEOUT_DEFAULT.")
        return await delete(scope)

    monkeypatch.setattr(graphs.graph, "delete", slow)
    with pytest.raises(StoreUnavailable):
        await settle_pending(stores.knowledge, graphs)
    assert set(graphs.graph.graphs) == {scopes[0]}
    assert await pending(stores) == 1


async def test_graphs_that_are_away_one_after_the_other_are_not_all_waited_for(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, tried = Graphs(), list[Scope]()
    for _ in range(4):
        scope = new_scope()
        await learn(stores, graphs, scope, "the secret")
        await stores.archive.erase(scope, Selection("all"))

    async def away(scope: Scope) -> bool:
        tried.append(scope)
        raise StoreUnavailable("FalkorDB can't be reached.")

    monkeypatch.setattr(graphs.graph, "delete", away)
    with pytest.raises(StoreUnavailable):
        await settle_pending(stores.knowledge, graphs)
    assert (len(tried), await pending(stores)) == (2, 4)
