"""Names, ids and facts as bad as they come, through ingestion into the real graph: nothing crashes, nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from memory.errors import InvalidIdentity
from memory.identity import group_id
from memory.ingestion.tools import Outcome
from memory.knowledge_ports import Answer, GraphState
from memory.models import MemoryEntry, Scope
from memory.service import UnifiedMemoryService
from memory.wiring import in_memory_backend
from tests.support.archives import entry, new_scope
from tests.support.graph_server import ask, graphs
from tests.support.ingesting import DIMENSION, GrammarLLM, HashEmbedder, Plant
from tests.support.redis_server import RedisServer

MODEL = f"{HashEmbedder.model}/{DIMENSION}"


class Believing(GrammarLLM):
    """An LLM that believes what follows "My name is" or "My dog is called", to the end of the line, to be a name."""

    _TOLD = re.compile(r"^\[(\d+)\] user: My (name is|dog is called) (.*)$", re.MULTILINE)

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        if task != "extraction":
            return await super().answer(task, instructions=instructions, data=data, shape=shape)
        told = [(int(number), what, name) for number, what, name in self._TOLD.findall(data)]
        return shape.model_validate({"entities": self._entities(told), "facts": [self._fact(*one) for one in told]})

    def _entities(self, told: Sequence[tuple[int, str, str]]) -> list[dict[str, str]]:
        return [{"name": _plain(name), "type": "Person" if what == "name is" else "Animal"} for _, what, name in told]

    def _fact(self, number: int, what: str, name: str) -> dict[str, Any]:
        return {
            "subject": "user",
            "object": _plain(name),
            "relation": "HAS_NAME" if what == "name is" else "HAS_PET",
            "fact": f"User's {what} {_plain(name)}",
            "valid_at": None,
            "invalid_at": None,
            "turns": [number],
            "speaker": "user",
            "category": "user_information",
        }


def _plain(text: str) -> str:
    """As it was said: data goes to an LLM escaped, and it understands that."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@pytest.fixture
def model() -> str:
    return MODEL


@pytest.fixture
def llm() -> GrammarLLM:
    return Believing()


def shown(server: RedisServer, scope: Scope) -> list[str]:
    """The facts in the user's graph, as FalkorDB itself says."""
    if group_id(scope) not in graphs(server):
        return []
    return sorted(row[0] for row in ask(server, group_id(scope), "MATCH ()-[r:RELATES_TO]->() RETURN r.fact"))


async def ingested(plant: Plant, server: RedisServer, scope: Scope, *said: MemoryEntry) -> list[str]:
    """The facts after a call, which is done at once; SQL and the graph show the same, and all turns are kept."""
    start = 1 + 100 * await plant.stores.rows("chunks")
    user = await plant.said(scope, said, start=start)
    assert set(await plant.ingest_all(user)) == {Outcome.DONE}
    known = await plant.facts(scope)
    assert known == shown(server, scope)
    version = (await plant.stores.knowledge.read(scope))[0]
    assert await plant.graph.state(scope) == (GraphState(version, MODEL, DIMENSION) if known else None)
    return known


NAMES = ["محمد", "ليلى بنت أحمد", "😀🎉", "李小龙", "O'Brien", '"Q" \\', "{}", "$facts", "`x`", "</transcript>"]
LONG = "n" * 4_000


@pytest.mark.parametrize("name", [*NAMES, LONG], ids=[*NAMES, "4,000 characters"])
async def test_bad_input_users_named_in_any_way_are_known_by_their_other_facts_too(
    plant: Plant, server: RedisServer, name: str
) -> None:
    scope = new_scope()
    first = entry(f"My name is {name}", name=name), entry("My dog is called Rex", minute=1, name=name)
    known = await ingested(plant, server, scope, *first)
    assert "User's dog is called Rex" in known
    if any(char.isalpha() for char in name) and name != LONG:
        assert f"User's name is {name}" in known
    again = await ingested(plant, server, scope, entry("My dog is called Rex", session="s2", minute=60, name=name))
    assert again == known


IDS = ["محمد", "😀🎉", "x" * 512, "a b/c\\d", "+923136488867", "a\"b'c}{`$", "_", "user@example.org", "-"]


@pytest.mark.parametrize("user", IDS, ids=[*IDS[:2], "512 characters", *IDS[3:]])
async def test_bad_input_ids_beyond_graphitis_alphabet_have_graphs_of_their_own(
    plant: Plant, server: RedisServer, user: str
) -> None:
    scope = new_scope(user_id=user)
    assert await ingested(plant, server, scope, entry("My dog is called Rex")) == ["User's dog is called Rex"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", group_id(scope)), "what Graphiti takes"


async def test_bad_input_an_id_of_4_000_characters_is_refused_with_what_is_allowed() -> None:
    backend = in_memory_backend()
    service = UnifiedMemoryService(backend=backend)
    with pytest.raises(InvalidIdentity, match="512"):
        await service.add_entry("s1", entry("My dog is called Rex"), "n" * 4_000)
    await backend.aclose()


HOSTILE = [
    'Rex\'s "best" \\ friend',
    "Rex }) DETACH DELETE n //",
    "Rex $facts {} {{x}} `tick`",
    "Rex {`a`: 1}",
    "Rex'); DROP TABLE facts;--",
    "Rex <b>&amp;</b>",
    "Rex 😀 \u202eright-to-left",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_bad_input_facts_in_any_characters_are_facts_and_nothing_else(
    plant: Plant, server: RedisServer, name: str
) -> None:
    bystander, scope = new_scope(), new_scope()
    await ingested(plant, server, bystander, entry("My dog is called Bo"))
    known = await ingested(plant, server, scope, entry(f"My dog is called {name}"))
    assert len(known) == 1
    assert known[0].startswith("User's dog is called Rex")
    assert shown(server, bystander) == ["User's dog is called Bo"]


async def test_bad_input_only_small_talk_leaves_no_graph_and_no_chunk_behind(plant: Plant, server: RedisServer) -> None:
    scope = new_scope()
    talk = ["Hello there.", "How are you?", "Fine, thanks.", "Nice weather.", "Bye!"]
    said = [entry(text, minute=place) for place, text in enumerate(talk)]
    assert await ingested(plant, server, scope, *said) == []
    assert group_id(scope) not in graphs(server)
    counts = await plant.stores.chunks.counts()
    assert (counts["done"], counts.get("waiting", 0), counts.get("dead", 0)) == (1, 0, 0)
