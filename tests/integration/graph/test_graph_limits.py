"""FalkorDB at its limits: a user of many facts under its TIMEOUT, a full queue, and graphs that must not become more.

Nothing acknowledged is lost, what can't be done is told with what to do, and is done later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pytest

from memory.errors import StoreUnavailable
from memory.ingestion.tools import Outcome
from memory.knowledge import USER_ENTITY_KEY, Entity, Knowledge, KnownFact, Patch
from memory.knowledge_ports import EntityProbe, FactProbe, GraphMatches, GraphState
from memory.limits import GRAPH_TIMEOUT_S
from memory.models import Scope
from memory.stores.graph.store import FalkorGraphStore
from memory.wiring_ingestion import GraphPlace, checker
from tests.support import graph_server
from tests.support.archives import entry, new_scope
from tests.support.graph_server import configure, graphs
from tests.support.ingesting import DIMENSION, HashEmbedder, Plant
from tests.support.ingestion import START
from tests.support.knowing import USER, entity, episode, statement
from tests.support.redis_server import RedisServer
from tests.support.talk import chunk

pytestmark = [pytest.mark.timeout(300)]

MODEL = f"{HashEmbedder.model}/{DIMENSION}"
FACTS = 20_000
READS, READERS, WRITES = 200, 25, 20
UNLIMITED = 4_294_967_295


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A fresh one: its limits are changed."""
    with graph_server.running() as running:
        yield running


@contextlib.asynccontextmanager
async def connected(server: RedisServer, count: int) -> AsyncIterator[list[FalkorGraphStore]]:
    """So many stores, as so many processes have them: each has connections of its own."""
    async with contextlib.AsyncExitStack() as stack:
        stores = []
        for _ in range(count):
            stores.append(await FalkorGraphStore.connect(server.url(), model=MODEL))
            stack.push_async_callback(stores[-1].aclose)
        yield stores


@pytest.fixture
def model() -> str:
    return MODEL


def a_vector(seed: int) -> bytes:
    source = random.Random(seed)
    numbers = array("f", (source.gauss(0, 1) for _ in range(DIMENSION)))
    length = sum(number * number for number in numbers) ** 0.5
    return array("f", (number / length for number in numbers)).tobytes()


def facts_of(ep: str, start: int, count: int) -> tuple[list[Entity], list[KnownFact]]:
    """Facts from the user, all of whose edges meet in one node, to a tenth as many things."""
    things = [
        replace(entity(f"thing {number // 10}"), vector=a_vector(number)) for number in range(start, start + count)
    ]
    facts = [
        KnownFact(
            id=f"f{start + place}",
            subject_id=USER.id,
            object_id=thing.id,
            statement=replace(
                statement(f"User likes {thing.name} in way {start + place}", minute=start + place),
                vector=a_vector(start + place),
            ),
            origin=ep,
            episodes=(ep,),
            created_at=START,
        )
        for place, thing in enumerate(things)
    ]
    return list({one.id: one for one in things}.values()), facts


def known_user(size: int) -> Knowledge:
    first = chunk("first")
    things, facts = facts_of(first.id, 0, size)
    return Knowledge((episode(first),), (replace(USER, vector=a_vector(-1)), *things), tuple(facts))


def next_patch(known: Knowledge, number: int) -> Patch:
    """Seven new facts, and one that ends an old one."""
    own = chunk(f"call {number}")
    things, facts = facts_of(own.id, len(known.facts) + 10 * number, 7)
    ended = replace(known.facts[number], invalid_at=START, expired_at=START, conflicts=(facts[0].id,))
    touched = {USER.id, ended.object_id, *(thing.id for thing in things)}
    return Patch(episode(own), tuple(things), tuple(facts), changed=(ended,), touched=tuple(sorted(touched)))


def probes(count: int) -> tuple[list[EntityProbe], list[FactProbe]]:
    return (
        [EntityProbe(f"thing {n}", f"thing {n}", a_vector(10 * n)) for n in range(count)],
        [FactProbe(f"User likes thing in way {n}", a_vector(n)) for n in range(count)],
    )


async def found_in_the_end(
    store: FalkorGraphStore, scope: Scope, entities: Sequence[EntityProbe], facts: Sequence[FactProbe]
) -> GraphMatches:
    """What is found; a read that is stopped on a slow machine says so, and is made again as an ingestion is."""
    for _ in range(10):
        try:
            return await store.matches(scope, entities=entities, facts=facts, limit=10)
        except StoreUnavailable:
            continue
    raise AssertionError("stopped each time")


@pytest.mark.case("L26")
async def test_L26_a_user_of_many_facts_is_restored_searched_and_saved_under_a_timeout_of_a_second(
    store: FalkorGraphStore, server: RedisServer
) -> None:
    scope, known = new_scope(), known_user(FACTS)
    configure(server, "TIMEOUT", 1_000)  # of reads
    configure(server, "TIMEOUT_DEFAULT", 1_000)  # of writes as well
    await store.restore(scope, known, version=1)
    entities, facts = probes(7)
    for number in range(5):
        found = await found_in_the_end(store, scope, entities, facts)
        assert all(f"f{place}" in ids for place, ids in enumerate(found.facts))
        await store.save(scope, next_patch(known, number), version=number + 2, expected=number + 1)
    assert await store.state(scope) == GraphState(6, MODEL, DIMENSION)


async def read(store: FalkorGraphStore, scope: Scope) -> GraphMatches | StoreUnavailable:
    """What a recall of the graph gives, within what its queries may take; any other end of it is an error."""
    entities, facts = probes(1)
    try:
        async with asyncio.timeout(4 * GRAPH_TIMEOUT_S):
            return await store.matches(scope, entities=entities, facts=facts, limit=10)
    except StoreUnavailable as refused:
        return refused


async def ingest_until_done(plant: Plant, users: Sequence[int]) -> None:
    """As workers do it: what waits is tried again when its time has come."""
    for user in users:
        while (outcome := await plant.ingestor.ingest_next(user)) is not Outcome.DONE:
            assert outcome in (Outcome.WAITS, Outcome.NOTHING)
            plant.stores.clock.seconds += 60.0


@pytest.mark.case("L26")
async def test_L26_a_full_queue_refuses_reads_and_puts_writes_off_and_nothing_acknowledged_is_lost(
    plant: Plant, store: FalkorGraphStore, server: RedisServer
) -> None:
    crowded = new_scope()
    await store.restore(crowded, known_user(FACTS), version=1)
    scopes = [new_scope() for _ in range(WRITES)]
    users = [
        await plant.said(scope, [entry("I live in Leeds."), entry("My dog is called Rex.", minute=1)])
        for scope in scopes
    ]
    configure(server, "MAX_QUEUED_QUERIES", 25)
    async with connected(server, READERS) as readers:
        reading = [asyncio.create_task(read(readers[number % READERS], crowded)) for number in range(READS)]
        await ingest_until_done(plant, users)
        answers = await asyncio.gather(*reading)
    configure(server, "MAX_QUEUED_QUERIES", UNLIMITED)
    refused = [str(one) for one in answers if isinstance(one, StoreUnavailable)]
    assert refused
    assert all("MAX_QUEUED_QUERIES" in told or "did not answer within" in told for told in refused)
    assert all(one.facts[0][0] == "f0" for one in answers if isinstance(one, GraphMatches))
    for scope in scopes:
        version, known = await plant.stores.knowledge.read(scope)
        assert sorted(one.statement.text for one in known.facts) == ["User lives in Leeds", "User's dog is called Rex"]
        assert await store.state(scope) == GraphState(version, MODEL, DIMENSION)
    assert len(graphs(server)) == WRITES + 1


@pytest.mark.case("L26")
async def test_L26_a_query_that_is_stopped_is_seen_in_health_and_counted_and_done_later(
    plant: Plant, store: FalkorGraphStore, server: RedisServer
) -> None:
    scope = new_scope()
    user = await plant.said(scope, [entry("I live in Leeds.")])
    await plant.ingest_all(user)
    check = checker(GraphPlace(server.url(), None, None, "FalkorDB"), plant.ingestor)
    assert await check() == "FalkorDB connected"
    await grow_graph(plant, store, scope, 2_000)
    await plant.said(scope, [entry("My dog is called Rex.", session="s2", minute=30)], start=30)
    configure(server, "TIMEOUT_DEFAULT", 1)
    assert await plant.ingest_all(user) == [Outcome.WAITS]
    assert plant.counters["ingest.waits"] == 1
    with pytest.raises(StoreUnavailable, match="TIMEOUT_DEFAULT"):
        await check()
    [waiting] = await plant.stores.waiting(scope)
    assert "TIMEOUT_DEFAULT" in waiting.reason
    assert await plant.facts(scope) == ["User lives in Leeds"]
    configure(server, "TIMEOUT_DEFAULT", 0)
    plant.stores.clock.seconds += 60.0
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await check() == "FalkorDB connected"
    assert await plant.facts(scope) == ["User lives in Leeds", "User's dog is called Rex"]


async def grow_graph(plant: Plant, store: FalkorGraphStore, scope: Scope, size: int) -> None:
    """Give the user's graph, and that alone, so many more facts."""
    version, known = await plant.stores.knowledge.read(scope)
    user = next(one.id for one in known.entities if one.key == USER_ENTITY_KEY)
    more = known_user(size)
    facts = tuple(replace(one, subject_id=user) for one in more.facts)
    grown = replace(known, entities=(*known.entities, *more.entities), facts=(*known.facts, *facts))
    await store.restore(scope, grown, version=version)


WRONG_NUMBER = ("Sorry, wrong number.", "mm-hm", "Hello? Hello?", "Thank you, bye.")


def used_bytes(server: RedisServer) -> int:
    with contextlib.closing(server.client()) as client:
        used: int = client.info("memory")["used_memory"]
    return used


@pytest.mark.case("L25")
async def test_L25_a_thousand_calls_that_say_nothing_and_as_many_reads_make_no_graph(
    plant: Plant, store: FalkorGraphStore, server: RedisServer
) -> None:
    scopes = [new_scope() for _ in range(1_000)]
    assert await store.state(new_scope()) is None  # whatever a first query costs
    before = used_bytes(server)
    greeting = "Hello, this is the clinic. How can I help?"
    for number, scope in enumerate(scopes):
        call = [entry(greeting, role="assistant"), entry(WRONG_NUMBER[number % 4], minute=1)]
        assert await plant.ingest_all(await plant.said(scope, call)) == [Outcome.DONE]
    entities, facts = probes(1)
    for scope in (new_scope() for _ in range(1_000)):
        assert await store.state(scope) is None
        assert await store.matches(scope, entities=entities, facts=facts, limit=5) == GraphMatches(((),), ((),))
        assert (await plant.stores.knowledge.changes(scope, after=0, limit=10)).facts == ()
    assert (await plant.stores.chunks.counts())["done"] == 1_000
    assert graphs(server) == []
    assert used_bytes(server) - before < 200_000, "less than a single graph takes"
