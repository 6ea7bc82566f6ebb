"""Turns said before it is known who says them: on disk like all, and bound to the user as soon as that is known."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memory.clock import SystemClock
from memory.counters import Counters
from memory.identity import group_digest
from memory.limits import DURABLE_WAIT_S, SPOOL_AFTER_S, SPOOL_RETRY_S, SPOOL_UNBOUND_S
from memory.models import MemoryEntry, Record, Scope
from memory.ports import Selection
from memory.replay import replay_left
from memory.spool import Spool
from memory.spool_file import SpoolFile
from memory.spool_frames import Spooled
from tests.support.recalls import settle
from tests.support.sessions import HandClock
from tests.support.threads import held
from tests.support.voice import eventually
from tests.unit.plugin.test_recorder import SCOPE, Desk, Troubled, turn

ROOM = SCOPE.model_copy(update={"user_id": "call-1", "kind": "session"})
SOMEBODY = SCOPE.model_copy(update={"user_id": "call-1/PA_1", "kind": "session"})
SOMEBODY_ELSE = SCOPE.model_copy(update={"user_id": "call-1/PA_2", "kind": "session"})


class Unknown(Desk):
    """A recorder whose caller isn't known yet; with the store there."""

    def __init__(self, clock: HandClock, spool: Spool, store: Troubled | None = None) -> None:
        super().__init__(clock, store or Troubled(clock))
        self.spool = spool
        self.recorder.spool_as(ROOM, spool)
        self.recorder.spool_as(SOMEBODY, spool)

    def known(self, scope: Scope = SCOPE) -> None:
        self.recorder.spool_as(scope, self.spool)

    def files_of(self, scope: Scope) -> list[Path]:
        return self.spool.files(scope)


@pytest.fixture
async def desk(clock: HandClock, spool: Spool) -> AsyncIterator[Unknown]:
    desk = Unknown(clock, spool)
    yield desk
    await desk.recorder.aclose()


async def logged(store: Troubled, scope: Scope = SCOPE) -> list[str]:
    return [text_of(item.record) for item in (await store.read(scope, after="", limit=99)).records]


def text_of(record: Record) -> str:
    assert isinstance(record, MemoryEntry)
    return record.content


def refusing(*_: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def left(spool: Spool, *texts: str, scope: Scope = SOMEBODY) -> Path:
    """What a process has left that died before it knew its caller."""
    file = spool.create(scope)
    entries = [turn(text, session_id="call-1") for text in texts]
    file.append([Spooled(scope, entry.timestamp, entry) for entry in entries])
    file.close()
    return file.path


@pytest.mark.promise("P-durable")
@pytest.mark.case("L01")
async def test_P_durable_L01_a_turn_is_durable_before_its_reply_though_nobody_knows_whose_it_is(desk: Unknown) -> None:
    desk.recorder.record(turn("my cat is called biscuit"))
    gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
    await settle()
    assert not gate.done()
    await desk.clock.advance(SPOOL_AFTER_S)
    assert await gate
    [path] = desk.files_of(SOMEBODY)
    assert b"biscuit" in path.read_bytes()


async def test_what_is_just_being_bound_is_not_taken_to_be_stored(
    desk: Unknown, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.said("one", "two")
    binds, answers = held(monkeypatch, SpoolFile, "bind")
    desk.known()
    desk.start()
    await eventually(binds.is_set, "a move that has begun")
    storing = asyncio.create_task(desk.recorder.stored(60))
    try:
        await settle()
        assert not storing.done()
    finally:
        answers.set()
    assert await storing
    assert await desk.stored() == ["one", "two"]


@pytest.mark.case("L01")
async def test_L01_who_is_known_soon_costs_the_disk_nothing(desk: Unknown, spool: Spool) -> None:
    desk.recorder.record(turn("one"))
    await settle()
    desk.known()
    desk.start()
    assert await desk.recorder.stored(5)
    assert desk.counters["record.spooled"] == 0
    assert spool.files() == []


@pytest.mark.case("L01")
async def test_L01_what_was_said_before_is_the_users_once_they_are_known(desk: Unknown, spool: Spool) -> None:
    await desk.said("one", "two")
    desk.known()
    desk.start()
    desk.recorder.record(turn("three"))
    assert await desk.recorder.stored(5)
    assert await logged(desk.store) == ["one", "two", "three"]
    assert await desk.stored() == ["one", "two", "three"]
    records = [item.record for item in (await desk.store.read(SCOPE, after="", limit=9)).records]
    assert {record.user_id for record in records} == {"ana"}
    assert await logged(desk.store, SOMEBODY) == []
    assert spool.files() == []


async def test_what_was_said_before_is_found_as_the_users_while_the_store_is_away(desk: Unknown, spool: Spool) -> None:
    await desk.said(*(f"turn {number}" for number in range(100)))
    desk.known()
    await eventually(lambda: len(desk.files_of(SCOPE)) == 1 and not desk.files_of(SOMEBODY), "a file of the user's")
    await desk.said("turn 100")
    # The user's erasure finds it, and so would another session of the user's.
    assert await spool.erase(SCOPE, Selection("session", session_id="call-1")) == 101
    assert b"turn" not in desk.files_of(SCOPE)[0].read_bytes()
    await desk.said("said afterwards")
    desk.start()
    assert await desk.recorder.stored(5)
    assert await logged(desk.store) == ["said afterwards"]


async def test_a_full_spool_holds_nobody_up_who_becomes_known(
    desk: Unknown, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.said("one", "two")
    monkeypatch.setattr("memory.spool.SPOOL_TOTAL_BYTES_MAX", 1)
    monkeypatch.setattr("memory.spool_file.SPOOL_BYTES_MAX", 1)
    desk.known()
    await eventually(lambda: len(desk.files_of(SCOPE)) == 1 and not desk.files_of(SOMEBODY), "a file of the user's")


@pytest.mark.parametrize("call", ["rename", "pwrite"])
async def test_a_disk_that_cannot_be_written_when_it_is_known_keeps_all_and_is_tried_again(
    desk: Unknown, spool: Spool, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await desk.said("one", "two")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing)
        desk.known()
        await eventually(lambda: not desk.recorder._spooling or not desk.recorder._spooling.works, "a refusal")
        assert len(desk.files_of(SOMEBODY)) == 1
        assert desk.files_of(SCOPE) == []
    await desk.clock.advance(SPOOL_RETRY_S)
    await eventually(lambda: len(desk.files_of(SCOPE)) == 1 and not desk.files_of(SOMEBODY), "a file of the user's")
    desk.start()
    assert await desk.recorder.stored(5)
    assert await logged(desk.store) == ["one", "two"]


async def test_what_could_not_be_moved_is_stored_as_the_users_all_the_same(
    desk: Unknown, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.said("one", "two")
    monkeypatch.setattr(os, "rename", refusing)
    desk.known()
    desk.start()
    assert await desk.recorder.stored(5)
    assert await logged(desk.store) == ["one", "two"]
    assert spool.files() == []


async def test_who_stays_unknown_is_recorded_as_nobody_in_particular(desk: Unknown, spool: Spool) -> None:
    await desk.said("one")
    desk.recorder.spool_as(SOMEBODY, spool)
    desk.recorder.start(desk.store, SOMEBODY)
    assert await desk.recorder.stored(5)
    assert await logged(desk.store, SOMEBODY) == ["one"]
    assert spool.files() == []


# --- after a crash


@pytest.mark.promise("P-durable")
@pytest.mark.case("L01")
async def test_P_durable_L01_the_sessions_next_process_binds_what_was_left_to_the_user(
    clock: HandClock, spool: Spool
) -> None:
    left(spool, "one", "two")
    heir = Unknown(clock, spool)
    heir.known()
    heir.start()
    heir.recorder.record(turn("three"))
    assert await heir.recorder.stored(5)
    assert await logged(heir.store) == ["one", "two", "three"]
    assert await heir.stored() == ["one", "two", "three"]
    records = [item.record for item in (await heir.store.read(SCOPE, after="", limit=9)).records]
    assert {record.user_id for record in records} == {"ana"}
    assert spool.files() == []
    await heir.recorder.aclose()


@pytest.mark.promise("P-isolated")
async def test_P_isolated_what_another_participant_of_the_room_has_said_is_not_bound(
    clock: HandClock, spool: Spool
) -> None:
    theirs = left(spool, "theirs", scope=SOMEBODY_ELSE)
    heir = Unknown(clock, spool)
    heir.known()
    heir.start()
    heir.recorder.record(turn("mine"))
    assert await heir.recorder.stored(5)
    assert await logged(heir.store) == ["mine"]
    assert spool.files() == [theirs]
    await heir.recorder.aclose()


@pytest.mark.promise("P-durable")
async def test_P_durable_what_nobody_goes_on_with_is_stored_as_the_sessions_after_a_while(
    clock: HandClock, spool: Spool
) -> None:
    store, path = Troubled(clock), left(spool, "one")
    assert group_digest(SOMEBODY) in path.name
    assert await replay_left(spool, store, Counters(), SystemClock()) == 0
    assert spool.files() == [path]
    old = time.time() - SPOOL_UNBOUND_S - 1
    os.utime(path, (old, old))
    assert await replay_left(spool, store, Counters(), SystemClock()) == 1
    assert await logged(store, SOMEBODY) == ["one"]
    assert spool.files() == []
