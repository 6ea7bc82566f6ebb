"""Our graph and Graphiti's: the same facts by add_episode and by us, and Graphiti's own readers on ours.

Known differences, each shown below:

- entities that no fact is about are nodes of add_episode's only;
- summaries are the live facts, not an LLM's words;
- of two values in one episode add_episode keeps both alive, we the last one;
- what was said, ended and is said again word for word ("lives in Leeds") add_episode counts as the ended fact;
- a node's type is one of EntityKind, also as a property ``kind``; a Meta node and Wording nodes are there besides.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from graphiti_core import Graphiti
from graphiti_core.driver.falkordb_driver import FalkorDriver
from graphiti_core.edges import EntityEdge
from graphiti_core.nodes import EntityNode, EpisodeType, EpisodicNode
from graphiti_core.search import search_config_recipes as recipes
from graphiti_core.search.search_config import EdgeSearchConfig, EdgeSearchMethod, SearchConfig
from graphiti_core.search.search_filters import SearchFilters
from redis.asyncio import Redis

from memory.errors import ProviderRefused
from memory.identity import group_id
from memory.ingestion.applying import apply
from memory.ingestion.extraction import ExtractedFact, Extraction, NamedEntity
from memory.ingestion.merging import Draft, merge, plan, undecided
from memory.knowledge import Category, TurnPart
from memory.models import Scope
from memory.settings import Settings, load_settings
from memory.stores.embedded import EmbeddedServer
from memory.stores.graph import queries, readers
from memory.stores.graph.opening import open_graphiti
from memory.stores.graph.store import FalkorGraphStore
from tests.support.archives import new_scope
from tests.support.graph_server import ask, graphs
from tests.support.redis_server import HOST, RedisServer
from tests.support.scripted_graphiti import ENTITY_TYPES, ScriptedLLM, WordEmbedder
from tests.support.talk import NOON, Memory, chunk, fact, judge, turn, vector

SAME = [
    ("User works at Acme", "User is employed by Acme"),
    ("User likes green tea", "User loves drinking green tea"),
    ("Omar is a pilot", "Omar flies planes as a pilot"),
]
KINDS = {
    "user": "Person",
    "Omar": "Person",
    "Acme": "Organization",
    "Globex": "Organization",
    "Leeds": "Place",
    "York": "Place",
    "green tea": "Preference",
    "Order 1234": "Order",
}
AGAINST = [
    ("User works at Acme", "User works at Globex"),
    ("User lives in Leeds", "User lives in York"),
    ("Order 1234 is delayed", "Order 1234 was delivered"),
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what an LLM extracts of it. ``extra``: entities that no fact is about."""

    day: int
    facts: Sequence[ExtractedFact]
    extra: tuple[str, ...] = ()

    @property
    def turns(self) -> list[TurnPart]:
        return [turn(". ".join(one.text for one in self.facts) or "hello", day=self.day)]

    @property
    def extraction(self) -> Extraction:
        names = dict.fromkeys(name for one in self.facts for name in (one.subject, one.object))
        entities = [NamedEntity(name, KINDS[name]) for name in names if name in KINDS]
        return Extraction(tuple(entities), tuple(self.facts))


def said(subject: str, relation: str, object_: str, text: str, day: int) -> ExtractedFact:
    category = Category.ORDERS if "Order" in (subject + object_) else Category.USER_INFORMATION
    return fact(subject, relation, object_, text, valid_at=NOON + timedelta(days=day), category=category)


HISTORY = [
    Call(
        0,
        [
            said("user", "WORKS_AT", "Acme", "User works at Acme", 0),
            said("user", "LIKES", "green tea", "User likes green tea", 0),
            said("user", "HAS_BROTHER", "Omar", "User has a brother called Omar", 0),
            said("Omar", "IS", "pilot", "Omar is a pilot", 0),
            said("user", "LIVES_IN", "Leeds", "User lives in Leeds", 0),
        ],
        extra=("weather",),
    ),
    Call(1, []),
    Call(
        2,
        [
            said("user", "LIKES", "green tea", "User likes green tea", 2),
            said("user", "WORKS_AT", "Acme", "User is employed by Acme", 2),
            said("user", "ORDERED", "Order 1234", "User ordered headphones", 2),
            said("Order 1234", "STATUS", "delay", "Order 1234 is delayed", 2),
        ],
    ),
    Call(
        4,
        [
            said("user", "WORKS_AT", "Globex", "User works at Globex", 3),
            said("Order 1234", "STATUS", "delivery", "Order 1234 was delivered", 4),
            said("Omar", "IS", "pilot", "Omar flies planes as a pilot", 4),
        ],
    ),
    Call(6, [said("user", "LIVES_IN", "York", "User lives in York", 5)]),
]


@pytest.fixture
def settings(server: RedisServer) -> Settings:
    return load_settings(falkordb_host=HOST, falkordb_port=server.port)


@dataclass(slots=True)
class Ours:
    """Our ingestion on the real graph; what SQL would know is kept here."""

    store: FalkorGraphStore
    scope: Scope
    memory: Memory = field(default_factory=Memory)
    calls: int = 0

    async def hear(self, call: Call) -> None:
        now = NOON + timedelta(days=call.day, hours=1)
        planned = plan(chunk(f"d{call.day}"), call.turns, call.extraction, now=now)
        vectors = {text: vector(text) for text in planned.texts}
        matches = await self.store.matches(
            self.scope,
            entities=planned.entity_probes(vectors),
            facts=planned.fact_probes(vectors),
            limit=10,
        )
        draft = Draft(planned, vectors, matches, self.memory.related(planned.keys, matches))
        question = undecided(draft)
        self.calls += 1 + (question is not None)
        patch = merge(draft, None if question is None else judge(same=SAME, against=AGAINST)(question))
        number = len(self.memory.knowledge.episodes)
        await self.store.save(self.scope, patch, version=number + 1, expected=number)
        self.memory.knowledge = apply(self.memory.knowledge, patch)


@dataclass(slots=True)
class Theirs:
    """Graphiti's add_episode."""

    graphiti: Graphiti
    llm: ScriptedLLM
    graph: str

    async def hear(self, call: Call) -> None:
        self.llm.extraction, self.llm.extra = call.extraction, call.extra
        await self.graphiti.add_episode(
            name=f"d{call.day}",
            episode_body=f"User: {call.turns[0].text}",
            source_description="Voice conversation",
            reference_time=call.turns[0].said_at,
            source=EpisodeType.message,
            group_id=self.graph,
            entity_types=ENTITY_TYPES,
        )


@pytest.fixture
async def theirs(server: RedisServer) -> AsyncIterator[Theirs]:
    graph = group_id(new_scope())
    llm = ScriptedLLM(SAME, AGAINST)
    client = await readers.connect(server.url(), None)
    driver = FalkorDriver(falkor_db=client, database=graph)
    await driver.build_indices_and_constraints()  # type: ignore[no-untyped-call]
    made = Graphiti(graph_driver=driver, llm_client=llm, embedder=WordEmbedder(), cross_encoder=readers.no_reranker())
    yield Theirs(made, llm, graph)
    await client.aclose()


EDGES = """MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity)
RETURN a.name, e.name, b.name, e.fact, e.valid_at, e.invalid_at, size(e.episodes)"""
MENTIONS = "MATCH (p:Episodic)-[m:MENTIONS]->(n:Entity) RETURN p.valid_at, n.name"
NODES = "MATCH (n:Entity) RETURN n.name, labels(n)"


def seen(server: RedisServer, graph: str, query: str) -> list[list[Any]]:
    return sorted(ask(server, graph, query), key=str)


async def test_the_graph_is_the_one_that_add_episode_makes(
    server: RedisServer, store: FalkorGraphStore, scope: Scope, theirs: Theirs
) -> None:
    ours = Ours(store, scope)
    for call in HISTORY:
        await ours.hear(call)
        await theirs.hear(call)
    graph = group_id(scope)
    assert seen(server, graph, EDGES) == seen(server, theirs.graph, EDGES)
    ended = [row[3] for row in seen(server, graph, EDGES) if row[5] is not None]
    assert ended == ["Order 1234 is delayed", "User lives in Leeds", "User works at Acme"]
    without_facts = [["weather", "[Entity]"]]
    assert seen(server, graph, NODES) == [row for row in seen(server, theirs.graph, NODES) if row not in without_facts]
    spoken_of = [row for row in seen(server, theirs.graph, MENTIONS) if row[1] != "weather"]
    assert seen(server, graph, MENTIONS) == spoken_of
    assert ["Omar", "[Entity, Person]"] in seen(server, graph, NODES)
    assert (ours.calls, len(HISTORY)) == (8, 5)
    assert theirs.llm.calls > 2 * ours.calls


async def test_known_difference_of_two_values_in_one_episode_the_last_one_is_left(
    server: RedisServer, store: FalkorGraphStore, scope: Scope, theirs: Theirs
) -> None:
    call = Call(
        0,
        [
            said("user", "LIVES_IN", "Leeds", "User lives in Leeds", 0),
            said("user", "LIVES_IN", "York", "User lives in York", 0),
        ],
    )
    await Ours(store, scope).hear(call)
    await theirs.hear(call)
    living = "MATCH ()-[e:RELATES_TO]->() WHERE e.invalid_at IS NULL RETURN e.fact"
    assert seen(server, group_id(scope), living) == [["User lives in York"]]
    assert seen(server, theirs.graph, living) == [["User lives in Leeds"], ["User lives in York"]]


async def test_known_difference_who_moved_back_lives_there_again(
    server: RedisServer, store: FalkorGraphStore, scope: Scope, theirs: Theirs
) -> None:
    ours = Ours(store, scope)
    for day, place in enumerate(("Leeds", "York", "Leeds")):
        call = Call(day, [said("user", "LIVES_IN", place, f"User lives in {place}", day)])
        await ours.hear(call)
        await theirs.hear(call)
    living = "MATCH ()-[e:RELATES_TO]->() WHERE e.invalid_at IS NULL RETURN e.fact, e.valid_at"
    back = (NOON + timedelta(days=2)).isoformat()
    assert seen(server, group_id(scope), living) == [["User lives in Leeds", back]]
    assert [row[0] for row in seen(server, theirs.graph, living)] == ["User lives in York"]


def test_the_indices_are_graphitis_and_ours() -> None:
    from graphiti_core.driver.driver import GraphProvider
    from graphiti_core.graph_queries import get_fulltext_indices, get_range_indices

    def plain(query: str) -> str:
        return "".join(query.split())

    provider = GraphProvider.FALKORDB
    theirs = {plain(query) for query in (*get_range_indices(provider), *get_fulltext_indices(provider))}
    ours = [plain(query) for query in queries.INDICES]
    assert theirs <= set(ours)
    assert [query for query in ours if query not in theirs] == [
        "CREATEINDEXFOR(w:Wording)ON(w.uuid,w.edge)",
        "CREATEFULLTEXTINDEXFOR()-[e:RELATES_TO]-()ON(e.words)",
    ]


# -- Graphiti's readers on our graph


@pytest.fixture
async def told(store: FalkorGraphStore, scope: Scope) -> Ours:
    ours = Ours(store, scope)
    for call in HISTORY:
        await ours.hear(call)
    return ours


@pytest.mark.parametrize("recipe", ["COMBINED_HYBRID_SEARCH_RRF", "EDGE_HYBRID_SEARCH_RRF", "NODE_HYBRID_SEARCH_RRF"])
async def test_graphitis_search_works(told: Ours, settings: Settings, recipe: str) -> None:
    config = getattr(recipes, recipe).model_copy(deep=True)
    async with open_graphiti(settings, told.scope, embedder=WordEmbedder()) as graphiti:
        group = [group_id(told.scope)]
        found = await graphiti.search_("Where does Omar's pilot job - _ take him?", config=config, group_ids=group)
        assert "Omar is a pilot" in [one.fact for one in found.edges] or "Omar" in [one.name for one in found.nodes]


async def found_nodes(told: Ours, settings: Settings, query: str, *labels: str) -> set[str]:
    """Names that Graphiti's search finds among nodes of these types."""
    async with open_graphiti(settings, told.scope, embedder=WordEmbedder()) as graphiti:
        found = await graphiti.search_(
            query,
            config=recipes.NODE_HYBRID_SEARCH_RRF.model_copy(deep=True),
            group_ids=[group_id(told.scope)],
            search_filter=SearchFilters(node_labels=list(labels)),
        )
    return {one.name for one in found.nodes}


async def test_graphitis_search_finds_nodes_by_their_type(told: Ours, settings: Settings) -> None:
    query = "Omar, Acme, Globex, York and order 1234"
    assert await found_nodes(told, settings, query, "Organization") == {"Acme", "Globex"}
    assert await found_nodes(told, settings, query, "Place", "Order") == {"York", "Leeds", "Order 1234"}
    assert await found_nodes(told, settings, query, "Animal") == set()
    await told.store.restore(told.scope, told.memory.knowledge, version=len(HISTORY))
    assert await found_nodes(told, settings, query, "Organization") == {"Acme", "Globex"}


async def found_facts(told: Ours, settings: Settings, filters: SearchFilters) -> set[str]:
    async with open_graphiti(settings, told.scope, embedder=WordEmbedder()) as graphiti:
        group = [group_id(told.scope)]
        found = await graphiti.search("User, Omar and order 1234", group_ids=group, search_filter=filters)
    return {one.fact for one in found}


async def test_graphitis_search_finds_facts_by_relation_and_by_category(told: Ours, settings: Settings) -> None:
    living = {"User lives in Leeds", "User lives in York"}
    assert await found_facts(told, settings, SearchFilters(edge_types=["LIVES_IN"])) == living
    ordered = {"User ordered headphones", "Order 1234 is delayed", "Order 1234 was delivered"}
    assert await found_facts(told, settings, SearchFilters(edge_types=[Category.ORDERS])) == ordered
    assert await found_facts(told, settings, SearchFilters(edge_types=[Category.ORDERS, "IS"])) == {
        *ordered,
        "Omar is a pilot",
    }
    assert await found_facts(told, settings, SearchFilters(edge_types=["WANTS"])) == set()
    people = SearchFilters(node_labels=["Person", "Place"], edge_types=["LIVES_IN"])
    assert await found_facts(told, settings, people) == living
    assert await found_facts(told, settings, SearchFilters(node_labels=["Person"], edge_types=["LIVES_IN"])) == set()


async def test_graphitis_recipes_need_no_vectors_of_another_length(told: Ours, settings: Settings) -> None:
    async with open_graphiti(settings, told.scope) as graphiti:
        with pytest.raises(ProviderRefused, match="embedder"):
            await graphiti.search("tea", group_ids=[group_id(told.scope)])


@pytest.mark.case("L18")
async def test_L18_graphitis_own_keyword_search_finds_whatever_the_id(
    store: FalkorGraphStore, settings: Settings
) -> None:
    for user in ("u-42", "3f2a0c1e-7b11-4e0a-9a55-0000000000aa", "u_42"):
        ours = Ours(store, new_scope(user_id=user))
        await ours.hear(HISTORY[0])
        config = SearchConfig(edge_config=EdgeSearchConfig(search_methods=[EdgeSearchMethod.bm25]))
        async with open_graphiti(settings, ours.scope) as graphiti:
            for query in ("pilots", "_ pilot \x00?", " ".join(["pilot", *(f"w{n}" for n in range(200))])):
                found = await graphiti.search_(query, config=config, group_ids=[group_id(ours.scope)])
                assert [one.fact for one in found.edges] == ["Omar is a pilot"]


async def test_graphitis_readers_read_what_was_saved(told: Ours, settings: Settings) -> None:
    group = group_id(told.scope)
    async with open_graphiti(settings, told.scope) as graphiti:
        episodes = await graphiti.retrieve_episodes(NOON + timedelta(days=9), last_n=3, group_ids=[group])
        assert [one.valid_at for one in episodes] == [NOON + timedelta(days=day) for day in (2, 4, 6)]
        assert {one.source for one in episodes} == {EpisodeType.message}
        assert episodes[-1].name == "session_d6_20260307T120000Z"
        assert episodes[-1].content == "User: User lives in York"
        driver = graphiti.driver
        edges = await EntityEdge.get_by_group_ids(driver, [group])
        assert {one.uuid for one in edges} == {one.id for one in told.memory.knowledge.facts}
        york = next(one for one in edges if "York" in one.fact)
        assert york.attributes["origin"] in york.episodes
        await york.load_fact_embedding(driver)
        assert york.fact_embedding == pytest.approx(await WordEmbedder().create("User lives in York"), abs=1e-5)
        nodes = await EntityNode.get_by_group_ids(driver, [group])
        user = next(one for one in nodes if one.name == "User")
        assert "User lives in York" in user.summary.splitlines()
        assert "User lives in Leeds" not in user.summary.splitlines()
        episode = await EpisodicNode.get_by_uuid(driver, episodes[-1].uuid)
        found = await graphiti.get_nodes_and_edges_by_episode([episode.uuid])
        assert "User lives in York" in [one.fact for one in found.edges]


@pytest.mark.case("L25")
async def test_L25_graphiti_on_a_stranger_makes_no_graph(server: RedisServer, settings: Settings) -> None:
    before = graphs(server)
    stranger = new_scope()
    async with open_graphiti(settings, stranger, embedder=WordEmbedder()) as graphiti:
        assert await graphiti.search("tea", group_ids=[group_id(stranger)]) == []
        assert await graphiti.retrieve_episodes(NOON, group_ids=[group_id(stranger)]) == []
    assert graphs(server) == before
    assert os.environ["GRAPHITI_TELEMETRY_ENABLED"] == "false"


def asked_so_far(server: RedisServer) -> int:
    """How many queries graphs were asked."""
    with contextlib.closing(server.client()) as client:
        stats = client.info("commandstats")
    return sum(
        int(one["calls"])
        for name, one in stats.items()
        if name.lower() in ("cmdstat_graph.query", "cmdstat_graph.ro_query")
    )


async def test_graphiti_is_opened_without_a_query_and_searches_with_two(
    told: Ours, server: RedisServer, settings: Settings
) -> None:
    indices = ask(server, group_id(told.scope), "CALL db.indexes() YIELD label RETURN count(label)")
    before = asked_so_far(server)
    async with open_graphiti(settings, told.scope, embedder=WordEmbedder()) as graphiti:
        for _ in range(3):
            assert await graphiti.search("pilot", group_ids=[group_id(told.scope)])
    assert asked_so_far(server) - before == 6
    assert ask(server, group_id(told.scope), "CALL db.indexes() YIELD label RETURN count(label)") == indices


async def test_the_embedded_server_holds_the_graph_and_comes_back(data_dir: Path) -> None:
    embedded = EmbeddedServer(data_dir, idle_s=0.0)
    url = await embedded.ensure()
    store = await FalkorGraphStore.connect(url, model="words", on_lost=embedded.ensure)
    ours = Ours(store, new_scope())
    try:
        await ours.hear(HISTORY[0])
        client = Redis.from_url(url, decode_responses=True)
        os.kill(int((await client.info("server"))["process_id"]), signal.SIGKILL)
        await client.aclose()
        await ours.hear(HISTORY[2])
        settings = load_settings(data_dir=data_dir, host_idle_seconds=0.0)
        async with open_graphiti(settings, ours.scope, embedder=WordEmbedder()) as graphiti:
            found = await graphiti.search("pilot", group_ids=[group_id(ours.scope)])
        assert "Omar is a pilot" in [one.fact for one in found]
    finally:
        await store.aclose()
        await embedded.aclose()
