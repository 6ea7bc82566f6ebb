"""A session's turns, whichever layer holds them, in the order they were said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.clock import SystemClock
from memory.context.history import conversation_context, session_history, without_query
from memory.errors import StoreFault, StoreUnavailable
from memory.models import MemoryEntry, MemoryEvent, Scope
from memory.ports import ArchiveStore, LogRecord, SessionState
from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore

ANA = Scope(org_id="o", agent_id="a", user_id="ana")
START = datetime(2026, 1, 1, tzinfo=UTC)


def turn(number: int, at_s: float | None = None, **fields: Any) -> MemoryEntry:
    moment = START + timedelta(seconds=number if at_s is None else at_s)
    given_fields = {"id": f"t-{number}", "session_id": "s", "timestamp": moment, "role": "user", "mode": "voice"}
    return MemoryEntry(**{**given_fields, "content": f"turn {number}", **fields})


class Layers:
    """A session layer with some turns, an archive with some, and what went wrong."""

    def __init__(self) -> None:
        self.sessions, self.archive = InMemorySessionStore(SystemClock()), InMemoryArchive()
        self.failures: list[Exception] = []
        self.asked = 0

    async def fill(self, archived: list[MemoryEntry], recent: list[MemoryEntry]) -> None:
        records = [LogRecord(f"{i:04}", "", entry) for i, entry in enumerate(archived)]
        await self.archive.store(ANA, records)
        await self.sessions.claim("s", ANA)
        for entry in recent:
            await self.sessions.append(ANA, entry)

    async def open(self) -> ArchiveStore:
        self.asked += 1
        return self.archive

    async def read(self, limit: int) -> list[int]:
        found = await session_history(
            self.sessions, self.open, ANA, "s", limit, on_archive_failure=self.failures.append
        )
        return [int(entry.id.removeprefix("t-")) for entry in found]


async def test_what_the_session_layer_lacks_comes_from_the_archive() -> None:
    layers = Layers()
    await layers.fill([turn(i) for i in range(8)], [turn(i) for i in range(6, 10)])
    assert await layers.read(3) == [7, 8, 9]
    assert layers.asked == 0
    assert await layers.read(7) == [3, 4, 5, 6, 7, 8, 9]
    assert await layers.read(100) == list(range(10))
    assert await layers.read(0) == await layers.read(-1) == []


@pytest.mark.case("L13")
@given(st.permutations(range(12)), st.integers(1, 15))
async def test_L13_order_is_when_it_was_said_whatever_came_first(arrived: list[int], limit: int) -> None:
    layers = Layers()
    await layers.fill([], [turn(i) for i in arrived])
    assert await layers.read(limit) == list(range(12))[-limit:]


async def test_ties_stay_in_order_of_arrival() -> None:
    layers = Layers()
    await layers.fill([turn(i, 0.0) for i in (3, 1)], [turn(i, 0.0) for i in (2, 0)])
    assert await layers.read(10) == [3, 1, 2, 0]


@pytest.mark.promise("P-silent")
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFault("damaged"), TimeoutError(), OSError()])
async def test_P_silent_an_archive_that_is_away_costs_only_its_part(error: Exception) -> None:
    layers = Layers()
    await layers.fill([turn(0)], [turn(1)])

    async def broken() -> ArchiveStore:
        raise error

    found = await session_history(layers.sessions, broken, ANA, "s", 10, on_archive_failure=layers.failures.append)
    assert [entry.id for entry in found] == ["t-1"]
    assert layers.failures == [error]


def test_a_query_that_was_stored_already_is_not_shown_twice() -> None:
    history = [turn(0, content="Hi"), turn(1, role="assistant", content="Yes?"), turn(2, content=" What is it? ")]
    assert without_query(history, "What is it?") == history[:2]
    assert without_query(history[:2], "Yes?") == history[:2]
    assert without_query([], "Hi") == []


def test_a_context_shows_mode_language_and_each_source_once() -> None:
    source = {"title": "WHO", "pages": [1, 2]}
    messages = [turn(i, retrieved_passages=["p", f"p{i}"], sources=[source], language="en") for i in range(2)]
    switch = MemoryEvent(event_type="language_switch")
    context = conversation_context(SessionState(ANA, "text", "ar"), "s", messages, [switch], include_rag=True)
    assert (context.mode, context.language, context.language_events) == ("text", "ar", (switch,))
    assert context.retrieved_passages == ("p", "p0", "p1")
    assert context.sources == (source,)
    plain = conversation_context(SessionState(ANA), "s", messages, [], include_rag=False)
    assert (plain.mode, plain.language, plain.sources, plain.retrieved_passages) == ("voice", "en", (), ())
