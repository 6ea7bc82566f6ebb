"""Turns said before it is known who says them are stored as one caller's, whoever dies in the midst of it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from memory.clock import Clock, SystemClock
from memory.counters import Counters
from memory.errors import SpoolUnusable, StoreUnavailable
from memory.limits import SPOOL_AFTER_S, SPOOL_REPLAY, SPOOL_UNBOUND_S
from memory.models import Record, Scope
from memory.ports import Appended, Selection
from memory.replay import SessionSpool, replay_left
from memory.spool import Spool
from memory.spool_file import SpoolFile
from memory.spool_frames import Spooled
from tests.support.recalls import NOON
from tests.support.sessions import HandClock
from tests.support.threads import held
from tests.support.voice import eventually
from tests.unit.plugin.test_recorder import SCOPE, Troubled, turn
from tests.unit.plugin.test_recorder_unbound import ROOM, SOMEBODY, Unknown, left, logged

PATIENCE_S = 1.0
MANY = [f"turn {number}" for number in range(3 * SPOOL_REPLAY)]


class Failing(Troubled):
    """A store that takes so many turns, and is away then."""

    def __init__(self, clock: Clock, takes: int) -> None:
        super().__init__(clock)
        self.takes = takes

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended:
        if self.takes <= 0:
            raise StoreUnavailable("Redis is away.")
        self.takes -= 1
        return await super().append(scope, record, writer=writer)


def age(spool: Spool) -> None:
    """Nobody has gone on with the sessions for long enough."""
    old = time.time() - SPOOL_UNBOUND_S - 1
    for path in spool.files():
        os.utime(path, (old, old))


async def replayed(spool: Spool, store: Troubled, **whose: Scope) -> None:
    await replay_left(spool, store, Counters(), SystemClock(), **whose)


async def dies_while_it_replays(spool: Spool, store: Failing, **whose: Scope) -> None:
    with pytest.raises(StoreUnavailable):
        await replayed(spool, store, **whose)
    store.takes = 1_000


@pytest.mark.promise("P-isolated")
@pytest.mark.parametrize("stored", [1, SPOOL_REPLAY, SPOOL_REPLAY + 1])
async def test_P_isolated_what_its_heir_has_begun_to_store_is_never_stored_as_nobodys(
    clock: HandClock, spool: Spool, stored: int
) -> None:
    left(spool, *MANY)
    store = Failing(clock, stored)
    await dies_while_it_replays(spool, store, scope=SOMEBODY, owner=SCOPE)
    age(spool)
    await replayed(spool, store)
    assert await logged(store) == MANY
    assert await logged(store, SOMEBODY) == []
    assert spool.files() == []


@pytest.mark.promise("P-erased")
async def test_P_erased_what_its_heir_has_not_stored_yet_is_erased_with_the_rest(
    clock: HandClock, spool: Spool
) -> None:
    left(spool, *MANY)
    store = Failing(clock, SPOOL_REPLAY)
    await dies_while_it_replays(spool, store, scope=SOMEBODY, owner=SCOPE)
    assert await spool.erase(SCOPE, Selection("all")) == len(MANY)
    assert await store.erase(SCOPE, Selection("all")) == SPOOL_REPLAY
    [path] = spool.files()
    assert not any(word in path.read_bytes() for word in (b"turn", SCOPE.user_id.encode()))
    age(spool)
    await replayed(spool, store)
    assert await logged(store) == await logged(store, SOMEBODY) == []


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_waits_for_what_is_just_becoming_the_users(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    binds, answers = held(monkeypatch, SpoolFile, "bind")
    session = SessionSpool(spool, SOMEBODY, clock, Counters())
    await session.append([turn("forget me", session_id="call-1")])
    moving = asyncio.create_task(session.move(SCOPE))
    await eventually(binds.is_set, "a file that is being bound")
    erasing = asyncio.create_task(spool.erase(SCOPE, Selection("all")))
    try:
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not erasing.done()
    finally:
        answers.set()
        await moving
    assert await erasing == 1
    await session.aclose()


@pytest.mark.promise("P-isolated")
async def test_P_isolated_what_has_begun_to_be_stored_as_nobodys_stays_nobodys(clock: HandClock, spool: Spool) -> None:
    left(spool, *MANY)
    age(spool)
    store = Failing(clock, SPOOL_REPLAY)
    await dies_while_it_replays(spool, store)
    late = left(spool, "said later")
    await replayed(spool, store, scope=SOMEBODY, owner=SCOPE)
    assert await logged(store, SOMEBODY) == MANY
    assert await logged(store) == ["said later"]
    assert late not in spool.files()


@pytest.mark.promise("P-isolated")
@pytest.mark.parametrize("answered", [True, False])
async def test_P_isolated_what_a_session_has_stored_of_a_stranger_is_not_its_heirs(
    clock: HandClock, spool: Spool, answered: bool
) -> None:
    """The turns are on disk all the same: some not stored yet, or one stored without an answer."""
    desk = Unknown(clock, spool, Failing(clock, 3) if answered else Troubled(clock))
    if answered:
        await desk.said(*MANY)
        desk.recorder.start(desk.store, SOMEBODY)
        await eventually(lambda: desk.counters["record.stored"] == 3, "some that are stored")
    else:
        desk.recorder.start(desk.store, SOMEBODY)
        await desk.recorder.looked_for_left(patient=True)
        desk.store.fails_after_storing = True
        desk.recorder.record(turn(MANY[0]))
        await eventually(lambda: desk.counters["record.retries"] == 1, "an answer that is lost")
        await clock.advance(SPOOL_AFTER_S / 4)
        await eventually(lambda: desk.recorder.spooled == 1, "a turn on disk")
    dying = asyncio.create_task(desk.recorder.aclose(0))
    while (
        not dying.done()
    ):  # the disk's thread has its file in real time; only what waits for the store goes by the hand
        if not (await asyncio.wait({dying}, timeout=PATIENCE_S))[0]:
            await clock.advance(1)
    if isinstance(desk.store, Failing):
        desk.store.takes = 1_000
    await replayed(spool, desk.store, scope=SOMEBODY, owner=SCOPE)
    assert spool.files() == []
    assert await logged(desk.store, SOMEBODY) == (MANY if answered else MANY[:1])
    assert await logged(desk.store) == []


@pytest.mark.promise("P-isolated")
@pytest.mark.parametrize("scope", [SCOPE, SOMEBODY], ids=lambda scope: str(scope.kind))
async def test_P_isolated_a_turn_is_not_stored_while_it_is_written_to_disk_as_one_that_may_be_anothers(
    clock: HandClock, spool: Spool, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, written = threading.Event(), threading.Event()
    append = SpoolFile.append

    def slow(file: SpoolFile, *items: Any) -> bool:
        done = append(file, *items)
        writes.set()
        written.wait(30)
        return done

    monkeypatch.setattr(SpoolFile, "append", slow)
    desk = Unknown(clock, spool)
    desk.recorder.record(turn("one"))
    try:
        await clock.advance(SPOOL_AFTER_S)
        await eventually(writes.is_set, "a turn on its way to the disk")
        desk.known(scope)
        desk.recorder.start(desk.store, scope)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert desk.store.appends == 0
    finally:
        written.set()
    assert await desk.recorder.stored(60)
    assert await logged(desk.store, scope) == ["one"]
    await desk.recorder.aclose()


async def test_what_is_said_before_anybody_has_joined_goes_from_one_to_the_next(clock: HandClock, spool: Spool) -> None:
    session = SessionSpool(spool, ROOM, clock, Counters())
    for scope in (ROOM, SOMEBODY, SCOPE):
        await session.move(scope)
        await session.append([turn(f"as a {scope.kind}'s", session_id="call-1")])
        assert len(spool.files(scope)) == len(spool.files()) == 1
        assert session.waiting == (ROOM, SOMEBODY, SCOPE).index(scope) + 1
    await session.aclose()
    store = Troubled(clock)
    await replayed(spool, store)
    assert await logged(store) == ["as a session's", "as a session's", "as a user's"]


async def test_what_went_from_a_room_to_a_stranger_in_it_is_the_strangers(clock: HandClock, spool: Spool) -> None:
    session = SessionSpool(spool, ROOM, clock, Counters())
    await session.append([turn("one", session_id="call-1")])
    await session.move(SOMEBODY)
    await session.aclose()
    store = Troubled(clock)
    await replayed(spool, store)
    assert await logged(store, SOMEBODY) == []  # somebody may yet know who that is
    age(spool)
    await replayed(spool, store)
    assert await logged(store, SOMEBODY) == ["one"]
    assert await logged(store, ROOM) == []


@pytest.mark.promise("P-isolated")
async def test_P_isolated_who_is_known_by_now_has_what_the_process_left_that_knew_it_too(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between saying whose the file is and renaming it: that has happened or has not, and it has not."""
    session = SessionSpool(spool, SOMEBODY, clock, Counters())
    await session.append([turn("one", session_id="call-1")])
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _dies)
        with pytest.raises(Died):
            await session.move(SCOPE)
    await session.aclose()
    assert spool.files(SCOPE) == []
    store = Troubled(clock)
    await replayed(spool, store)
    assert await logged(store) == await logged(store, SOMEBODY) == []
    await replayed(spool, store, scope=SOMEBODY, owner=SCOPE)
    assert await logged(store) == ["one"]
    assert spool.files() == []


class Died(Exception):
    pass


def _dies(*_: object) -> None:
    raise Died


async def test_a_file_of_an_older_version_is_bound_as_well(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("memory.spool_frames._FORMAT", 1)
        path = left(spool, *MANY)
    assert b'"v":2' not in path.read_bytes()
    store = Failing(clock, 1)
    await dies_while_it_replays(spool, store, scope=SOMEBODY, owner=SCOPE)
    await replayed(spool, store)
    assert await logged(store) == MANY
    assert await logged(store, SOMEBODY) == []


async def test_turns_whose_session_is_anothers_by_now_are_in_one_session_however_often_it_takes(
    clock: HandClock, spool: Spool
) -> None:
    left(spool, *MANY)
    store = Failing(clock, 1)
    await store.claim("call-1", SOMEBODY)
    await dies_while_it_replays(spool, store, scope=SOMEBODY, owner=SCOPE)
    await replayed(spool, store)
    records = [item.record for item in (await store.read(SCOPE, after="", limit=99)).records]
    assert len(records) == len(MANY)
    assert len({record.session_id for record in records} - {"call-1"}) == 1


# --- the file


async def test_what_is_just_being_appended_to_a_file_that_is_bound_is_its_owners_without_any_other_sign(
    clock: HandClock, spool: Spool
) -> None:
    file = spool.create(SOMEBODY)
    file.append([Spooled(SOMEBODY, NOON, turn("one", session_id="call-1"))])
    spool.bind(file, SCOPE, for_good=True)
    assert await spool.erase(SCOPE, Selection("all")) == 1
    file.append([Spooled(SOMEBODY, NOON, turn("two", session_id="call-1"))])
    file.close()
    store = Troubled(clock)
    await replayed(spool, store)
    assert await logged(store) == ["two"]


def bound(spool: Spool, *texts: str, session: str = "call-1") -> Path:
    """A file of a caller who became known, by a process that is no more."""
    path = left(spool, *texts)
    file = spool.adopt(path)
    assert file is not None
    spool.bind(file, SCOPE, for_good=True)
    file.close()
    assert not path.exists()
    return file.path


async def test_what_an_erasure_leaves_of_a_bound_file_is_still_its_owners(clock: HandClock, spool: Spool) -> None:
    path = bound(spool, "one", "two")
    assert await spool.erase(SCOPE, Selection("session", session_id="another")) == 0
    assert await spool.erase(SOMEBODY, Selection("all")) == 0
    store = Troubled(clock)
    await replayed(spool, store)
    assert await logged(store) == ["one", "two"]
    assert not path.exists()


async def test_a_file_that_does_not_say_any_more_whose_it_is_is_stored_as_nobodys_either(
    clock: HandClock, spool: Spool
) -> None:
    path = bound(spool, "one")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    store, counters = Troubled(clock), Counters()
    await replay_left(spool, store, counters, SystemClock())
    assert counters["spool.damaged"] == 2
    assert await logged(store) == await logged(store, SOMEBODY) == []


async def test_a_file_cannot_be_bound_twice(spool: Spool) -> None:
    path = bound(spool, "one")
    file = spool.adopt(path)
    assert file is not None
    spool.bind(file, SOMEBODY, for_good=True)
    assert file.path == path
    assert [item.scope for item in file.batch(9).records] == [SCOPE]
    file.close()


async def test_a_file_that_was_renamed_while_it_was_taken_is_left_to_who_knows_its_name(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(spool, "one")
    opened = os.open

    def outrun(name: Any, *how: Any, **options: Any) -> int:
        descriptor = opened(name, *how, **options)
        if name == path:
            os.rename(path, path.with_name("somebody-elses.spool"))
        return descriptor

    monkeypatch.setattr(os, "open", outrun)
    assert spool.adopt(path) is None


async def test_an_older_version_reads_nothing_that_it_could_take_to_be_nobodys(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bound(spool, "one")
    left(spool, "two")
    monkeypatch.setattr("memory.spool_frames._FORMAT", 1)
    age(spool)
    store = Troubled(clock)
    with pytest.raises(SpoolUnusable, match="upgrade"):
        await replayed(spool, store)
    assert await logged(store) == await logged(store, SOMEBODY) == []
    assert await spool.erase(SCOPE, Selection("session", session_id="call-1")) > 0
    assert b"one" not in path.read_bytes()
