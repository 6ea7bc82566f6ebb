"""A session that goes on in another process: its turns are back in the LLM's context, and nothing is stored twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memory.limits import CHARS_PER_TOKEN
from memory.models import MemoryEntry, Scope
from memory.plugin.resuming import newest_within
from memory.settings import Settings, load_settings
from memory.spool import Spool
from memory.spool_frames import Spooled
from memory.stores.inmemory import InMemorySessionStore
from memory.wiring import Backend
from tests.support.sessions import INSTRUCTIONS, Call, HandClock, ScriptedRetriever, backend_of, call

SESSION = "RM_1"


@pytest.fixture
def store() -> InMemorySessionStore:
    return InMemorySessionStore(HandClock())


@pytest.fixture
async def before(store: InMemorySessionStore) -> list[MemoryEntry]:
    """What was said in the session before: ana has asked something, and was answered."""
    async with call(["In July."], store=store, session_id=SESSION) as made:
        await made.type("When is my flight?")
        await made.memory.flush()
    return await store.entries(SESSION, limit=9)


async def contents(store: InMemorySessionStore) -> list[str]:
    return [entry.content for entry in await store.entries(SESSION, limit=50)]


async def test_what_was_said_before_is_in_the_context_in_order_and_stored_once(
    store: InMemorySessionStore, before: list[MemoryEntry]
) -> None:
    async with call(["To Lyon."], store=store, session_id=SESSION) as made:
        assert await made.memory.resume() == before
        await made.type("Where to?")
        await made.memory.flush()
        [request] = made.llm.requests
        assert [role for role, _ in request.messages] == ["system", "user", "assistant", "user"]
        assert request.messages[0][1] == INSTRUCTIONS
        assert [text for _, text in request.messages[1:]] == ["When is my flight?", "In July.", "Where to?"]
        assert await contents(store) == ["When is my flight?", "In July.", "Where to?", "To Lyon."]


async def test_what_is_in_the_context_is_not_recalled_beside_it(
    store: InMemorySessionStore, before: list[MemoryEntry]
) -> None:
    async with call(store=store, session_id=SESSION) as made:
        await made.memory.resume()
        await made.type("Where to?")
        assert {entry.id for entry in before} <= excluded(made)


def excluded(made: Call) -> frozenset[str]:
    return made.retriever.excluded[-1]


async def test_it_can_be_gone_on_with_in_the_middle_and_twice(
    store: InMemorySessionStore, before: list[MemoryEntry]
) -> None:
    async with call(["To Lyon.", "At noon."], store=store, session_id=SESSION) as made:
        await made.type("Where to?")
        await made.memory.flush()
        assert await made.memory.resume() == before
        assert await made.memory.resume() == []
        await made.type("What time?")
        texts = [text for _, text in made.llm.requests[-1].messages[1:]]
        assert texts == ["When is my flight?", "In July.", "Where to?", "To Lyon.", "What time?"]


async def test_what_the_process_before_had_only_on_disk_is_there_as_well(
    store: InMemorySessionStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = Scope(org_id="default", agent_id="assistant", user_id="ana")
    entry = MemoryEntry(role="user", content="When is my flight?", mode="voice", session_id=SESSION)
    file = Spool(data_dir).create(ana)
    file.append([Spooled(ana, entry.timestamp, entry)])
    file.close()
    retriever = ScriptedRetriever()

    async def opened(_: Settings) -> Backend:
        return Backend(store, retriever, backend_of(store, retriever).open_archive, [], Spool(data_dir))

    monkeypatch.setattr("memory.plugin.attached.open_backend", opened)
    monkeypatch.setattr("tests.support.sessions.backend_of", lambda *_: None)
    async with call(["In July."], store=store, session_id=SESSION) as made:
        assert [said.content for said in await made.memory.resume()] == ["When is my flight?"]
        await made.type("Well?")
        await made.memory.flush()
    assert await contents(store) == ["When is my flight?", "Well?", "In July."]
    assert Spool(data_dir).files() == []


@pytest.mark.promise("P-isolated")
@pytest.mark.usefixtures("before")
async def test_P_isolated_another_users_session_is_not_gone_on_with(store: InMemorySessionStore) -> None:
    async with call(store=store, session_id=SESSION, user_id="ben") as made:
        assert await made.memory.resume() == []
        typing = asyncio.create_task(made.type("Hello."))
        await made.clock.advance(1)  # the turns go into a session of ben's own
        await typing
        assert "flight" not in str(made.llm.requests[0].messages)


async def test_without_memory_there_is_nothing_to_go_on_with() -> None:
    async with call(settings=load_settings(enabled=False)) as made:
        with pytest.raises(RuntimeError, match="MEMORY_ENABLED"):
            await made.memory.resume()


@pytest.mark.parametrize(("tokens", "kept"), [(0, 1), (1, 1), (3, 3), (4, 4), (100, 5)])
def test_the_newest_turns_that_fit_are_taken(tokens: int, kept: int) -> None:
    entries = [
        MemoryEntry(role="user", mode="voice", content=str(number) * CHARS_PER_TOKEN, language="en")
        for number in range(5)
    ]
    assert newest_within(entries, tokens) == entries[-kept:]
