"""The recorder: order, once each, retries, the lease, what happens at the end, and what is lost is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import NotTheWriter, SessionOwnership, StoreFault, StoreUnavailable
from memory.limits import (
    DURABLE_WAIT_S,
    RECORD_COURTESY_S,
    RECORD_QUEUE_MAX,
    RECORD_TIMEOUT_S,
    SPOOL_AFTER_S,
    WRITER_HEARTBEAT_S,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, MemoryEvent, Record, Scope
from memory.ports import Appended, Redacted, SessionState
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.recorder import Recorder
from memory.retrieval.right_of_way import RightOfWay
from memory.stores.inmemory import InMemorySessionStore
from tests.support.recalls import settle
from tests.support.sessions import HandClock
from tests.support.voice import eventually

SCOPE = Scope(org_id="acme", agent_id="desk", user_id="ana")


class Troubled(InMemorySessionStore):
    """A store that fails as often as it is told to, or never answers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.claim_errors: list[Exception] = []
        self.append_errors: list[Exception] = []
        self.release_errors: list[Exception] = []
        self.fails_after_storing = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.appends = 0
        self.running = 0

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> SessionState:
        if self.claim_errors:
            raise self.claim_errors.pop(0)
        return await super().claim(session_id, scope, writer=writer)

    async def release(self, session_id: str, scope: Scope, *, writer: str) -> None:
        if self.release_errors:
            raise self.release_errors.pop(0)
        await super().release(session_id, scope, writer=writer)

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended:
        self.appends += 1
        self.running += 1
        try:
            await self.answers.wait()
            if self.fails_after_storing:
                self.fails_after_storing = False
                await super().append(scope, record, writer=writer)
                raise StoreUnavailable("The answer was lost.")
            if self.append_errors:
                raise self.append_errors.pop(0)
            return await super().append(scope, record, writer=writer)
        finally:
            self.running -= 1


class Desk:
    """A recorder with its parts."""

    def __init__(
        self,
        clock: HandClock,
        store: Troubled,
        *,
        session_id: str = "call-1",
        redactor: Any = None,
        writer: str | None = None,
        takes_over: str | None = None,
        lease_id: str | None = None,
    ) -> None:
        self.clock, self.store, self.counters, self.way = clock, store, Counters(), RightOfWay(clock)
        intake = Intake(redactor or CardRedactor(), clock)
        self.recorder = Recorder(
            intake,
            clock,
            self.counters,
            session_id=session_id,
            writer=writer,
            takes_over=takes_over,
            lease_id=lease_id,
            way=self.way,
        )

    def start(self) -> Desk:
        self.recorder.start(self.store, SCOPE)
        return self

    async def said(self, *texts: str) -> None:
        """Record turns, which go to the disk within the patience that there is with the first one of an outage."""
        before = self.recorder.spooled
        for text in texts:
            self.recorder.record(turn(text))
        await self.clock.advance(SPOOL_AFTER_S)
        await eventually(lambda: self.recorder.spooled >= before + len(texts), "turns on disk")

    async def stored(self, session_id: str = "call-1") -> list[str]:
        return [entry.content for entry in await self.store.entries(session_id, limit=1_000)]


def turn(text: str, **fields: Any) -> MemoryEntry:
    return MemoryEntry(role="user", content=text, mode="voice", **fields)


@pytest.fixture
async def desk(clock: HandClock) -> AsyncIterator[Desk]:
    desk = Desk(clock, Troubled(clock)).start()
    yield desk
    await desk.recorder.aclose()


async def test_records_are_stored_in_order_and_stamped(desk: Desk) -> None:
    for number in range(20):
        desk.recorder.record(turn(f"turn {number}"))
    desk.recorder.record(MemoryEvent(event_type="language_switch", data={"to_language": "ar"}))
    assert await desk.recorder.durable(1)
    assert await desk.stored() == [f"turn {number}" for number in range(20)]
    [first, *_] = await desk.store.entries("call-1", limit=100)
    assert (first.session_id, first.user_id) == ("call-1", "ana")
    assert [event.event_type for event in await desk.store.events("call-1", event_type=None, limit=9)] == [
        "language_switch"
    ]


@pytest.mark.promise("P-silent")
async def test_P_silent_a_reply_whose_turn_was_stored_before_waits_for_no_other_task(desk: Desk) -> None:
    desk.recorder.record(turn("asked"))
    assert await desk.recorder.durable(1)
    with pytest.raises(StopIteration) as returned:
        desk.recorder.durable(DURABLE_WAIT_S).send(None)
    assert returned.value.value is True


async def test_a_recall_under_way_goes_before_the_storing_of_its_turn(desk: Desk) -> None:
    with desk.way.taken():
        desk.recorder.record(turn("asked"))
        await desk.clock.advance(RECORD_COURTESY_S / 2)
        assert await desk.stored() == []
    assert await desk.recorder.durable(1)
    assert await desk.stored() == ["asked"]


async def test_P_durable_a_recall_that_hangs_holds_a_turn_up_for_a_moment_only(desk: Desk) -> None:
    with desk.way.taken(), desk.way.taken():
        desk.recorder.record(turn("asked"))
        await desk.clock.advance(RECORD_COURTESY_S)
        assert await desk.recorder.durable(0)
        assert await desk.stored() == ["asked"]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_turn_that_comes_as_the_one_before_is_stored_is_not_overlooked(clock: HandClock) -> None:
    for steps in range(40):  # of the loop, after the first turn: one of them is just before the recorder waits
        desk = Desk(clock, Troubled(clock)).start()
        await settle()
        desk.recorder.record(turn("one"))
        for _ in range(steps):
            await asyncio.sleep(0)
        desk.recorder.record(turn("two"))
        await settle()
        assert await desk.stored() == ["one", "two"], steps  # nobody moves the clock
        await desk.recorder.aclose()


async def test_what_is_recorded_before_it_is_known_whose_it_is_waits(clock: HandClock) -> None:
    desk = Desk(clock, Troubled(clock))
    desk.recorder.record(turn("early"))
    waiting = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
    await clock.advance(DURABLE_WAIT_S)
    assert await waiting is False
    desk.start()
    assert await desk.recorder.durable(1)
    assert await desk.stored() == ["early"]
    await desk.recorder.aclose()


async def test_nothing_recorded_is_durable_at_once(clock: HandClock) -> None:
    assert await Desk(clock, Troubled(clock)).recorder.durable(0)


@pytest.mark.case("L09")
@pytest.mark.parametrize("error", [ConnectionError(), TimeoutError(), StoreUnavailable("away")])
async def test_L09_a_store_that_comes_back_gets_every_turn_once(desk: Desk, error: Exception) -> None:
    desk.store.append_errors = [error] * 5
    desk.recorder.record(turn("first"))
    desk.recorder.record(turn("second"))
    for _ in range(8):
        await desk.clock.advance(2.5)
    assert await desk.stored() == ["first", "second"]
    assert desk.counters["record.retries"] == 5
    assert desk.counters["record.lost"] == 0


@pytest.mark.case("L17")
async def test_L17_a_turn_whose_answer_was_lost_is_stored_once(desk: Desk) -> None:
    desk.store.fails_after_storing = True
    desk.recorder.record(turn("once"))
    await desk.clock.advance(1)
    assert await desk.stored() == ["once"]
    assert desk.store.appends == 2
    assert desk.counters["record.repeated"] == 1


async def test_a_store_that_never_answers_is_asked_again(desk: Desk) -> None:
    desk.store.answers.clear()
    desk.recorder.record(turn("slow"))
    await desk.clock.advance(RECORD_TIMEOUT_S)
    assert desk.store.running == 0
    desk.store.answers.set()
    await desk.clock.advance(1)
    assert await desk.stored() == ["slow"]


@pytest.mark.case("L09")
@pytest.mark.parametrize("error", [KeyError("x"), StoreFault("no"), RuntimeError("ResponseError")])
async def test_L09_a_turn_that_can_never_be_stored_holds_nothing_up(
    desk: Desk, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    desk.store.append_errors = [error] * 3
    desk.recorder.record(turn("my secret"))
    desk.recorder.record(turn("next"))
    checking = asyncio.create_task(desk.recorder.durable(5))
    await desk.clock.advance(1)
    assert await checking is False
    assert await desk.stored() == ["next"]
    assert desk.counters["record.lost"] == 1
    assert "my secret" not in caplog.text


async def test_a_turn_that_cannot_be_redacted_is_never_stored(clock: HandClock) -> None:
    class Broken:
        def redact(self, text: str) -> Redacted:
            raise RuntimeError("no")

    desk = Desk(clock, Troubled(clock), redactor=Broken()).start()
    desk.recorder.record(turn("4242 4242 4242 4242"))
    await clock.advance(1)
    assert await desk.stored() == []
    assert desk.counters["record.lost"] == 1
    await desk.recorder.aclose()


async def test_a_long_turn_is_stored_and_redacted(desk: Desk) -> None:
    desk.recorder.record(turn("word " * 40_000 + "4242 4242 4242 4242"))
    await asyncio.wait_for(desk.recorder.durable(60), 30)
    [entry] = await desk.store.entries("call-1", limit=1)
    assert (len(entry.content) > 150_000, "4242" in entry.content, entry.redactions) == (True, False, 1)


async def test_a_full_queue_loses_the_newest_and_says_so(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(clock, Troubled(clock))
    for number in range(RECORD_QUEUE_MAX + 3):
        desk.recorder.record(turn(f"t{number}"))
    assert desk.counters["record.lost"] == 3
    assert "REDIS_URL" in caplog.text
    desk.start()
    await desk.recorder.durable(1)
    assert len(await desk.stored()) == RECORD_QUEUE_MAX
    await desk.recorder.aclose()


@pytest.mark.case("L17")
async def test_L17_the_second_process_stays_silent(
    desk: Desk, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    desk.recorder.record(turn("one"))
    await desk.recorder.durable(1)
    other = Desk(clock, desk.store).start()
    for text in ("two", "three"):
        desk.recorder.record(turn(text))
        other.recorder.record(turn(text))
        assert await other.recorder.durable(1)
        await clock.advance(20)
    assert await desk.stored() == ["one", "two", "three"]
    assert other.recorder.silent
    assert other.counters["record.not_the_writer"] == 1
    assert caplog.text.count("another process records this session") == 1
    await other.recorder.aclose()
    assert other.counters["record.lost"] == 0


@pytest.mark.case("L17")
async def test_L17_the_second_takes_over_when_the_first_has_died(clock: HandClock) -> None:
    store = Troubled(clock)
    await dead(store)
    other = Desk(clock, store).start()
    await asyncio.wait_for(other.recorder.silenced(), 5)
    other.recorder.record(turn("by the second, while silent"))
    await clock.advance(WRITER_LEASE_S + WRITER_HEARTBEAT_S)
    assert other.counters["record.taken_over"] == 1
    other.recorder.record(turn("by the second"))
    await other.recorder.durable(1)
    assert await other.stored() == ["by the first", "by the second, while silent", "by the second"]
    await other.recorder.aclose()


async def dead(store: Troubled) -> None:
    """A recorder called ``job-1`` has stored a turn and was killed: its lease is still there."""
    await store.claim("call-1", SCOPE, writer="job-1")
    await store.append(SCOPE, turn("by the first").with_(session_id="call-1"), writer="job-1")


@pytest.mark.case("L17")
async def test_L17_who_takes_over_from_a_dead_one_does_not_wait_its_lease_out(clock: HandClock) -> None:
    store = Troubled(clock)
    await dead(store)
    other = Desk(clock, store, writer="job-2", takes_over="job-1").start()
    other.recorder.record(turn("by the second"))
    assert await other.recorder.durable(1)
    assert not other.recorder.silent
    assert await other.stored() == ["by the first", "by the second"]
    with pytest.raises(NotTheWriter):
        await store.append(SCOPE, turn("by a ghost").with_(session_id="call-1"), writer="job-1")
    await other.recorder.aclose()


@pytest.mark.case("L17")
async def test_L17_who_takes_over_from_another_than_the_writer_stays_silent(clock: HandClock) -> None:
    store = Troubled(clock)
    await dead(store)
    other = Desk(clock, store, writer="job-3", takes_over="job-2").start()
    await asyncio.wait_for(other.recorder.silenced(), 5)
    await other.recorder.aclose()


async def test_of_a_session_in_two_rooms_each_is_recorded_by_one(clock: HandClock) -> None:
    store = Troubled(clock)
    rooms = [Desk(clock, store, lease_id=f"RM_{number}").start() for number in range(2)]
    for number, room in enumerate(rooms):
        room.recorder.record(turn(f"in room {number}"))
        assert await room.recorder.durable(1)
    assert not any(room.recorder.silent for room in rooms)
    second = Desk(clock, store, lease_id="RM_1").start()  # a second agent in a room is none too many to record it
    second.recorder.record(turn("in room 1, again"))
    async with asyncio.timeout(5):
        await second.recorder.silenced()
    await clock.advance(WRITER_HEARTBEAT_S)
    await rooms[1].recorder.aclose()
    await clock.advance(WRITER_HEARTBEAT_S)
    assert await second.recorder.durable(5)
    assert not second.recorder.silent  # the first one has left
    for desk in (rooms[0], second):
        await desk.recorder.aclose()
    assert await rooms[0].stored() == ["in room 0", "in room 1", "in room 1, again"]


async def test_a_dead_ones_lease_on_a_room_is_not_waited_out(clock: HandClock) -> None:
    store = Troubled(clock)
    dead = Desk(clock, store, writer="AJ_1", lease_id="RM_1").start()
    dead.recorder.record(turn("one"))
    assert await dead.recorder.durable(1)
    heir = Desk(clock, store, writer="AJ_2", takes_over="AJ_1", lease_id="RM_1").start()
    heir.recorder.record(turn("two"))
    assert await heir.recorder.durable(1)
    assert not heir.recorder.silent
    await heir.recorder.aclose()
    dead.store.claim_errors = [StoreUnavailable("dead")] * 100
    await dead.recorder.aclose(0.01)
    assert await heir.stored() == ["one", "two"]


async def test_a_room_that_was_another_users_keeps_nobody_out(clock: HandClock) -> None:
    store = Troubled(clock)
    await store.claim("RM_1", SCOPE.model_copy(update={"user_id": "ben"}), writer="AJ_1")
    desk = Desk(clock, store, lease_id="RM_1").start()
    desk.recorder.record(turn("one"))
    assert await desk.recorder.durable(1)
    await desk.recorder.aclose()
    assert await desk.stored() == ["one"]


async def test_the_lease_ends_with_the_recorder(desk: Desk, clock: HandClock) -> None:
    desk.recorder.record(turn("one"))
    await desk.recorder.durable(1)
    await desk.recorder.aclose()
    next_one = Desk(clock, desk.store).start()
    next_one.recorder.record(turn("two"))
    assert await next_one.recorder.durable(1)
    assert not next_one.recorder.silent
    assert await desk.stored() == ["one", "two"]
    await next_one.recorder.aclose()


async def test_a_lease_that_cannot_be_given_up_holds_up_nothing(
    desk: Desk, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    desk.recorder.record(turn("one"))
    await desk.recorder.durable(1)
    desk.store.release_errors.append(StoreUnavailable("Redis is away."))
    await desk.recorder.aclose()
    assert "it lapses" in caplog.text


@pytest.mark.case("L17")
async def test_L17_what_the_writer_has_stored_itself_is_not_kept_for_taking_over(desk: Desk, clock: HandClock) -> None:
    other = Desk(clock, desk.store).start()
    await settle()
    other.recorder.record(turn("long ago"))
    for _ in range(8):
        await clock.advance(WRITER_HEARTBEAT_S)
    assert other.recorder.pending == 0
    await other.recorder.aclose()


async def test_the_lease_is_kept_while_nothing_is_said(desk: Desk, clock: HandClock) -> None:
    await settle()
    for _ in range(12):
        await clock.advance(WRITER_HEARTBEAT_S)
    with pytest.raises(NotTheWriter):
        await desk.store.claim("call-1", SCOPE, writer="somebody else")


async def test_a_session_of_another_user_is_not_touched(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    store = Troubled(clock)
    theirs = Scope(org_id="acme", agent_id="desk", user_id="ben")
    await store.claim("call-1", theirs, writer="ben's")
    desk = Desk(clock, store).start()
    desk.recorder.record(turn("mine"))
    await clock.advance(1)
    assert desk.recorder.session_id != "call-1"
    assert await desk.stored("call-1") == []
    assert await desk.stored(desk.recorder.session_id) == ["mine"]
    assert "another user" in caplog.text
    await desk.recorder.aclose()


@pytest.mark.parametrize("error", [KeyError("x"), SessionOwnership("x"), ConnectionError()])
async def test_a_claim_that_fails_is_made_again(clock: HandClock, error: Exception) -> None:
    desk = Desk(clock, Troubled(clock))
    desk.store.claim_errors = [error, error]
    desk.start()
    desk.recorder.record(turn("one"))
    await clock.advance(3)
    assert await desk.stored(desk.recorder.session_id) == ["one"]
    await desk.recorder.aclose()


async def test_the_end_stores_what_waits(desk: Desk) -> None:
    desk.store.answers.clear()
    desk.recorder.record(turn("last words"))
    closing = asyncio.create_task(desk.recorder.aclose())
    await settle()
    desk.store.answers.set()
    await closing
    assert await desk.stored() == ["last words"]


async def test_the_end_does_not_wait_for_ever_and_says_what_was_lost(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.store.answers.clear()
    entry = turn("never stored")
    desk.recorder.record(entry)
    closing = asyncio.create_task(desk.recorder.aclose(1.0))
    await desk.clock.advance(1.0)
    await closing
    assert desk.store.running == 0
    assert desk.counters["record.lost"] == 1
    assert entry.id in caplog.text
    assert "never stored" not in caplog.text
    desk.recorder.record(turn("too late"))
    assert desk.counters["record.lost"] == 2
    await desk.recorder.aclose()


async def test_no_task_is_left(clock: HandClock) -> None:
    before = asyncio.all_tasks()
    desk = Desk(clock, Troubled(clock)).start()
    desk.recorder.record(turn("one"))
    await desk.recorder.durable(1)
    await desk.recorder.aclose()
    await settle()
    assert asyncio.all_tasks() == before


async def test_an_unknown_error_is_told_by_its_kind_only(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk = Desk(clock, Troubled(clock))
    desk.store.claim_errors = [RuntimeError("user said: my secret")]
    desk.start()
    await clock.advance(1)
    assert "RuntimeError" in caplog.text
    assert "my secret" not in caplog.text
    await desk.recorder.aclose()
