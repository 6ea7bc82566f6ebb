"""The graph store on a real FalkorDB: saved whole, found, restored, deleted; never made by a read."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

import pytest

from memory.errors import GraphStale, NoGraphServer, StoreFault, StoreUnavailable
from memory.identity import group_id
from memory.ingestion.summaries import summary
from memory.knowledge import EntityKind, Knowledge, Patch
from memory.knowledge_ports import EntityProbe, FactProbe, GraphMatches, GraphState
from memory.models import Scope
from memory.stores.graph.store import FalkorGraphStore, require_graphs
from tests.support import redis_server
from tests.support.archives import new_scope
from tests.support.graph_server import ask, configure, graphs
from tests.support.redis_server import RedisServer
from tests.support.talk import DIMENSION, NOON, Memory, extracted, fact, turn, vector

MODEL = "words"


@pytest.fixture
def model() -> str:
    return MODEL


def a_patch(*texts: str, session: str = "s1") -> Patch:
    """The user likes things, in these words."""
    facts = [fact("user", "LIKES", f"thing {place}", text) for place, text in enumerate(texts)]
    return Memory().hear(session, [turn("I like things")], extracted(*facts))


async def known_by_word(store: FalkorGraphStore, scope: Scope, text: str) -> tuple[str, ...]:
    """Ids of facts found by keyword alone: the probe has no vector."""
    found = await store.matches(scope, entities=[], facts=[FactProbe(text, b"")], limit=10)
    return found.facts[0]


def shown(server: RedisServer, scope: Scope) -> list[list[object]]:
    """Everything in a graph but vectors, sorted; a graph restored from SQL has the same."""
    graph = group_id(scope)
    nodes = ask(
        server,
        graph,
        "MATCH (n) WHERE NOT n:Meta RETURN labels(n), n.uuid, n.name, n.fact, n.summary, n.content, n.entity_edges,"
        " n.key, n.kind, n.edge, n.episode, n.valid_at, n.group_id",
    )
    edges = ask(
        server,
        graph,
        "MATCH (a)-[r]->(b) RETURN a.uuid, b.uuid, type(r), r.uuid, r.name, r.fact, r.episodes, r.origin, r.valid_at,"
        " r.invalid_at, r.expired_at, r.conflicts, r.turns, r.words, r.group_id",
    )
    return sorted([*nodes, *edges], key=str)


async def test_what_was_never_written_is_no_graph_and_stays_none(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    before = graphs(server)
    assert await store.state(scope) is None
    probes = [FactProbe("likes peanuts", vector("likes peanuts"))]
    entities = [EntityProbe("acme", "Acme", vector("Acme"))]
    assert await store.matches(scope, entities=entities, facts=probes, limit=5) == GraphMatches(((),), ((),))
    assert await store.delete(scope) is False
    with pytest.raises(GraphStale):
        await store.save(scope, a_patch("User likes tea"), version=8, expected=7)
    assert graphs(server) == before


async def test_a_save_is_found_by_vector_and_by_keyword(store: FalkorGraphStore, scope: Scope) -> None:
    patch = a_patch("User likes peanut butter", "User likes green tea")
    await store.save(scope, patch, version=1, expected=0)
    peanuts, tea = patch.facts
    found = await store.matches(
        scope,
        entities=[EntityProbe("thing 0", "thing 0", vector("thing 0"))],
        facts=[FactProbe("User likes peanut butter", vector("User likes peanut butter"))],
        limit=1,
    )
    assert found.facts == ((peanuts.id,),)
    assert found.entities == ((next(one.id for one in patch.entities if one.key == "thing 0"),),)
    assert await known_by_word(store, scope, "any TEAS here?") == (tea.id,)
    assert await store.state(scope) == GraphState(1, MODEL, DIMENSION)


async def test_a_save_of_another_version_changes_nothing(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    before = shown(server, scope)
    for version, expected in ((3, 2), (1, 0)):
        with pytest.raises(GraphStale):
            await store.save(scope, a_patch("User likes ale", session="s2"), version=version, expected=expected)
    assert shown(server, scope) == before


async def test_a_save_that_is_repeated_is_taken_once(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    patch = a_patch("User likes tea")
    await store.save(scope, patch, version=1, expected=0)
    before = shown(server, scope)
    later = replace(patch, episode=replace(patch.episode, created_at=NOON + timedelta(days=2)))
    await store.save(scope, later, version=1, expected=0)
    assert shown(server, scope) == before


async def test_a_save_of_another_model_is_refused(server: RedisServer, store: FalkorGraphStore, scope: Scope) -> None:
    await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    other = await FalkorGraphStore.connect(server.url(), model="another")
    try:
        with pytest.raises(GraphStale):
            await other.save(scope, a_patch("User likes ale", session="s2"), version=2, expected=1)
    finally:
        await other.aclose()


@pytest.mark.case("S04")
async def test_S04_vectors_of_another_length_leave_the_keywords(store: FalkorGraphStore, scope: Scope) -> None:
    patch = a_patch("User likes tea")
    await store.save(scope, patch, version=1, expected=0)
    longer = vector("User likes tea") * 2
    found = await store.matches(
        scope, entities=[EntityProbe("x", "x", longer)], facts=[FactProbe("likes tea", longer)], limit=5
    )
    assert found == GraphMatches(((),), ((patch.facts[0].id,),))
    text = patch.facts[0].statement
    changed = replace(patch.facts[0], statement=replace(text, vector=longer))
    with pytest.raises(GraphStale):
        await store.save(scope, replace(patch, facts=(changed,)), version=2, expected=1)


def a_history() -> Memory:
    """Three calls: facts, a move, a repetition in other words."""
    memory = Memory()
    memory.hear(
        "s1",
        [turn("I live in Leeds and like tea")],
        extracted(
            fact("user", "LIVES_IN", "Leeds", "User lives in Leeds"), fact("user", "LIKES", "tea", "User likes tea")
        ),
    )
    memory.hear(
        "s2", [turn("I moved to York", day=1)], extracted(fact("user", "LIVES_IN", "York", "User moved to York"))
    )
    memory.hear("s3", [turn("I like tea", day=2)], extracted(fact("user", "LIKES", "tea", "User likes tea.")))
    return memory


async def test_a_restored_graph_is_the_saved_one(store: FalkorGraphStore, server: RedisServer, scope: Scope) -> None:
    memory = a_history()
    for number, patch in enumerate(memory.patches, 1):
        await store.save(scope, patch, version=number, expected=number - 1)
    saved = shown(server, scope)
    await store.restore(scope, memory.knowledge, version=3)
    assert shown(server, scope) == saved
    assert await store.state(scope) == GraphState(3, MODEL, DIMENSION)
    by_vector = [FactProbe("User moved to York", vector("User moved to York"))]
    found = await store.matches(scope, entities=[], facts=by_vector, limit=1)
    assert found.facts[0][0] == next(one.id for one in memory.knowledge.facts if "York" in one.statement.text)


async def test_nodes_carry_the_summaries_of_their_live_facts(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    memory = a_history()
    long = [f"User likes {'very ' * 60}much thing {place}" for place in range(20)]
    memory.hear(
        "s4", [turn("more", day=3)], extracted(*(fact("user", "LIKES", f"x{i}", text) for i, text in enumerate(long)))
    )
    for number, patch in enumerate(memory.patches, 1):
        await store.save(scope, patch, version=number, expected=number - 1)
    now = memory.patches[-1].episode.created_at
    expected = {one.id: summary(one.id, memory.knowledge.facts, now=now) for one in memory.knowledge.entities}
    found = dict(ask(server, group_id(scope), "MATCH (n:Entity) RETURN n.uuid, n.summary"))
    assert found == expected
    assert max(map(len, found.values())) > 500


async def test_a_changed_fact_has_its_new_vector(store: FalkorGraphStore, scope: Scope) -> None:
    patch = a_patch("User likes tea")
    await store.save(scope, patch, version=1, expected=0)
    known = patch.facts[0]
    new = replace(known, statement=replace(known.statement, text="User owns a yacht", vector=vector("yacht")))
    empty = Patch(episode=replace(patch.episode, id="ep2"), changed=(new,), touched=(known.subject_id,))
    await store.save(scope, empty, version=2, expected=1)
    found = await store.matches(scope, entities=[], facts=[FactProbe("yacht", vector("yacht"))], limit=1)
    assert found.facts == ((known.id,),)
    assert await known_by_word(store, scope, "tea") == ()


async def test_a_deleted_graph_is_stale_and_can_be_restored(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    memory = a_history()
    await store.save(scope, memory.patches[0], version=1, expected=0)
    with contextlib.closing(server.client()) as client:
        client.execute_command("GRAPH.DELETE", group_id(scope))
    with pytest.raises(GraphStale):
        await store.save(scope, memory.patches[1], version=2, expected=1)
    assert await store.state(scope) is None
    await store.restore(scope, memory.knowledge, version=3)
    assert await store.delete(scope) is True
    assert await store.state(scope) is None
    assert group_id(scope) not in graphs(server)


async def test_nothing_known_is_restored_as_no_graph(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    await store.restore(scope, Knowledge(), version=0)
    assert group_id(scope) not in graphs(server)


async def test_somebody_elses_graph_is_not_written_over(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    with contextlib.closing(server.client()) as client:
        client.execute_command("GRAPH.QUERY", group_id(scope), "CREATE (:Entity {uuid: 'theirs'})")
    assert await store.state(scope) == GraphState(-1, "", 0)
    with pytest.raises(GraphStale):
        await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    with pytest.raises(StoreFault, match=r"GRAPH\.DELETE"):
        await store.restore(scope, a_history().knowledge, version=3)
    assert ask(server, group_id(scope), "MATCH (n:Entity) RETURN n.uuid") == [["theirs"]]


@pytest.mark.parametrize("user", ["u-42", "3f2a0c1e-7b11-4e0a-9a55-0000000000aa", "u_42", "_", "+923136488867"])
@pytest.mark.case("L18")
async def test_L18_a_fact_is_found_by_keyword_whatever_the_users_id(store: FalkorGraphStore, user: str) -> None:
    scope = new_scope(user_id=user)
    patch = a_patch("User has a peanut allergy")
    await store.save(scope, patch, version=1, expected=0)
    assert await known_by_word(store, scope, "peanut") == (patch.facts[0].id,)
    await store.check_keyword_leg()


NASTY = [
    "what about peanuts (order #12-34)?",
    "the file is report _ final of peanuts",
    "a _ b peanuts",
    "x \x00 y peanuts",
    "run `ls` | grep peanuts",
    "C++ & C# peanuts",
    "@group_id:{*} peanuts",
    "1/2 cup -sugar peanuts",
    "\ud83d peanuts",
    "'" * 500 + '"' * 500 + " peanuts",
    "peanuts " + " ".join(f"w{number}" for number in range(300)),
    "\\ } ) ] peanuts \\",
    "%peanuts~*",
]


@pytest.mark.parametrize("query", NASTY)
@pytest.mark.case("L19")
async def test_L19_users_words_are_no_query_language(store: FalkorGraphStore, scope: Scope, query: str) -> None:
    theirs, mine = a_patch("User likes peanuts", session="theirs"), a_patch("User likes peanuts", session="mine")
    await store.save(new_scope(), theirs, version=1, expected=0)
    await store.save(scope, mine, version=1, expected=0)
    assert await known_by_word(store, scope, query) == (mine.facts[0].id,)


@pytest.mark.parametrize("query", ["_", "?!", "\x00", "", "the of and", "’’", "@words:(*)"])
@pytest.mark.case("L19")
async def test_L19_a_query_without_words_finds_nothing(store: FalkorGraphStore, scope: Scope, query: str) -> None:
    await store.save(scope, a_patch("User likes peanuts"), version=1, expected=0)
    assert await known_by_word(store, scope, query) == ()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("المستخدم يُحِبُّ القهوة؟", "القهوه"),
        ("المستخدم في إسطنبول،", "اسطنبول"),
        ("User’s “order” is №５１２", "512 order"),
        ("El usuario vive en Málaga.", "malaga"),
        ("用户住在北京市", "北京"),
        ("Юзер любит чай", "ЧАЙ"),
    ],
)
async def test_words_of_other_scripts_are_found(store: FalkorGraphStore, scope: Scope, text: str, query: str) -> None:
    patch = a_patch(text)
    await store.save(scope, patch, version=1, expected=0)
    assert await known_by_word(store, scope, query) == (patch.facts[0].id,)


HOSTILE = [
    "User said 'it''s' \"fine\" \\",
    "User likes }) DETACH DELETE n //",
    "User likes $facts {} {{x}} `tick`",
    "User likes {`a`: 1}\n\tand new lines",
    "User likes \ud83d lone \x00 nul \x1b[31m",
    "User likes 😀 \u202e right-to-left",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_bad_input_is_stored_as_text(
    store: FalkorGraphStore, server: RedisServer, scope: Scope, text: str
) -> None:
    patch = a_patch("User likes tea")
    one = patch.facts[0]
    hostile = replace(patch, facts=(replace(one, statement=replace(one.statement, text=text)), *patch.facts[1:]))
    await store.save(scope, hostile, version=1, expected=0)
    stored = text.replace("\ud83d", "\ufffd").replace("\x00", "").replace("\x1b", "")
    assert ask(server, group_id(scope), "MATCH ()-[r:RELATES_TO]->() RETURN r.fact") == [[stored]]


async def kinds(server: RedisServer, scope: Scope) -> dict[str, str]:
    """The labels of each entity, as FalkorDB shows them."""
    return dict(ask(server, group_id(scope), "MATCH (n:Entity) RETURN n.name, labels(n)"))


async def test_nodes_are_labelled_by_kind_and_a_graph_without_labels_gets_them_restored(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    memory = Memory()
    said = [fact("user", "KNOWS", name, f"User knows {name}") for name in ("Omar", *EntityKind)]
    memory.hear("s1", [turn("I know")], extracted(*said, Omar="Person", **{kind: kind.value for kind in EntityKind}))
    await store.save(scope, memory.patches[0], version=1, expected=0)
    labelled = {"User": "[Entity, Person]", "Omar": "[Entity, Person]"}
    labelled |= {kind.value: f"[Entity, {kind}]" for kind in EntityKind}
    assert await kinds(server, scope) == labelled
    with contextlib.closing(server.client()) as client:  # as it was made before there were labels
        client.execute_command("GRAPH.QUERY", group_id(scope), "MATCH (n:Person) REMOVE n:Person")
    assert (await kinds(server, scope))["Omar"] == "[Entity]"
    await store.restore(scope, memory.knowledge, version=1)
    assert await kinds(server, scope) == labelled


@pytest.mark.parametrize(
    "kind", ["", "Entity", "Meta", "Episodic", "Dog Breed", "Person:Meta", "X) DETACH DELETE n //"]
)
async def test_bad_input_a_kind_that_is_none_of_ours_is_no_label(
    store: FalkorGraphStore, server: RedisServer, scope: Scope, kind: str
) -> None:
    patch = a_patch("User likes tea")
    strange = replace(patch, entities=tuple(replace(one, kind=kind) for one in patch.entities))
    await store.save(scope, strange, version=1, expected=0)
    assert set((await kinds(server, scope)).values()) == {"[Entity]"}


@pytest.mark.parametrize("user", ["محمد", "😀🎉", "n" * 400, "a\"b'c}{`$", "a/b\\c d"])
async def test_bad_input_users_of_any_name_have_a_graph_each(
    store: FalkorGraphStore, server: RedisServer, user: str
) -> None:
    scope = new_scope(user_id=user)
    memory = Memory()
    patch = memory.hear(
        "s", [turn("hi")], extracted(fact("user", "HAS_NAME", user * 10, f"User's name is {user * 10}"))
    )
    await store.save(scope, patch, version=1, expected=0)
    assert group_id(scope) in graphs(server)
    assert await store.state(scope) == GraphState(1, MODEL, DIMENSION)
    assert await store.delete(scope) is True


@pytest.mark.case("L25")
async def test_L25_reads_of_strangers_make_no_graph(store: FalkorGraphStore, server: RedisServer) -> None:
    before = graphs(server)
    probes = [FactProbe("hello", vector("hello"))]
    for _ in range(1_000):
        scope = new_scope()
        assert await store.state(scope) is None
        assert (await store.matches(scope, entities=[], facts=probes, limit=5)).facts == ((),)
    assert graphs(server) == before


@pytest.mark.case("L26")
async def test_L26_a_busy_server_refuses_reads_in_time_and_takes_writes_in_the_end(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    writer = await FalkorGraphStore.connect(server.url(), model=MODEL)
    configure(server, "MAX_QUEUED_QUERIES", 1)
    try:
        probes = [FactProbe("tea", vector("tea"))]
        reads = [store.matches(scope, entities=[], facts=probes, limit=5) for _ in range(100)]
        writes = [
            asyncio.create_task(writer.save(new_scope(), a_patch("User likes ale"), version=1, expected=0))
            for _ in range(20)
        ]
        answers = await asyncio.gather(*reads, return_exceptions=True)
    finally:
        configure(server, "MAX_QUEUED_QUERIES", 4_294_967_295)  # that busy for as long as a write waits: it is put off
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert refused
    assert all(isinstance(one, StoreUnavailable) and "MAX_QUEUED_QUERIES" in str(one) for one in refused)
    assert await asyncio.gather(*writes) == [None] * 20
    await writer.aclose()


@pytest.mark.case("L26")
async def test_L26_a_query_that_is_stopped_is_told_of_and_leaves_nothing(
    store: FalkorGraphStore, server: RedisServer, scope: Scope
) -> None:
    await store.save(scope, a_patch("User likes tea"), version=1, expected=0)
    before = shown(server, scope)
    big = a_patch(*(f"User likes thing number {number}" for number in range(100)), session="s2")
    big = replace(big, wordings=(), touched=big.touched * 15)
    configure(server, "TIMEOUT_DEFAULT", 1)
    try:
        with pytest.raises(StoreUnavailable, match="TIMEOUT_DEFAULT"):
            await store.save(scope, big, version=2, expected=1)
    finally:
        configure(server, "TIMEOUT_DEFAULT", 0)
    assert shown(server, scope) == before
    async with asyncio.timeout(60):  # on a busy machine it may take longer than a save waits
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.save(scope, big, version=2, expected=1)
                break


async def test_a_redis_without_the_module_is_told_apart_from_one_that_is_away() -> None:
    with redis_server.running() as plain:
        with pytest.raises(NoGraphServer, match=r"FALKORDB_HOST.*GRAPHITI_ENABLED=false"):
            await require_graphs(plain.url())
        with pytest.raises(NoGraphServer, match="module"):
            await FalkorGraphStore.connect(plain.url(), model=MODEL)
        url = plain.url()
    with pytest.raises(StoreUnavailable, match="FALKORDB_HOST"):
        await require_graphs(url)


async def test_a_falkordb_is_available(server: RedisServer) -> None:
    before = graphs(server)
    await require_graphs(server.url())
    assert graphs(server) == before
