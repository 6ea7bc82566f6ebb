"""One session that an app holds in two rooms at once, and one name for the sessions of two users, on a real Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memory.clock import SystemClock
from memory.counters import Counters
from memory.models import MemoryEntry, Scope
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.recorder import Recorder
from memory.spool import Spool
from memory.stores.redis import RedisSessionStore
from tests.support.redis_server import RedisServer

SESSION, TURNS = "chat-7", 40
ANA = Scope(org_id="acme", agent_id="desk", user_id="ana")
BEN = Scope(org_id="acme", agent_id="desk", user_id="ben")


class Room:
    """A room's recorder, with a way to the store of its own as a job has it."""

    def __init__(self, name: str, store: RedisSessionStore, data_dir: Path, scope: Scope = ANA) -> None:
        self.name, self.store = name, store
        clock = SystemClock()
        self.recorder = Recorder(
            Intake(CardRedactor(), clock), clock, Counters(), session_id=SESSION, writer=f"AJ_{name}", lease_id=name
        )
        self.recorder.spool_as(scope, Spool(data_dir))
        self.recorder.start(store, scope)

    async def talks(self) -> None:
        for number in range(TURNS):
            role, mode = ("user", "voice") if number % 2 else ("assistant", "text")
            said = f"{self.name} says {number}"
            self.recorder.record(MemoryEntry(role=role, mode=mode, content=said, language="en"))
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        await self.recorder.aclose()
        await self.store.aclose()


async def contents(store: RedisSessionStore, scope: Scope) -> list[str]:
    found = [item.record for item in (await store.read(scope, after="", limit=500)).records]
    return [record.content for record in found if isinstance(record, MemoryEntry)]


def said_in(name: str) -> list[str]:
    return [f"{name} says {number}" for number in range(TURNS)]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_session_in_two_rooms_at_once_loses_nothing(server: RedisServer, data_dir: Path) -> None:
    rooms = [Room(name, await RedisSessionStore.connect(server.url()), data_dir) for name in ("RM_1", "RM_2")]
    async with asyncio.TaskGroup() as talks:
        for room in rooms:
            talks.create_task(room.talks())
    assert all([await room.recorder.stored(30) for room in rooms])
    server.kill()  # and once more while the store is away
    async with asyncio.TaskGroup() as talks:
        for room in rooms:
            talks.create_task(room.talks())
    assert all([await room.recorder.durable(30) for room in rooms])
    server.start()
    assert all([await room.recorder.stored(60) for room in rooms])
    store = rooms[0].store
    logged = await contents(store, ANA)
    for room in rooms:
        assert [line for line in logged if line.startswith(room.name)] == said_in(room.name) * 2
        assert room.recorder.session_id == SESSION
        assert not room.recorder.silent
    entries = await store.entries(SESSION, limit=500)
    assert [entry.content for entry in entries] == logged
    assert len({entry.id for entry in entries}) == 4 * TURNS
    for room in rooms:
        await room.aclose()


@pytest.mark.promise("P-isolated")
async def test_P_isolated_two_users_whose_sessions_have_one_name_are_not_mixed(
    server: RedisServer, data_dir: Path
) -> None:
    rooms = [
        Room(name, await RedisSessionStore.connect(server.url()), data_dir, scope)
        for name, scope in (("RM_1", ANA), ("RM_2", BEN))
    ]
    async with asyncio.TaskGroup() as talks:
        for room in rooms:
            talks.create_task(room.talks())
    assert all([await room.recorder.stored(30) for room in rooms])
    store = rooms[0].store
    assert await contents(store, ANA) == said_in("RM_1")
    assert await contents(store, BEN) == said_in("RM_2")
    assert len({room.recorder.session_id for room in rooms}) == 2
    for room, scope in zip(rooms, (ANA, BEN), strict=True):
        state = await store.find(room.recorder.session_id)
        assert state is not None
        assert state.scope == scope
        assert {entry.content for entry in await store.entries(room.recorder.session_id, limit=500)} == set(
            said_in(room.name)
        )
    for room in rooms:
        await room.aclose()
