"""An archive that is away at the start is opened when it is there, and missed at once in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from memory.errors import StoreFault, StoreUnavailable
from memory.knowledge_ports import FactChanges
from memory.limits import ARCHIVE_OPEN_S, ARCHIVE_RETRY_S_MAX, ARCHIVE_RETRY_S_MIN
from memory.models import Scope
from memory.stores.inmemory import InMemoryArchive
from memory.stores.late import LateArchive
from tests.support.archives import logged, new_scope, turns
from tests.support.fact_source import Facts, fact
from tests.support.recalls import ManualClock


class Database:
    """What is opened: ``error`` is raised instead, by the opening and by whoever asks. Counts both."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.opened = self.asked = 0

    async def open(self) -> Opened:
        self.opened += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return Opened(self)


class Opened(InMemoryArchive):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def position(self, scope: Scope) -> str:
        self._database.asked += 1
        if self._database.error is not None:
            raise self._database.error
        return await super().position(scope)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
async def archive(database: Database, clock: ManualClock) -> AsyncIterator[LateArchive]:
    late = LateArchive(database.open, clock)
    yield late
    await late.aclose()


AWAY = StoreUnavailable("The archive can't be reached.")


async def test_an_archive_that_is_there_is_used_at_once(archive: LateArchive) -> None:
    await archive.start()
    scope = new_scope()
    assert await archive.store(scope, logged(turns(3))) == 3
    assert len(await archive.read(scope, after=0, limit=9)) == 3
    assert len(await archive.history(scope, session_id=None, before=None, limit=9)) == 3
    assert await archive.position(scope) == logged(turns(3))[-1].position
    assert await archive.problem(5) == ""


async def test_an_archive_that_is_away_is_opened_when_it_is_there(
    archive: LateArchive, database: Database, clock: ManualClock
) -> None:
    database.error = AWAY
    await archive.start()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await archive.store(new_scope(), logged(turns(1)))
    assert await archive.problem(5) == str(AWAY)
    await clock.advance(20)
    assert 4 <= database.opened <= 8
    database.error = None
    await clock.advance(ARCHIVE_RETRY_S_MAX)
    assert await archive.problem(5) == ""
    opened = database.opened
    await clock.advance(60)
    assert database.opened == opened


async def test_facts_beside_the_archive_are_there_when_it_is(database: Database, clock: ManualClock) -> None:
    facts, scope = Facts(), new_scope()
    facts.commit(scope, fact("The user lives in York"))
    late = LateArchive(database.open, clock, facts=lambda _: facts)
    database.error = AWAY
    await late.start()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await late.changes(scope, after=0, limit=9)
    database.error = None
    await clock.advance(ARCHIVE_RETRY_S_MAX)
    assert [one.text for one in (await late.changes(scope, after=0, limit=9)).facts] == ["The user lives in York"]
    facts.trouble.away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await late.changes(scope, after=0, limit=9)
    assert len(facts.trouble.reads) == 2  # the second was told at once
    await late.aclose()


async def test_an_archive_without_facts_has_none(archive: LateArchive) -> None:
    await archive.start()
    assert await archive.changes(new_scope(), after=0, limit=9) == FactChanges(0, ())


async def test_an_opening_that_takes_long_is_not_waited_for(
    archive: LateArchive, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.stores.late.ARCHIVE_OPEN_S", ARCHIVE_OPEN_S / 1_000)
    database.hold.clear()
    await archive.start()
    with pytest.raises(StoreUnavailable, match="not open yet"):
        await archive.position(new_scope())
    database.hold.set()
    async with asyncio.timeout(5):
        while await archive.problem(5):
            await asyncio.sleep(0)
    assert database.opened == 1  # such as a migration: it was not begun anew


async def test_what_can_never_be_opened_is_told_at_the_start(archive: LateArchive, database: Database) -> None:
    database.error = StoreFault("The archive refused (SQLSTATE 28P01): check the password.")
    with pytest.raises(StoreFault, match="check the password"):
        await archive.start()


async def test_an_outage_costs_one_deadline_not_one_a_call(
    archive: LateArchive, database: Database, clock: ManualClock
) -> None:
    await archive.start()
    database.error = AWAY
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await archive.position(new_scope())
    assert database.asked == 1
    with pytest.raises(StoreUnavailable):
        await archive.read(new_scope(), after=0, limit=1)
    await clock.advance(ARCHIVE_RETRY_S_MIN)
    with pytest.raises(StoreUnavailable):
        await archive.position(new_scope())
    assert database.asked == 2
    await clock.advance(ARCHIVE_RETRY_S_MIN)
    assert await archive.problem(5) == str(AWAY)
    assert database.asked == 2  # each time a little longer
    database.error = None
    await clock.advance(ARCHIVE_RETRY_S_MAX)
    assert await archive.problem(5) == ""
    assert await archive.position(new_scope()) == ""
    assert database.opened == 1
