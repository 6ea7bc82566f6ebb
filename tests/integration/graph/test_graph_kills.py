"""The server of the graph killed while it is written to: never half a patch, and nothing that was confirmed is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from memory.errors import GraphStale, StoreUnavailable
from memory.identity import group_id
from memory.knowledge import Patch
from memory.models import Scope
from memory.stores.graph.store import FalkorGraphStore
from tests.support import graph_server
from tests.support.archives import new_scope
from tests.support.graph_server import ask
from tests.support.redis_server import RedisServer
from tests.support.talk import Memory, extracted, fact, turn

KILLS = 12
FACTS = 40


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with graph_server.running(*graph_server.DURABLE) as running:
        yield running


def patches(count: int) -> list[Patch]:
    """Patches of a user, each of which ends what the one before said and repeats something."""
    memory = Memory()
    for number in range(count):
        facts = [fact("user", "KNOWS", f"fact {number} {i}", f"User knows fact {number} {i}") for i in range(FACTS)]
        home = fact("user", "LIVES_IN", f"Town{number}", f"User lives in Town{number}")
        again = fact("user", "LIKES", "tea", "User likes tea")
        memory.hear(f"s{number}", [turn("…", day=number)], extracted(*facts, home, again))
    return memory.patches


def whole(server: RedisServer, scope: Scope) -> int:
    """How many patches the graph shows; each is there in all its parts."""
    graph = group_id(scope)
    ((version, episodes),) = ask(server, graph, "MATCH (m:Meta) OPTIONAL MATCH (e:Episodic) RETURN m.version, count(e)")
    assert version == episodes
    knows = "MATCH ()-[r:RELATES_TO]->() WHERE r.name = 'KNOWS' RETURN count(r)"
    assert ask(server, graph, knows) == [[FACTS * version]]
    homes = "MATCH ()-[r:RELATES_TO]->() WHERE r.name = 'LIVES_IN' AND r.invalid_at IS NULL RETURN r.fact"
    assert ask(server, graph, homes) == [[f"User lives in Town{version - 1}"]]
    tea = "MATCH ()-[r:RELATES_TO]->() WHERE r.name = 'LIKES' RETURN size(r.episodes)"
    assert ask(server, graph, tea) == [[version]]
    assert ask(server, graph, "MATCH (w:Wording) RETURN count(w)") == [[version - 1]]
    summary = ask(server, graph, "MATCH (n:Entity {key: 'user'}) RETURN n.summary")[0][0]
    assert summary.splitlines()[0] == f"User knows fact {version - 1} 0"
    return int(version)


@pytest.mark.promise("P-durable")
async def test_P_durable_no_kill_leaves_half_a_patch(server: RedisServer) -> None:
    chance = random.Random(7)
    scope, waiting = new_scope(), patches(KILLS)
    store = await FalkorGraphStore.connect(server.url(), model="words")
    saved = 0
    try:
        await store.save(scope, waiting[0], version=1, expected=0)
        saved = 1
        for _ in range(KILLS - 1):
            saving = asyncio.create_task(store.save(scope, waiting[saved], version=saved + 1, expected=saved))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)  # somewhere between asking and having the answer
            server.kill()
            server.start()
            try:
                await saving  # it insists: the server is back in time
                confirmed = saved + 1
            except (StoreUnavailable, GraphStale):
                confirmed = saved
            shown = whole(server, scope)
            assert shown in (confirmed, saved + 1)
            saved = shown
    finally:
        await store.aclose()
    assert saved > KILLS // 2


@pytest.mark.promise("P-durable")
async def test_P_durable_a_restore_that_is_cut_off_is_a_stale_graph(server: RedisServer) -> None:
    scope, memory = new_scope(), Memory()
    for number in range(5):
        facts = [fact("user", "KNOWS", f"f{number} {i}", f"User knows f{number} {i}") for i in range(90)]
        memory.hear(f"s{number}", [turn("…", day=number)], extracted(*facts))
    store = await FalkorGraphStore.connect(server.url(), model="words")
    try:
        restoring = asyncio.create_task(store.restore(scope, memory.knowledge, version=5))
        while (state := await store.state(scope)) is None:
            await asyncio.sleep(0)
        assert state.version == -1
        restoring.cancel()
        await asyncio.gather(restoring, return_exceptions=True)
        cut_off = await store.state(scope)
        assert cut_off is not None
        assert cut_off.version == -1
        with pytest.raises(GraphStale):
            await store.save(scope, memory.patches[-1], version=6, expected=5)
        await store.restore(scope, memory.knowledge, version=5)
        assert (await store.state(scope)) is not None
        count = "MATCH ()-[r:RELATES_TO]->() RETURN count(r)"
        assert ask(server, group_id(scope), count) == [[len(memory.knowledge.facts)]]
    finally:
        await store.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_a_deleted_graph_is_out_of_the_servers_files(server: RedisServer) -> None:
    scope = new_scope()
    memory = Memory()
    memory.hear("s", [turn("…")], extracted(fact("user", "LIKES", "tea", "User likes the canary zanzibar")))
    store = await FalkorGraphStore.connect(server.url(), model="words")
    try:
        await store.save(scope, memory.patches[0], version=1, expected=0)
        assert any(b"zanzibar" in path.read_bytes() for path in server.home.rglob("*.aof"))
        await store.delete(scope)
        async with asyncio.timeout(30):
            while any(b"zanzibar" in path.read_bytes() for path in server.home.rglob("*.[ar]*f")):
                await asyncio.sleep(0.02)
    finally:
        await store.aclose()
