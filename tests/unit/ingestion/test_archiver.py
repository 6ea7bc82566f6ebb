"""The archiver: what it moves, what it never loses, and what it does when a store is away or a record is poison."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from memory.errors import DataTooNew, StoreFault, StoreUnavailable
from memory.ingestion.archiver import Archiver, ArchivesAll
from memory.limits import (
    ARCHIVE_BACKOFF_S_MAX,
    ARCHIVE_POLL_IDLE_S,
    ARCHIVE_POLL_S,
    ARCHIVE_USERS_MAX,
    LOG_READ_MAX,
    RECALL_YIELD_S_MAX,
)
from memory.models import Record, Scope
from memory.ports import DamagedRecord, LogRecord, LogSlice, Selection
from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore
from memory.stores.sql import SqlArchive
from tests.support.archives import entry, event, new_scope, sqlite_url, turns
from tests.support.ingestion import SteppingClock


class Log(InMemorySessionStore):
    """A log that can be away, can hold damaged records, and calls back between its steps."""

    def __init__(self, clock: SteppingClock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()
        self.damaged: dict[Scope, list[DamagedRecord]] = {}
        self.after_read: Callable[[Scope], Awaitable[object]] | None = None
        self.confirmed: list[tuple[Scope, str]] = []
        self.limits: list[int] = []

    def _check(self, call: str) -> None:
        if call in self.away:
            raise StoreUnavailable("The log is away.")

    async def say(self, scope: Scope, records: Iterable[Record]) -> None:
        for record in records:
            await self.append(scope, record)

    async def pending(self, *, limit: int) -> list[Scope]:
        self._check("pending")
        return (list(self.damaged) + await super().pending(limit=limit))[:limit]

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        self._check("read")
        self.limits.append(limit)
        part = await super().read(scope, after=after, limit=limit)
        found = tuple(item for item in self.damaged.get(scope, ()) if item.position > after)[:limit]
        if self.after_read is not None:
            await self.after_read(scope)
        return LogSlice(part.records, max([part.last, *(item.position for item in found)]), part.epoch, found)

    async def confirm(self, scope: Scope, *, through: str) -> None:
        self._check("confirm")
        self.confirmed.append((scope, through))
        await super().confirm(scope, through=through)
        left = [item for item in self.damaged.pop(scope, []) if item.position > through]
        if left:
            self.damaged[scope] = left


class Moody(InMemoryArchive):
    """An archive that is away, or refuses some records, as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Callable[[Scope, int], bool] = lambda scope, size: False
        self.refuses: Callable[[Record], bool] = lambda record: False
        self.error: Exception = StoreFault("The archive refused.")
        self.calls: list[int] = []
        self.letters: list[DamagedRecord] = []

    async def store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        self.calls.append(len(records))
        await asyncio.sleep(0)
        if self.away(scope, len(records)):
            raise StoreUnavailable("The archive is away.")
        if any(self.refuses(item.record) for item in records):
            raise self.error
        return await super().store(scope, records)

    async def set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> int:
        self.letters += damaged
        return await super().set_aside(scope, damaged)


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def log(clock: SteppingClock) -> Log:
    return Log(clock)


@pytest.fixture
def archive() -> Moody:
    return Moody()


@pytest.fixture
def archiver(log: Log, archive: Moody, clock: SteppingClock) -> Archiver:
    return Archiver(log, archive, clock)


async def stored(archive: ArchivesAll, scope: Scope) -> list[Record]:
    return [item.record for item in await archive.read(scope, after=0, limit=100_000)]


@contextlib.asynccontextmanager
async def running(archiver: Archiver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(archiver.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


# -- moving


async def test_drain_moves_everything_once_in_order_and_trims_the_log(
    archiver: Archiver, log: Log, archive: Moody
) -> None:
    said = {new_scope(): [*turns(n + 1), event()] for n in range(ARCHIVE_USERS_MAX + 9)}
    for scope, records in said.items():
        await log.say(scope, records)
    assert await archiver.drain() == sum(len(records) for records in said.values())
    for scope, records in said.items():
        assert await stored(archive, scope) == records
    assert await log.pending(limit=9) == []
    assert await archiver.drain() == 0
    assert archiver.counters["archiver.stored"] == archiver.counters["archiver.moved"]


async def test_a_long_log_moves_in_batches(archiver: Archiver, log: Log, archive: Moody) -> None:
    scope = new_scope()
    said = turns(LOG_READ_MAX * 2 + 7)
    await log.say(scope, said)
    assert await archiver.drain() == len(said)
    assert archive.calls == [LOG_READ_MAX, LOG_READ_MAX, 7]
    assert await stored(archive, scope) == said


async def test_run_moves_what_comes_and_polls_by_the_limits(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock
) -> None:
    scope, said = new_scope(), turns(3)
    async with running(archiver):
        await until(lambda: len(clock.slept) >= 2)
        assert set(clock.slept) == {ARCHIVE_POLL_IDLE_S}
        await log.say(scope, said)
        await until(lambda: ARCHIVE_POLL_S in clock.slept)
    assert set(clock.slept) == {ARCHIVE_POLL_IDLE_S, ARCHIVE_POLL_S}
    assert await stored(archive, scope) == said


async def test_every_waiting_user_gets_a_batch_in_each_round(archiver: Archiver, log: Log, archive: Moody) -> None:
    much, little = new_scope(), new_scope()
    await log.say(much, turns(LOG_READ_MAX * 3))
    await log.say(little, turns(1))
    async with running(archiver):
        await until(lambda: len(archive.calls) >= 2)
        assert archive.calls[:2] == [LOG_READ_MAX, 1]


async def test_whoever_is_waited_for_goes_first(log: Log, archive: Moody, clock: SteppingClock) -> None:
    await log.say(new_scope(), turns(1))
    async with running(Archiver(log, archive, clock, busy=lambda: clock.seconds < 0.3)):
        await until(lambda: archive.calls != [])
        assert 0.3 <= clock.seconds < 0.4


async def test_under_constant_load_a_round_is_held_back_once_and_for_so_long_only(
    log: Log, archive: Moody, clock: SteppingClock
) -> None:
    for _ in range(3):
        await log.say(new_scope(), turns(1))
    async with running(Archiver(log, archive, clock, busy=lambda: True)):
        await until(lambda: len(archive.calls) == 3)
        assert RECALL_YIELD_S_MAX <= clock.seconds < RECALL_YIELD_S_MAX + 0.1


async def test_who_reads_the_log_has_the_word_before_it_is_trimmed(
    log: Log, archive: Moody, clock: SteppingClock
) -> None:
    scope = new_scope()
    await log.say(scope, turns(2))
    seen: list[tuple[int, int]] = []

    async def look(whose: Scope) -> None:
        assert whose == scope
        seen.append((len(archive.calls), len((await log.read(scope, after="", limit=9)).records)))

    await Archiver(log, archive, clock, before_trim=look).drain()
    assert seen == [(1, 2)]
    assert not (await log.read(scope, after="", limit=9)).records


async def test_a_drain_waits_for_nobody(log: Log, archive: Moody, clock: SteppingClock) -> None:
    await log.say(new_scope(), turns(2))
    assert await Archiver(log, archive, clock, busy=lambda: True).drain() == 2
    assert clock.slept == []


# -- what is away


@pytest.mark.promise("P-durable")
async def test_P_durable_only_the_archives_word_trims_the_log(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock
) -> None:
    scope = new_scope()
    said = turns(5)
    await log.say(scope, said)
    archive.away = lambda scope, size: True
    with pytest.raises(StoreUnavailable):
        await archiver.drain()
    async with running(archiver):
        await until(lambda: len(clock.slept) > 12)
        assert log.confirmed == []
        assert archiver.counters["archiver.unavailable"] > 2
        archive.away = lambda scope, size: False
        await until(lambda: log.confirmed != [])
    assert await stored(archive, scope) == said


async def test_one_users_log_that_takes_too_long_keeps_no_other_from_being_drained(
    archiver: Archiver, log: Log, archive: Moody
) -> None:
    slow, others = new_scope(), [new_scope(), new_scope()]
    for scope in (slow, *others):
        await log.say(scope, turns(9))
    archive.away = lambda scope, size: scope == slow and size > 3
    with pytest.raises(StoreUnavailable):
        await archiver.drain()
    assert [len(await stored(archive, scope)) for scope in (slow, *others)] == [0, 9, 9]
    for _ in range(10):  # of which each moves less at a time
        with contextlib.suppress(StoreUnavailable):
            await archiver.drain()
    assert len(await stored(archive, slow)) == 9


async def test_a_drain_asks_an_archive_that_is_away_for_two_users_and_not_for_all(
    archiver: Archiver, log: Log, archive: Moody
) -> None:
    for _ in range(5):
        await log.say(new_scope(), turns(1))
    archive.away = lambda scope, size: True
    with pytest.raises(StoreUnavailable):
        await archiver.drain()
    assert len(archive.calls) == 2


async def test_a_confirmation_that_failed_costs_a_repetition_only(archiver: Archiver, log: Log, archive: Moody) -> None:
    scope = new_scope()
    await log.say(scope, turns(5))
    log.away = {"confirm"}
    with pytest.raises(StoreUnavailable):
        await archiver.drain()
    log.away = set()
    assert await archiver.drain() == 5
    assert len(await stored(archive, scope)) == 5
    assert archiver.counters["archiver.stored"] == 5


@pytest.mark.parametrize("call", ["pending", "read", "confirm"])
async def test_a_log_that_is_away_is_asked_less_and_less_often_and_never_given_up(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock, call: str
) -> None:
    scopes = [new_scope() for _ in range(3)]
    for scope in scopes:
        await log.say(scope, turns(2))
    log.away = {call}
    async with running(archiver) as task:
        await until(lambda: len(clock.slept) >= 12)
        assert not task.done()
        assert max(clock.slept) == ARCHIVE_BACKOFF_S_MAX
        assert clock.slept == sorted(clock.slept)
        log.away = set()
        await until(lambda: len(moved_users(log)) == 3)
        await until(lambda: clock.slept[-1] == ARCHIVE_POLL_IDLE_S)
    for scope in scopes:
        assert len(await stored(archive, scope)) == 2


def moved_users(log: Log) -> set[Scope]:
    return {scope for scope, _ in log.confirmed}


async def test_a_user_in_trouble_holds_nobody_up(archiver: Archiver, log: Log, archive: Moody) -> None:
    troubled = [new_scope() for _ in range(ARCHIVE_USERS_MAX * 2)]
    for scope in troubled:
        await log.say(scope, turns(1))
    healthy = new_scope()
    await log.say(healthy, turns(2))
    archive.refuses = lambda record: record.session_id == "s1" and record.id not in wanted
    wanted = {item.record.id for item in (await log.read(healthy, after="", limit=9)).records}
    async with running(archiver):
        await until(lambda: healthy in moved_users(log))
    assert len(await stored(archive, healthy)) == 2


async def test_a_batch_that_is_too_much_is_halved_until_it_fits(archiver: Archiver, log: Log, archive: Moody) -> None:
    scope = new_scope()
    said = turns(200)
    await log.say(scope, said)
    archive.away = lambda scope, size: size > 40
    async with running(archiver):
        await until(lambda: len(archive._of(scope).records) == 200)
        archive.away = lambda scope, size: False
        await until(lambda: not archiver._trouble)
    assert await stored(archive, scope) == said
    assert max(size for size in archive.calls if size <= 40) > 10


# -- poison


def damaged(number: int) -> DamagedRecord:
    return DamagedRecord(f"{number:016d}-000000", "", "written by a newer version", '{"secret": "words"}')


async def test_a_damaged_record_is_set_aside_and_blocks_nothing(
    archiver: Archiver, log: Log, archive: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    scope = new_scope()
    log.damaged[scope] = [damaged(1), damaged(2)]
    said = turns(3)
    await log.say(scope, said)
    with caplog.at_level(logging.WARNING):
        assert await archiver.drain() == 5
    assert await stored(archive, scope) == said
    assert [item.position for item in archive.letters] == [damaged(1).position, damaged(2).position]
    assert archiver.counters["archiver.set_aside"] == 2
    assert await log.pending(limit=9) == []
    assert "set aside" in caplog.text
    assert "words" not in caplog.text
    assert scope.org_id not in caplog.text


async def test_damage_beyond_the_end_of_the_log_trims_nothing_that_was_not_read(
    archive: Moody, clock: SteppingClock
) -> None:
    said: list[str] = []

    class Wild(Log):
        """Somebody talks between every read and its confirmation; the damage claims to be later than everything."""

        async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
            part = await InMemorySessionStore.read(self, scope, after=after, limit=limit)
            more = entry("said meanwhile")
            said.append(more.id)
            await self.append(scope, more)
            return LogSlice(part.records, part.last, part.epoch, (DamagedRecord("~", "", "not a record", "?"),))

    wild, scope = Wild(clock), new_scope()
    await wild.say(scope, turns(1))
    async with running(Archiver(wild, archive, clock)):
        await until(lambda: len(wild.confirmed) >= 5)
    left = await InMemorySessionStore.read(wild, scope, after="", limit=500)
    kept = [record.id for record in await stored(archive, scope)] + [item.record.id for item in left.records]
    assert set(said) <= set(kept)
    assert len(kept) == len(said) + 1


async def test_a_record_that_the_archive_refuses_is_set_aside_when_others_of_its_batch_go_through(
    archiver: Archiver, log: Log, archive: Moody
) -> None:
    scope = new_scope()
    said = [*turns(3), entry("poison"), *turns(3, "more {}".format)]
    await log.say(scope, said)
    archive.refuses = lambda record: record is not None and getattr(record, "content", "") == "poison"
    assert await archiver.drain() == 7
    assert await stored(archive, scope) == [record for record in said if record is not said[3]]
    (letter,) = archive.letters
    assert letter.reason == "The archive refused."
    assert said[3].id in letter.raw
    assert archiver.counters["archiver.set_aside"] == 1


async def test_an_archive_that_refuses_everything_is_at_fault_itself(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock
) -> None:
    first, second = new_scope(), new_scope()
    await log.say(first, turns(3))
    await log.say(second, turns(1))
    archive.refuses = lambda record: record.session_id == "s1"
    await log.say(second, turns(2, session="s2"))
    with pytest.raises(StoreFault, match="refused"):
        await archiver.drain()
    assert [item.record.session_id for item in archive._of(second).records] == ["s2", "s2"]
    assert len(archive.letters) == 1
    assert await log.pending(limit=9) == [first]
    archive.refuses = lambda record: False
    assert await archiver.drain() == 3


async def test_a_lone_poisoned_record_waits_for_company_to_be_judged(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock
) -> None:
    scope = new_scope()
    await log.say(scope, [entry("poison")])
    archive.refuses = lambda record: getattr(record, "content", "") == "poison"
    async with running(archiver):
        await until(lambda: len(archive.calls) > 6)
        assert archive.letters == []
        await log.say(scope, [entry("fine")])
        await until(lambda: log.confirmed != [])
    assert len(archive.letters) == 1
    assert len(await stored(archive, scope)) == 1


async def test_an_archive_of_a_newer_version_sets_nothing_aside(archiver: Archiver, log: Log, archive: Moody) -> None:
    scope = new_scope()
    await log.say(scope, turns(3))
    archive.refuses = lambda record: True
    archive.error = DataTooNew("Upgrade.")
    with pytest.raises(DataTooNew):
        await archiver.drain()
    assert archive.calls == [3]
    assert archive.letters == []


async def test_an_unexpected_error_is_counted_and_its_text_kept_out_of_the_log(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock, caplog: pytest.LogCaptureFixture
) -> None:
    await log.say(new_scope(), turns(1))
    archive.refuses = lambda record: True
    archive.error = RuntimeError("what somebody said")
    async with running(archiver) as task:
        await until(lambda: archiver.counters["archiver.faults"] >= 3)
        assert not task.done()
    assert "RuntimeError" in caplog.text
    assert "somebody" not in caplog.text


# -- erasure


@pytest.fixture(params=["memory", "sqlite"])
async def any_archive(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[InMemoryArchive | SqlArchive]:
    if request.param == "memory":
        yield InMemoryArchive()
        return
    opened = await SqlArchive.open(sqlite_url(data_dir))
    yield opened
    await opened.aclose()


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("what", ["session", "since", "all"])
async def test_P_erased_an_erasure_between_reading_and_storing_leaves_nothing_behind(
    log: Log, any_archive: InMemoryArchive | SqlArchive, clock: SteppingClock, what: str
) -> None:
    scope = new_scope()
    kept = entry("kept", session="s0", minute=-60)
    await log.say(scope, [kept, *turns(4), event()])
    selections = {
        "session": Selection("session", session_id="s1"),
        "since": Selection("since", since=kept.timestamp + timedelta(minutes=1)),
        "all": Selection("all"),
    }
    chosen = selections[what]
    erased = False

    async def erase(scope: Scope) -> None:
        nonlocal erased
        if not erased:
            erased = True
            last = (await InMemorySessionStore.read(log, scope, after="", limit=0)).last
            selection = Selection(chosen.what, chosen.session_id, chosen.since, last)
            await any_archive.erase(scope, selection)
            await log.erase(scope, selection)

    async with running(Archiver(log, any_archive, clock)):
        log.after_read = erase
        await until(lambda: erased and log.confirmed != [])
    after = entry("after", session="s1", minute=60)
    await log.say(scope, [after])
    await Archiver(log, any_archive, clock).drain()
    assert await stored(any_archive, scope) == ([after] if what == "all" else [kept, after])


# -- cancellation


@pytest.mark.promise("P-durable")
async def test_P_durable_cancelled_at_any_step_nothing_is_lost_or_doubled(
    log: Log, any_archive: InMemoryArchive | SqlArchive, clock: SteppingClock
) -> None:
    scope = new_scope()
    said: list[Record] = []
    for steps in itertools.chain(range(40), (round(40 * 1.3**n) for n in range(20))):
        more = turns(2, f"{steps}: {{}}".format)
        said += more
        await log.say(scope, more)
        task = asyncio.create_task(Archiver(log, any_archive, clock).run())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await Archiver(log, any_archive, clock).drain()
    assert await stored(any_archive, scope) == said
    assert await log.pending(limit=9) == []


# -- what health asks


async def test_the_watermark_tells_who_waits_and_for_how_long(
    archiver: Archiver, log: Log, archive: Moody, clock: SteppingClock
) -> None:
    assert (archiver.pending_users, archiver.oldest_age_s) == (0, 0)
    stuck, fine = new_scope(), new_scope()
    await log.say(stuck, turns(1))
    await log.say(fine, turns(1))
    archive.away = lambda scope, size: scope == stuck
    async with running(archiver):
        await until(lambda: fine in moved_users(log) and clock.seconds > 30)
        assert archiver.pending_users == 1
        assert 20 < archiver.oldest_age_s <= clock.seconds
        archive.away = lambda scope, size: False
        await until(lambda: stuck in moved_users(log))
        await until(lambda: archiver.pending_users == 0)
        assert archiver.oldest_age_s == 0


async def test_a_user_who_goes_on_talking_is_not_taken_for_one_who_waits(
    archiver: Archiver, log: Log, clock: SteppingClock
) -> None:
    scope = new_scope()
    async with running(archiver):
        for number in range(20):
            moved = len(log.confirmed)
            await log.say(scope, turns(1, f"{number} {{}}".format))
            await until(lambda moved=moved: len(log.confirmed) > moved)  # type: ignore[misc]
            assert archiver.oldest_age_s <= ARCHIVE_POLL_IDLE_S
    assert clock.seconds > 4


async def test_a_log_that_lists_a_user_and_holds_nothing_is_told_so(archiver: Archiver, log: Log) -> None:
    scope = new_scope()
    await log.say(scope, turns(1))
    await archiver.drain()
    log.damaged[scope] = []
    log.confirmed.clear()
    async with running(archiver):
        await until(lambda: log.confirmed != [])
    assert log.confirmed[0][0] == scope
