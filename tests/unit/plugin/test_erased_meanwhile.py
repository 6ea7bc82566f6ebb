"""What is erased between two LLM calls of one turn - by a tool, or by anybody else - is told in the first one only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from livekit.agents import Agent, function_tool

from memory import MemoryEntry, UnifiedMemoryService
from memory.context.block import OPEN
from memory.errors import StoreUnavailable
from memory.models import Recall, Scope
from memory.ports import LogSlice
from memory.retrieval.engine import RecallEngine
from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore
from tests.support.remembering import BISCUIT, check_one_block, remembering
from tests.support.scripted_llm import ToolCall
from tests.support.sessions import INSTRUCTIONS, Call, HandClock, backend_of, call
from tests.support.voice import eventually

QUESTION = "What is my cat called?"


class WithTool(Agent):
    """An agent whose one tool does what the test says."""

    def __init__(self, does: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(instructions=INSTRUCTIONS)
        self._does = does

    @function_tool
    async def act(self) -> str:
        """Act."""
        await self._does()
        return "done"


class CountedLog(InMemorySessionStore):
    """Counts how often its head alone is read. ``error``: raised instead; ``hold`` cleared: it never answers."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.heads = 0
        self.error: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        if limit == 0:
            self.heads += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return await super().read(scope, after=after, limit=limit)


@dataclass
class World:
    """Stores, an engine that recalls from them, and a service on both."""

    clock: HandClock
    log: CountedLog
    engine: Any
    memory: UnifiedMemoryService
    recalls: list[str]

    async def tell(self, session_id: str, text: str) -> None:
        await self.memory.add_entry(session_id, MemoryEntry(role="user", content=text, mode="voice"), "ana")

    async def forget(self) -> None:
        assert await self.memory.delete_user_memory("ana", "all")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = HandClock()
    log = CountedLog(clock)
    engine: Any = RecallEngine(log=log, archive=InMemoryArchive(), embedder=None, clock=clock)
    recalls: list[str] = []
    recall = engine.recall

    async def counted(scope: Scope, query: str, **how: Any) -> Recall:
        recalls.append(query)
        found: Recall = await recall(scope, query, **how)
        return found

    engine.recall = counted
    made = World(clock, log, engine, UnifiedMemoryService(backend=backend_of(log, engine), clock=clock), recalls)
    await made.tell("earlier", BISCUIT)
    yield made
    await engine.aclose()


@contextlib.asynccontextmanager
async def asked(world: World, does: Callable[[], Awaitable[Any]], *, steps: int = 1) -> AsyncIterator[Call]:
    """A call in which a turn had so many tool steps."""
    answers = [*[ToolCall("act")] * steps, "Done."]
    made = call(answers, agent=WithTool(does), store=world.log, clock=world.clock, retriever=world.engine)
    async with made as running:
        await running.type(QUESTION)
        yield running


@pytest.mark.promise("P-erased")
async def test_P_erased_a_tool_that_forgets_is_followed_by_no_word_of_what_it_forgot(world: World) -> None:
    async with asked(world, world.forget) as made:
        first, second = made.llm.requests
        assert BISCUIT in first.last_user
        assert second.last_user == QUESTION
        assert not any(BISCUIT in text for _, text in second.messages)
        assert made.memory.last_block == ""
        assert (await made.entries())[-1].sources == ()
        assert world.recalls == [QUESTION, QUESTION]


@pytest.mark.promise("P-erased")
async def test_P_erased_what_is_left_is_told_on(world: World) -> None:
    await world.tell("another", "My cat is called Biscuit by my mother, and Tulip by me.")

    async def forget() -> None:
        assert await world.memory.delete_user_memory("ana", "session", "earlier")

    async with asked(world, forget) as made:
        first, second = (request.last_user for request in made.llm.requests)
        assert BISCUIT in first
        assert "Tulip" in first
        assert BISCUIT not in second
        assert "Tulip" in second


async def nothing() -> None:
    return None


@pytest.mark.promise("P-erased")
async def test_P_erased_a_reply_without_a_turn_of_its_own_tells_nothing_either(world: World) -> None:
    """Such as one that asks whether the user is still there, minutes after the turn."""
    async with asked(world, nothing, steps=0) as made:
        await made.session.generate_reply(instructions="Go on.")
        assert all(BISCUIT in request.last_user for request in made.llm.requests)
        await world.forget()  # in another process, for all that the call knows
        await made.session.generate_reply(instructions="Go on.")
        assert made.llm.requests[-1].last_user == QUESTION


async def test_a_turn_that_nothing_is_erased_in_has_one_recall_and_one_look_at_the_log_a_step(world: World) -> None:
    looks: list[int] = []

    async def notes() -> None:
        looks.append(world.log.heads)

    async with asked(world, notes, steps=2) as made:
        assert len(made.llm.requests) == 3
        assert len({request.last_user for request in made.llm.requests}) == 1
        for request in made.llm.requests:
            check_one_block(request)
        assert world.recalls == [QUESTION]
        assert [world.log.heads - looks[0], world.log.heads - looks[1]] == [2, 1]


async def test_a_turn_with_nothing_to_tell_looks_for_no_erasure(world: World) -> None:
    made = call([ToolCall("act"), "Done."], agent=WithTool(nothing), store=world.log, clock=world.clock)
    async with made as running:
        await running.type(QUESTION)
        assert len(running.llm.requests) == 2
        assert world.log.heads == 0


@pytest.mark.promise("P-erased")
async def test_P_erased_where_nobody_can_tell_nothing_is_told(world: World) -> None:
    async def breaks() -> None:
        world.log.error = StoreUnavailable("The store is away.")

    async with asked(world, breaks, steps=2) as made:
        first, *later = (request.last_user for request in made.llm.requests)
        assert BISCUIT in first
        assert later == [QUESTION, QUESTION]
        world.log.error = None


@pytest.mark.promise("P-silent")
async def test_P_silent_a_log_that_hangs_in_a_tool_step_costs_one_budget(world: World) -> None:
    async def hangs() -> None:
        world.log.hold.clear()

    answers = [*[ToolCall("act")] * 2, "Done."]
    made = call(answers, agent=WithTool(hangs), store=world.log, clock=world.clock, retriever=remembering())
    async with made as running:
        turn = asyncio.create_task(_type(running, QUESTION))
        await eventually(lambda: world.log.heads, "the look at the log")
        await world.clock.advance(0.299)
        assert len(running.llm.requests) == 1
        await world.clock.advance(0.001)
        await eventually(turn.done, "the end of the turn")
        assert [OPEN in request.last_user for request in running.llm.requests] == [True, False, False]
        world.log.hold.set()


async def _type(made: Call, text: str) -> None:
    await made.type(text)
