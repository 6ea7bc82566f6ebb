"""Looking after what is known: chunks by hand, graphs rebuilt, vectors made anew. Real SQL, a graph in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.errors import EmbeddingChanged, ProviderAnswerInvalid, ProviderUnavailable, StoreUnavailable
from memory.ingestion import upkeep
from memory.ingestion.upkeep import Report, Upkeep, chunks_in, each_user, move_all, one_user, texts_of, with_vectors
from memory.knowledge import ChunkState, Knowledge, Mention
from memory.knowledge_ports import GraphState, GraphStore, KnownUser
from memory.models import Scope
from memory.stores.knowledge_schema import episodes
from memory.stores.knowledge_upkeep import SqlKnownUsers
from tests.support.archives import entry, new_scope, sqlite_url, turns
from tests.support.graph_llm import vector
from tests.support.ingesting import MemoryGraph
from tests.support.ingestion import START
from tests.support.knowing import Stores, entity, known_fact, learnt, opened, worded

NEW = "another/8"


@pytest.fixture
async def stores(data_dir: Path) -> AsyncIterator[Stores]:
    async with opened(sqlite_url(data_dir), vectors="small/4") as found:
        yield found


class OtherEmbedder:
    """``Embedder`` of eight numbers. ``fails_at``: the call that fails, from 1."""

    model, dimension = "another", 8

    def __init__(self, *, fails_at: int = 0, length: int = 8) -> None:
        self.fails_at, self.length, self.calls = fails_at, length, 0
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise ProviderUnavailable("away")
        self.texts += texts
        return np.array([vector(text, self.length) for text in texts], np.float32)


class LabelledGraph(MemoryGraph):
    """Tells what its vectors are of, as a real graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[Scope, str] = {}
        self.label = ""

    async def restore(self, scope: Scope, knowledge: Knowledge, *, version: int) -> None:
        await super().restore(scope, knowledge, version=version)
        self.labels[scope] = self.label

    async def state(self, scope: Scope) -> GraphState | None:
        found = await super().state(scope)
        return found and GraphState(found.version, self.labels.get(scope, ""), 0)


@pytest.fixture
def graph() -> LabelledGraph:
    return LabelledGraph()


def upkeep_of(stores: Stores, graph: LabelledGraph) -> Upkeep:
    async def graphs(vectors: str) -> GraphStore:
        graph.label = vectors
        return graph

    return Upkeep(users_of(stores), stores.knowledge, graphs)


def users_of(stores: Stores) -> SqlKnownUsers:
    return SqlKnownUsers(stores.archive.database, stores.archive.users)


async def learn(stores: Stores, scope: Scope, *texts: str, number: int = 0) -> None:
    chunk = await stores.chunk(scope, [entry("hello", session=f"s{number}")], start=1 + number)

    async def project(version: int) -> None:
        """The graph is away: what the stores' tests do not look at."""

    patch = learnt(chunk, *texts)
    if texts:
        anna = replace(entity("Anna"), vector=b"\1\1\1\1")
        called = Mention(f"m{chunk.id}", chunk.id, anna.id, "Annie", START, b"\2\2\2\2")
        again = worded(known_fact(texts[0], chunk), f"{texts[0]}, again", chunk)
        patch = replace(patch, entities=(*patch.entities, anna), mentions=(*patch.mentions, called), wordings=(again,))
    assert await stores.knowledge.commit(chunk, patch, project)


def all_users(stores: Stores) -> AsyncIterator[KnownUser]:
    return each_user(users_of(stores), org_id=None, agent_id=None)


# -- users


async def test_users_of_whom_something_is_known_are_gone_through_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PAGE", 2)
    scopes = [new_scope(org_id="o" if number < 3 else "p", user_id=f"u{number}") for number in range(5)]
    for scope in scopes:
        await learn(stores, scope, "tea")
    await stores.store(new_scope(), turns(1))
    assert [user.scope async for user in all_users(stores)] == scopes
    of_org = each_user(users_of(stores), org_id="p", agent_id="a")
    assert [user.scope async for user in of_org] == scopes[3:]
    assert [user.scope async for user in one_user(users_of(stores), scopes[1])] == [scopes[1]]
    assert [user async for user in one_user(users_of(stores), new_scope())] == []
    user = await users_of(stores).of(scopes[0])
    assert user is not None
    assert (user.vectors, user.lost) == ("small/4", 0)


# -- rebuild


async def test_every_graph_is_rebuilt_from_sql(stores: Stores, graph: LabelledGraph) -> None:
    scopes = [new_scope() for _ in range(3)]
    for number, scope in enumerate(scopes):
        await learn(stores, scope, f"{number}")
    told: list[int] = []
    report = await upkeep_of(stores, graph).rebuild(all_users(stores), told.append)
    assert report == Report(users=3)
    assert told == [1, 1, 1]
    for scope in scopes:
        assert graph.graphs[scope] == await stores.knowledge.read(scope)
    assert set(graph.labels.values()) == {"small/4"}
    assert await stores.rows("graph_todo") == 0


async def test_chunks_whose_facts_sql_has_lost_are_told_and_ingested_again_if_wished(
    stores: Stores, graph: LabelledGraph
) -> None:
    scope = new_scope()
    await learn(stores, scope, "tea")
    await learn(stores, scope, "milk", number=1)
    async with stores.archive.database.writing(5) as connection:
        await connection.execute(sa.delete(episodes).where(episodes.c.session_id == "s0"))
    work = upkeep_of(stores, graph)
    assert await work.rebuild(all_users(stores), lambda _: None) == Report(users=1, lost=1)
    assert await stores.waiting(scope) == []
    report = await work.rebuild(all_users(stores), lambda _: None, again=stores.chunks)
    assert report == Report(users=1, lost=1, again=1)
    assert [chunk.session_id for chunk in await stores.waiting(scope)] == ["s0"]


async def test_a_graph_that_is_away_is_asked_once_and_left_to_the_worker(stores: Stores, graph: LabelledGraph) -> None:
    for _ in range(3):
        await learn(stores, new_scope(), "tea")
    graph.fault = lambda: StoreUnavailable("away")
    report = await upkeep_of(stores, graph).rebuild(all_users(stores), lambda _: None)
    assert report == Report(failed=3)
    assert graph.calls == ["restore"]
    assert len(await stores.knowledge.pending_graph_erasures(limit=10)) == 3
    graph.fault = lambda: None
    assert await upkeep_of(stores, graph).settle() == 3
    assert len(graph.graphs) == 3


# -- reindex


@pytest.mark.case("S04")
async def test_S04_all_vectors_are_made_anew_and_the_graphs_restored(stores: Stores, graph: LabelledGraph) -> None:
    scope = new_scope()
    await learn(stores, scope, "tea", "milk")
    before = (await stores.knowledge.read(scope))[1]
    embedder = OtherEmbedder()
    report = await upkeep_of(stores, graph).reindex(all_users(stores), embedder, NEW, lambda _: None)
    assert report == Report(users=1, texts=len(embedder.texts))
    assert sorted(embedder.texts) == sorted({"tea", "milk", "tea, again", "Sam", "Anna", "Annie"})
    version, after = await stores.knowledge.read(scope)
    assert after == with_vectors(before, {text: vector(text, 8).tobytes() for text in embedder.texts})
    assert version == 2
    assert graph.graphs[scope] == (version, after)
    assert graph.labels[scope] == NEW
    assert await stores.knowledge.vectors(scope) == NEW
    assert (await stores.knowledge.changes(scope, after=1, limit=10)).facts == ()
    with pytest.raises(EmbeddingChanged):
        await stores.knowledge.related(scope, keys=["user"], entity_ids=[], fact_ids=[])


@pytest.mark.case("S04")
async def test_S04_a_reindex_that_was_cut_off_goes_on_where_it_was(stores: Stores, graph: LabelledGraph) -> None:
    scopes = [new_scope() for _ in range(3)]
    for scope in scopes:
        await learn(stores, scope, "tea")
    with pytest.raises(ProviderUnavailable):
        await upkeep_of(stores, graph).reindex(all_users(stores), OtherEmbedder(fails_at=2), NEW, lambda _: None)
    assert [await stores.knowledge.vectors(scope) for scope in scopes] == [NEW, "small/4", "small/4"]
    embedder = OtherEmbedder()
    report = await upkeep_of(stores, graph).reindex(all_users(stores), embedder, NEW, lambda _: None)
    assert (report.users, report.current, embedder.calls) == (2, 1, 2)
    assert [await stores.knowledge.vectors(scope) for scope in scopes] == [NEW] * 3


async def test_a_graph_that_missed_the_reindex_is_restored_by_the_next(stores: Stores, graph: LabelledGraph) -> None:
    scope = new_scope()
    await learn(stores, scope, "tea")
    graph.fault = lambda: StoreUnavailable("away")
    report = await upkeep_of(stores, graph).reindex(all_users(stores), OtherEmbedder(), NEW, lambda _: None)
    assert (report.users, report.failed) == (0, 1)
    graph.fault = lambda: None
    embedder = OtherEmbedder()
    report = await upkeep_of(stores, graph).reindex(all_users(stores), embedder, NEW, lambda _: None)
    assert (report.users, report.failed, embedder.calls) == (1, 0, 0)
    assert graph.labels[scope] == NEW


@pytest.mark.case("S04")
async def test_S04_vectors_of_a_wrong_length_are_kept_nowhere(stores: Stores, graph: LabelledGraph) -> None:
    scope = new_scope()
    await learn(stores, scope, "tea")
    before = await stores.knowledge.read(scope)
    with pytest.raises(ProviderAnswerInvalid):
        await upkeep_of(stores, graph).reindex(all_users(stores), OtherEmbedder(length=7), NEW, lambda _: None)
    assert await stores.knowledge.read(scope) == before


async def test_who_learns_meanwhile_is_embedded_with_that(
    stores: Stores, graph: LabelledGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = new_scope()
    await learn(stores, scope, "tea")
    embedder = OtherEmbedder()
    embed = embedder.embed

    async def learning(texts: Sequence[str]) -> NDArray[np.float32]:
        if embedder.calls == 0:
            embedder.calls += 1
            await learn(stores, scope, "milk", number=1)
        return await embed(texts)

    monkeypatch.setattr(embedder, "embed", learning)
    await upkeep_of(stores, graph).reindex(all_users(stores), embedder, NEW, lambda _: None)
    known = (await stores.knowledge.read(scope))[1]
    assert {len(fact.statement.vector) for fact in known.facts} == {32}
    assert len(known.facts) == 2


@given(texts=st.lists(st.sampled_from("abc"), max_size=3, unique=True))
def test_every_vector_is_replaced_and_nothing_else(texts: list[str]) -> None:
    known = Knowledge(entities=tuple(entity(text) for text in texts))
    made = {text: b"new" + text.encode() for text in texts_of(known)}
    after = with_vectors(known, made)
    assert [one.vector for one in after.entities] == [made[one.name] for one in known.entities]
    assert [replace(one, vector=b"") for one in after.entities] == [replace(one, vector=b"") for one in known.entities]


# -- chunks


async def test_chunks_of_several_states_are_listed_oldest_first_and_moved(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PAGE", 2)
    chunks = []
    for number in range(7):
        stores.clock.seconds = float(number)
        chunks.append(await stores.chunk(new_scope(), turns(1)))
    for chunk in chunks[::2]:
        await stores.chunks.failed(chunk, reason="poison", not_before=None)
    listed = await chunks_in(stores.chunks, list(ChunkState), limit=100)
    assert [status.chunk.id for status in listed] == [chunk.id for chunk in chunks]
    assert len(await chunks_in(stores.chunks, list(ChunkState), limit=3)) == 3
    assert await move_all(stores.chunks, [ChunkState.DEAD], to=ChunkState.WAITING) == 4
    assert (await stores.chunks.counts())["waiting"] == 7
