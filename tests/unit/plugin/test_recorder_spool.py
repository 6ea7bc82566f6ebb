"""The recorder while its store is away: turns go to the disk, one deadline an outage, and come back in order."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memory import spool as spool_module
from memory.clock import SystemClock
from memory.counters import Counters
from memory.errors import StoreFault, StoreUnavailable
from memory.limits import (
    DURABLE_WAIT_S,
    RECORD_COURTESY_S,
    RECORD_QUEUE_MAX,
    SHUTDOWN_FLUSH_S,
    SPOOL_AFTER_S,
    SPOOL_RETRY_S,
    WRITER_HEARTBEAT_S,
)
from memory.models import MemoryEntry, Scope
from memory.ports import Appended, Selection
from memory.replay import Replayer, SessionSpool, replay_left
from memory.spool import Spool
from memory.spool_file import SpoolFile
from memory.spool_frames import Spooled
from memory.stores.inmemory import InMemorySessionStore
from tests.support.recalls import settle
from tests.support.sessions import HandClock
from tests.support.voice import eventually
from tests.unit.plugin.test_recorder import SCOPE, Desk, Troubled, turn

BEN = Scope(org_id="acme", agent_id="desk", user_id="ben")
CARD = "4242 4242 4242 4242"


class AwayDesk(Desk):
    """A recorder with a spool, whose store is away until ``back``."""

    def __init__(self, clock: HandClock, spool: Spool, *, session_id: str = "call-1") -> None:
        super().__init__(clock, Troubled(clock), session_id=session_id)
        self.spool = spool
        self.recorder.spool_as(SCOPE, spool)

    async def back(self) -> None:
        self.recorder.start(self.store, SCOPE)
        assert await self.recorder.stored(60)


@pytest.fixture
async def desk(clock: HandClock, spool: Spool) -> AsyncIterator[AwayDesk]:
    desk = AwayDesk(clock, spool)
    yield desk
    await desk.recorder.aclose()


@pytest.mark.promise("P-durable")
@pytest.mark.case("L39")
async def test_P_durable_L39_a_turn_is_durable_before_its_reply_while_the_store_was_never_there(desk: AwayDesk) -> None:
    desk.recorder.record(turn("my cat is called biscuit"))
    gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
    await settle()
    assert not gate.done()
    await desk.clock.advance(SPOOL_AFTER_S)
    assert await gate
    [path] = desk.spool.files()
    assert b"biscuit" in path.read_bytes()


@pytest.mark.promise("P-silent")
async def test_P_silent_an_outage_costs_one_deadline_not_one_a_turn(desk: AwayDesk) -> None:
    await desk.said("one")
    now_s = desk.clock.monotonic()
    for number in range(5):
        desk.recorder.record(turn(f"turn {number}"))
        assert await desk.recorder.durable(DURABLE_WAIT_S)
    assert desk.clock.monotonic() == now_s
    assert desk.counters["record.spooled"] == 6


@pytest.mark.promise("P-silent")
@pytest.mark.parametrize("has_disk", [True, False])
async def test_P_silent_where_the_disk_is_full_too_one_reply_waits_and_no_other(
    clock: HandClock, spool: Spool, has_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = AwayDesk(clock, spool) if has_disk else Desk(clock, Troubled(clock))
    monkeypatch.setattr(spool_module, "SPOOL_TOTAL_BYTES_MAX", 0)
    desk.recorder.record(turn("one"))
    gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
    await clock.advance(DURABLE_WAIT_S)
    assert not await gate
    await eventually(lambda: desk.counters["record.not_spooled"] == has_disk, "the disk's refusal")
    for _ in range(3):
        desk.recorder.record(turn("again"))
        assert not await desk.recorder.durable(DURABLE_WAIT_S)  # at once: nobody moves the clock
    desk.recorder.start(desk.store, SCOPE)
    assert await desk.recorder.durable(DURABLE_WAIT_S)
    assert len(await desk.stored()) == 4
    await desk.recorder.aclose()


@pytest.mark.promise("P-redacted")
async def test_P_redacted_what_goes_to_the_disk_is_redacted(desk: AwayDesk) -> None:
    await desk.said(f"my card is {CARD}")
    [path] = desk.spool.files()
    assert b"4242" not in path.read_bytes()
    await desk.back()
    assert await desk.stored() == ["my card is [card number]"]


@pytest.mark.case("L35")
async def test_L35_what_is_on_disk_is_stored_first_then_what_was_said_since(desk: AwayDesk) -> None:
    texts = [f"turn {number}" for number in range(40)]
    await desk.said(*texts)
    desk.recorder.start(desk.store, SCOPE)
    desk.recorder.record(turn("said when it was back"))
    assert await desk.recorder.stored(60)
    assert await desk.stored() == [*texts, "said when it was back"]
    assert desk.spool.files() == []
    assert desk.recorder.spooled == 0
    desk.recorder.record(turn("later"))
    assert await desk.recorder.stored(60)
    assert (await desk.stored())[-1] == "later"
    assert desk.counters["record.spooled"] == 40
    assert desk.counters["record.lost"] == desk.counters["record.repeated"] == 0


@pytest.mark.case("L35")
@pytest.mark.parametrize("error", [StoreUnavailable("full"), ConnectionError(), TimeoutError()])
async def test_L35_a_store_lost_in_mid_call_gets_every_turn_once_and_in_order(desk: AwayDesk, error: Exception) -> None:
    desk.recorder.start(desk.store, SCOPE)
    desk.recorder.record(turn("before"))
    assert await desk.recorder.durable(1)
    desk.store.append_errors = [error] * 4
    await settle()
    for number in range(3):
        desk.recorder.record(turn(f"in the outage {number}"))
        gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
        await desk.clock.advance(SPOOL_AFTER_S)
        assert await gate
    for _ in range(8):
        await desk.clock.advance(2.5)
        if await _stored_now(desk):
            break
    assert await desk.stored() == ["before", *(f"in the outage {number}" for number in range(3))]
    assert desk.counters["record.retries"] == 4
    assert desk.counters["record.lost"] == 0


@pytest.mark.promise("P-durable")
async def test_P_durable_a_store_that_refuses_everything_from_now_on_costs_no_turn(
    desk: AwayDesk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.recorder.start(desk.store, SCOPE)
    desk.recorder.record(turn("before"))
    assert await desk.recorder.durable(1)
    desk.store.claim_errors = [StoreFault("Redis refuses the credentials.")] * 1_000
    desk.store.append_errors = [StoreFault("Redis refuses the credentials.")] * 1_000
    await settle()
    for number in range(3):
        desk.recorder.record(turn(f"refused {number}"))
        gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
        await desk.clock.advance(SPOOL_AFTER_S)
        assert await gate
        await desk.clock.advance(2.5)
    desk.store.claim_errors, desk.store.append_errors = [], []
    for _ in range(8):
        await desk.clock.advance(2.5)
        if await _stored_now(desk):
            break
    assert await desk.stored() == ["before", *(f"refused {number}" for number in range(3))]
    assert desk.counters["record.lost"] == 0
    assert caplog.text.count("refuses the credentials") == 1


async def _stored_now(desk: AwayDesk) -> bool:
    storing = asyncio.create_task(desk.recorder.stored(0.01))
    for _ in range(200):
        await asyncio.sleep(0.001)
        if storing.done():
            break
    await desk.clock.advance(0.01)
    return await storing


async def test_a_store_that_hangs_and_answers_in_the_end_has_the_turn_once(desk: AwayDesk) -> None:
    desk.recorder.start(desk.store, SCOPE)
    await desk.recorder.looked_for_left(patient=True)
    desk.store.answers.clear()
    await desk.said("slow", "next")
    await eventually(lambda: desk.store.running == 1, "an attempt")
    desk.store.answers.set()
    assert await desk.recorder.stored(60)
    assert await desk.stored() == ["slow", "next"]
    assert desk.spool.files() == []


async def test_a_quick_store_leaves_the_disk_alone(desk: AwayDesk) -> None:
    desk.recorder.start(desk.store, SCOPE)
    for number in range(20):
        desk.recorder.record(turn(f"turn {number}"))
        assert await desk.recorder.durable(1)
    assert not desk.spool.directory.exists()


async def test_turns_that_come_together_while_a_recall_hangs_do_not_go_to_the_disk(desk: AwayDesk) -> None:
    desk.recorder.start(desk.store, SCOPE)
    await desk.recorder.looked_for_left(patient=True)
    with desk.way.taken():
        for number in range(5):
            desk.recorder.record(turn(f"turn {number}"))
        for _ in range(int(2 * SPOOL_AFTER_S / RECORD_COURTESY_S) * 4):
            await desk.clock.advance(RECORD_COURTESY_S / 4)
        assert await desk.stored() == [f"turn {number}" for number in range(5)]
    assert not desk.spool.directory.exists()


async def test_an_outage_that_was_told_is_not_waited_for(desk: AwayDesk) -> None:
    desk.recorder.store_is_away()
    desk.recorder.record(turn("one"))
    assert await desk.recorder.durable(DURABLE_WAIT_S)  # nobody moves the clock
    assert desk.recorder.spooled == 1


async def test_a_full_spool_is_said_with_ids_and_its_turns_wait_in_memory(
    desk: AwayDesk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("memory.spool_file.SPOOL_RECORDS_MAX", 2)
    await desk.said("one", "two")
    late = turn("my secret")
    desk.recorder.record(late)
    await eventually(lambda: desk.counters["record.not_spooled"] == 1, "a refusal")
    assert late.id in caplog.text
    assert "my secret" not in caplog.text
    for _ in range(RECORD_QUEUE_MAX):
        desk.recorder.record(turn("more"))
    assert desk.counters["record.lost"] == 1
    await desk.back()
    assert (await desk.stored())[:3] == ["one", "two", "my secret"]
    assert len(await desk.stored()) == RECORD_QUEUE_MAX + 2


async def test_a_spool_that_has_room_again_takes_what_waits(
    desk: AwayDesk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_module, "SPOOL_TOTAL_BYTES_MAX", 0)
    desk.recorder.record(turn("one"))
    await desk.clock.advance(SPOOL_AFTER_S)
    await eventually(lambda: desk.counters["record.not_spooled"] == 1, "a refusal")
    monkeypatch.undo()
    await desk.clock.advance(SPOOL_RETRY_S)
    await eventually(lambda: desk.recorder.spooled == 1, "room again")
    assert caplog.text.count("wait in memory alone") == 1


@pytest.mark.case("L38")
async def test_L38_what_waits_at_the_end_is_stored_by_the_next_session_first(desk: AwayDesk, clock: HandClock) -> None:
    await desk.said("one", "two")
    await desk.recorder.aclose()
    assert desk.counters["record.lost"] == 0
    following = AwayDesk(clock, desk.spool)
    following.recorder.record(turn("three"))
    await following.back()
    assert await following.stored() == ["one", "two", "three"]
    assert desk.spool.files() == []
    assert following.counters["spool.files_replayed"] == 1
    await following.recorder.aclose()


async def test_the_end_stores_what_is_on_disk_where_the_store_is_back(desk: AwayDesk) -> None:
    await desk.said("one", "two")
    desk.recorder.start(desk.store, SCOPE)
    await desk.recorder.aclose()
    assert await desk.stored() == ["one", "two"]
    assert desk.spool.files() == []


async def test_the_end_does_not_wait_for_a_disk_that_hangs(desk: AwayDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.said("one")
    hangs, answers = threading.Event(), threading.Event()
    passed = SpoolFile.passed

    def hanging(file: SpoolFile, end: int) -> bool:
        with file._one_at_a_time:
            hangs.set()
            answers.wait(30)
        return passed(file, end)

    monkeypatch.setattr(SpoolFile, "passed", hanging)
    desk.recorder.start(desk.store, SCOPE)
    await eventually(hangs.is_set, "a disk that hangs")
    closing = asyncio.create_task(desk.recorder.aclose())
    try:
        for _ in range(20):
            await desk.clock.advance(SHUTDOWN_FLUSH_S / 4)
        assert closing.done()
    finally:
        answers.set()
        await closing
    assert await desk.stored() == ["one"]


async def test_a_turn_that_can_never_be_stored_holds_nothing_up_on_disk_either(
    desk: AwayDesk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.said("my secret", "next")
    desk.store.append_errors = [StoreFault("no")] * 3
    desk.recorder.start(desk.store, SCOPE)
    storing = asyncio.create_task(desk.recorder.stored(60))
    while not storing.done():
        await desk.clock.advance(0.1)
        await asyncio.sleep(0.001)
    assert not await storing
    assert await desk.stored() == ["next"]
    assert desk.counters["record.lost"] == 1
    assert "my secret" not in caplog.text


async def test_a_turn_that_cannot_be_redacted_never_reaches_the_disk(clock: HandClock, spool: Spool) -> None:
    class Broken:
        def redact(self, text: str) -> object:
            raise RuntimeError("no")

    desk = Desk(clock, Troubled(clock), redactor=Broken())
    desk.recorder.spool_as(SCOPE, spool)
    desk.recorder.record(turn(CARD))
    await clock.advance(SPOOL_AFTER_S)
    await eventually(lambda: desk.counters["record.lost"] == 1, "a loss")
    assert spool.files() == []
    await desk.recorder.aclose()


async def test_while_another_records_nothing_goes_to_the_disk(desk: AwayDesk, clock: HandClock) -> None:
    await desk.store.claim("call-1", SCOPE, writer="another")
    desk.recorder.start(desk.store, SCOPE)
    await asyncio.wait_for(desk.recorder.silenced(), 5)
    desk.recorder.record(turn("theirs to store"))
    assert await desk.recorder.durable(1)
    await clock.advance(SPOOL_AFTER_S)
    assert not desk.spool.directory.exists()


@pytest.mark.case("L35")
async def test_L35_a_store_that_forgot_the_session_is_told_with_the_turns(
    desk: AwayDesk, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = await begun(desk, "my secret")
    await settle()
    desk.store.append_errors = [StoreUnavailable("restarting")]
    desk.recorder.record(turn("second"))
    await settle()
    forget(desk)
    await clock.advance(1)
    assert await desk.recorder.stored(60)
    assert await desk.stored() == ["second"]
    assert desk.counters["record.forgotten"] == 1
    assert first.id in caplog.text
    assert "my secret" not in caplog.text


@pytest.mark.case("L35")
@pytest.mark.parametrize("speaks", [True, False])
async def test_L35_a_store_that_forgot_the_session_and_was_never_missed_is_told_as_well(
    desk: AwayDesk, clock: HandClock, caplog: pytest.LogCaptureFixture, speaks: bool
) -> None:
    """Such as one that was restarted between two turns: with the next turn, or without one a heartbeat later."""
    first = await begun(desk, "my secret")
    forget(desk)
    if speaks:
        desk.recorder.record(turn("second"))
        assert await desk.recorder.stored(1)
    else:
        await clock.advance(WRITER_HEARTBEAT_S + 1)
        await settle()
    assert desk.counters["record.forgotten"] == 1
    assert desk.counters["record.retries"] == 0
    assert first.id in caplog.text
    assert "my secret" not in caplog.text


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("away", [True, False])
async def test_P_erased_what_was_erased_in_mid_call_is_not_taken_for_lost(
    desk: AwayDesk, clock: HandClock, away: bool
) -> None:
    await begun(desk, "first")
    await desk.store.erase(SCOPE, Selection("all"))
    desk.store.append_errors = [StoreUnavailable("restarting")] if away else []
    desk.recorder.record(turn("second"))
    await settle()
    await clock.advance(1)
    assert await desk.recorder.stored(60)
    assert await desk.stored() == ["second"]
    assert desk.counters["record.forgotten"] == 0


async def test_a_session_that_is_renamed_has_lost_nothing(desk: AwayDesk, clock: HandClock) -> None:
    await begun(desk, "first")
    await desk.store.erase(SCOPE, Selection("all"))
    await desk.store.claim("call-1", BEN)  # somebody else has come into the room
    await clock.advance(WRITER_HEARTBEAT_S + 1)
    desk.recorder.record(turn("second"))
    await clock.advance(1)
    assert await desk.recorder.stored(60)
    assert desk.counters["record.session_renamed"] == 1
    assert desk.counters["record.forgotten"] == 0


async def begun(desk: AwayDesk, text: str) -> MemoryEntry:
    """The session's first turn, stored."""
    desk.recorder.start(desk.store, SCOPE)
    first = turn(text)
    desk.recorder.record(first)
    assert await desk.recorder.stored(1)
    return first


def forget(desk: AwayDesk) -> None:
    """The store has what a new one has."""
    for name, value in vars(InMemorySessionStore(desk.clock)).items():
        if name.startswith("_") and name != "_clock":
            setattr(desk.store, name, value)


# --- what dead ones have left


async def left(spool: Spool, *texts: str, scope: Scope = SCOPE, session: str = "call-1") -> Path:
    file = spool.create(scope)
    file.append([Spooled(scope, turn("x").timestamp, turn(text, session_id=session)) for text in texts])
    file.close()
    return file.path


async def test_what_the_dead_have_left_of_everybody_is_stored_once(clock: HandClock, spool: Spool) -> None:
    store, counters = InMemorySessionStore(clock), Counters()
    await left(spool, *(f"turn {number}" for number in range(40)))
    await left(spool, "ben's", scope=BEN, session="call-2")
    done = await asyncio.gather(*(replay_left(spool, store, counters, SystemClock()) for _ in range(3)))
    assert sum(done) == counters["spool.files_replayed"] == 2
    assert [entry.content for entry in await store.entries("call-1", limit=99)] == [f"turn {n}" for n in range(40)]
    assert [entry.content for entry in await store.entries("call-2", limit=99)] == ["ben's"]
    assert spool.files() == []


async def test_a_store_that_is_away_leaves_the_file_and_the_next_try_repeats_nothing(
    clock: HandClock, spool: Spool
) -> None:
    store, counters = Troubled(clock), Counters()
    await left(spool, "one", "two", "three")
    store.fails_after_storing = True
    with pytest.raises(StoreUnavailable):
        await replay_left(spool, store, counters, SystemClock())
    assert len(spool.files()) == 1
    assert await replay_left(spool, store, counters, SystemClock()) == 1
    assert [entry.content for entry in await store.entries("call-1", limit=9)] == ["one", "two", "three"]


async def test_a_session_that_is_anothers_by_now_is_not_touched(clock: HandClock, spool: Spool) -> None:
    store = InMemorySessionStore(clock)
    await store.claim("call-1", BEN)
    await left(spool, "mine")
    await replay_left(spool, store, Counters(), SystemClock())
    assert await store.entries("call-1", limit=9) == []
    [record] = (await store.read(SCOPE, after="", limit=9)).records
    assert getattr(record.record, "content", "") == "mine"
    assert (await store.read(BEN, after="", limit=9)).records == ()


async def test_a_file_that_cannot_be_read_holds_up_nobody_else(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, counters = InMemorySessionStore(clock), Counters()
    newer = await left(spool, "of a newer version")
    monkeypatch.setattr("memory.spool_frames._FORMAT_OF_USERS", 99)
    newer.unlink()
    newer = await left(spool, "of a newer version")
    monkeypatch.undo()
    await left(spool, "readable", session="call-2")
    replayer = Replayer(spool, store, clock, counters)
    running = asyncio.create_task(replayer.run())
    await eventually(lambda: counters["spool.errors"] == 1, "a fault")
    await clock.advance(6)
    await eventually(lambda: counters["spool.errors"] == 2, "a second fault")
    running.cancel()
    assert [entry.content for entry in await store.entries("call-2", limit=9)] == ["readable"]
    assert spool.files() == [newer]
    assert caplog.text.count("upgrade") == 1

    desk = AwayDesk(clock, spool)
    desk.recorder.record(turn("not held up"))
    await desk.back()
    assert await desk.stored() == ["not held up"]
    await desk.recorder.aclose()


async def test_a_damaged_part_is_told_and_the_rest_is_stored(
    clock: HandClock, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    store, counters = InMemorySessionStore(clock), Counters()
    path = await left(spool, "one", "two")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    await replay_left(spool, store, counters, SystemClock())
    assert [entry.content for entry in await store.entries("call-1", limit=9)] == ["two"]
    assert counters["spool.damaged"] == 1
    assert "damaged" in caplog.text


async def test_a_turn_of_the_dead_that_can_never_be_stored_is_told_and_passed_over(
    clock: HandClock, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    store, counters = Troubled(clock), Counters()
    await left(spool, "my secret", "two")
    store.append_errors = [StoreFault("no")]
    await replay_left(spool, store, counters, SystemClock())
    assert [entry.content for entry in await store.entries("call-1", limit=9)] == ["two"]
    assert counters["record.lost"] == 1
    assert "my secret" not in caplog.text


@pytest.mark.promise("P-durable")
async def test_P_durable_a_store_that_refuses_everything_leaves_what_the_dead_have_left_where_it_is(
    clock: HandClock, spool: Spool
) -> None:
    class Revoked(Troubled):
        async def append(self, *args: Any, **kwargs: Any) -> Appended:
            self.claim_errors = list(self.append_errors)
            return await super().append(*args, **kwargs)

    store, counters = Revoked(clock), Counters()
    await left(spool, "one", "two")
    store.append_errors = [StoreFault("Redis refuses the credentials.")] * 9
    with pytest.raises(StoreFault):
        await replay_left(spool, store, counters, SystemClock())
    store.claim_errors, store.append_errors = [], []
    await replay_left(spool, store, counters, SystemClock())
    assert [entry.content for entry in await store.entries("call-1", limit=9)] == ["one", "two"]
    assert counters["record.lost"] == 0


@pytest.mark.promise("P-erased")
async def test_P_erased_what_was_said_before_an_erasure_is_not_stored_after_it(desk: AwayDesk) -> None:
    await desk.said("forget me")
    assert await desk.spool.erase(SCOPE, Selection("all")) == 1
    await desk.said("said afterwards")
    await desk.back()
    assert await desk.stored() == ["said afterwards"]
    assert desk.spool.files() == []


@pytest.mark.promise("P-erased")
async def test_P_erased_what_is_just_being_stored_from_the_disk_is_in_the_log_when_the_erasure_reads_it(
    desk: AwayDesk,
) -> None:
    await desk.said("forget me")
    desk.store.answers.clear()
    desk.recorder.start(desk.store, SCOPE)
    await eventually(lambda: desk.store.running == 1, "the storing")
    erasing = asyncio.create_task(desk.spool.erase(SCOPE, Selection("all")))
    waiting = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.05)
    await waiting
    assert not erasing.done()
    desk.store.answers.set()
    await erasing
    assert await desk.stored() == ["forget me"]  # where the erasure's next step finds it


async def test_a_spool_closes_its_files_for_the_next(spool: Spool, clock: HandClock) -> None:
    session = SessionSpool(spool, SCOPE, clock, Counters())
    await session.append([turn("one", session_id="s")])
    assert spool.adopt(spool.files()[0]) is None
    await session.aclose()
    await session.aclose()
    adopted = spool.adopt(spool.files()[0])
    assert adopted is not None
    adopted.close()


async def test_nothing_is_logged_of_what_was_said(desk: AwayDesk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await desk.said("my secret")
    await desk.recorder.aclose()
    assert "1 turns wait in the spool" in caplog.text
    assert "my secret" not in caplog.text
