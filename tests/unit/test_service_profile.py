"""What the first query of a session is told besides what it recalls: the user's profile, once, and never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from memory.context.block import parse_block
from memory.errors import HostUnavailable
from memory.models import Fact, Recall, Scope, Source
from memory.ports import Selection
from memory.service import UnifiedMemoryService
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend
from tests.support.services import say

SAID = datetime(2026, 1, 1, tzinfo=UTC)


def fact(text: str, *turns: str) -> Fact:
    source = Source(session_id="earlier", turns=turns or (f"t-{len(text)}",), said_at=SAID)
    return Fact(id=text, text=text, valid_at=SAID, sources=(source,))


TEA, LEEDS = fact("User likes tea"), fact("User lives in Leeds")


class Knowing:
    """A retriever that recalls and profiles what a test says, of a state that it says."""

    def __init__(self) -> None:
        self.recalled = Recall(state="7")
        self.made = Recall(facts=(TEA, LEEDS), state="7")
        self.asked: list[Scope] = []
        self.error: Exception | None = None
        self.hangs = False

    async def recall(self, *_: Any, **__: Any) -> Recall:
        return self.recalled

    async def profile(self, scope: Scope, *, name: str = "", limit: int, budget_ms: float) -> Recall:
        self.asked.append(scope)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.made

    async def warm(self, scope: Scope) -> None:
        return

    async def erase(self, scope: Scope, selection: Selection) -> int:
        return 0


@pytest.fixture
def knowing() -> Knowing:
    return Knowing()


@pytest.fixture
async def backend(knowing: Knowing) -> AsyncIterator[Backend]:
    opened = in_memory_backend()
    opened.retriever = knowing
    yield opened
    await opened.aclose()


@pytest.fixture
def service(backend: Backend) -> UnifiedMemoryService:
    return UnifiedMemoryService(backend=backend, settings=Settings(turn_budget_ms=50))


async def told(service: UnifiedMemoryService, query: str = "Hi!", **options: Any) -> list[str]:
    """The memory's lines in front of a query."""
    messages = await service.build_llm_context("chat", query, **{"user_id": "ana", **options})
    return [line.text for line in parse_block(messages[-1]["content"])]


async def test_the_first_query_of_a_session_is_told_the_profile_and_later_ones_are_not(
    service: UnifiedMemoryService, knowing: Knowing
) -> None:
    assert await told(service) == [TEA.text, LEEDS.text]
    await service.add_entry("chat", say("Hello Ana!", role="assistant"), "ana")
    await service.add_entry("chat", say("Hi!"), "ana")
    assert await told(service) == [TEA.text, LEEDS.text], "greeted, and the query stored before it is answered"
    await service.add_entry("chat", say("What can I do?", role="assistant"), "ana")
    assert await told(service, "Order tea.") == []
    assert await told(service, "Order tea.", max_messages=0) == []
    assert knowing.asked == [service.scopes.of_user("ana")] * 2


async def test_the_profile_comes_last_and_repeats_nothing(service: UnifiedMemoryService, knowing: Knowing) -> None:
    knowing.recalled = Recall(facts=(LEEDS,), state="7")
    assert await told(service, "Where do I live?") == [LEEDS.text, TEA.text]
    await service.add_entry("chat", say("I like tea", role="assistant", id="t-tea"), "ana")
    knowing.made = Recall(facts=(fact("User likes tea", "t-tea"),), state="7")
    knowing.recalled = Recall(state="7")
    assert await told(service) == [], "the turn itself is in the context"


@pytest.mark.promise("P-erased")
async def test_P_erased_a_profile_of_before_an_erasure_is_not_told(
    service: UnifiedMemoryService, knowing: Knowing
) -> None:
    knowing.recalled = Recall(state="8")
    assert await told(service) == []


async def test_a_session_without_a_user_has_no_profile(service: UnifiedMemoryService, knowing: Knowing) -> None:
    assert await told(service, user_id=None) == []
    assert knowing.asked == []


@pytest.mark.promise("P-silent")
@pytest.mark.parametrize("hangs", [True, False])
async def test_P_silent_a_profile_that_is_late_or_fails_costs_only_itself(
    service: UnifiedMemoryService, knowing: Knowing, hangs: bool
) -> None:
    knowing.recalled = Recall(facts=(LEEDS,), state="7")
    knowing.hangs, knowing.error = hangs, HostUnavailable("The recall host is away.")
    async with asyncio.timeout(10):
        assert await told(service) == [LEEDS.text]
    assert service.counters["profile.failed"] == 1


async def test_a_long_session_of_which_the_user_says_little_has_begun(service: UnifiedMemoryService) -> None:
    start = [say("Hi.", timestamp=SAID), *(say(f"news {n}", role="assistant") for n in range(12))]
    for entry in start:
        await service.add_entry("chat", entry, "ana")
    assert await told(service, "Go on.") == []
