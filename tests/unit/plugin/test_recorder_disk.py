"""The recorder with its store away, on a disk that takes what is written and fails to keep it (fsync: EIO)."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

from memory.limits import DURABLE_WAIT_S, SPOOL_AFTER_S, SPOOL_RETRY_S
from memory.spool import Spool
from tests.support.sessions import HandClock
from tests.support.voice import eventually
from tests.unit.plugin.test_recorder import turn
from tests.unit.plugin.test_recorder_spool import AwayDesk


class Disk:
    """``fails``: every fsync of a file fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = True
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._synced)

    def _synced(self, descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if self.fails and is_file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)


def in_files(spool: Spool) -> bytes:
    return b"".join(map(Path.read_bytes, spool.files()))


@pytest.mark.promise("P-durable")
async def test_P_durable_a_turn_that_the_disk_fails_to_sync_is_not_said_to_be_durable_and_not_lost(
    clock: HandClock, spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, desk = Disk(monkeypatch), AwayDesk(clock, spool)
    desk.recorder.record(turn("my cat is called biscuit"))
    gate = asyncio.create_task(desk.recorder.durable(DURABLE_WAIT_S))
    await clock.advance(SPOOL_AFTER_S)
    await eventually(lambda: desk.counters["record.not_spooled"] == 1, "the disk's refusal")
    await clock.advance(DURABLE_WAIT_S)
    assert not await gate
    assert desk.counters["record.spooled"] == 0
    assert b"biscuit" not in in_files(spool)
    assert "turns wait in memory alone" in caplog.text
    assert "biscuit" not in caplog.text

    disk.fails = False
    await clock.advance(SPOOL_RETRY_S)
    await eventually(lambda: desk.counters["record.spooled"] == 1, "the disk's taking it")
    assert await desk.recorder.durable(DURABLE_WAIT_S)
    assert b"biscuit" in in_files(spool)
    await desk.back()
    assert await desk.stored() == ["my cat is called biscuit"]
    await desk.recorder.aclose()
