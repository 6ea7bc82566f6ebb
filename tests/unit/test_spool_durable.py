"""The spool says that something is on the disk only once the disk has said so: every write is followed by its fsync."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memory.errors import SpoolUnusable, StoreUnavailable
from memory.models import Scope
from memory.ports import Selection
from memory.spool import Spool
from memory.spool_file import SpoolFile
from tests.unit.test_spool import ANA, contents, items_in, left_by_the_dead, said, spooled

UNBOUND = Scope(org_id="acme", agent_id="desk", user_id="call-1", kind="session")


@dataclass
class Disk:
    """What the spool asks of the disk, in order: (call, the file's inode). ``fails``: fsyncs of files that yet fail."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    fails: int = 0
    bytes_at_once: int = 1 << 30

    def of(self, path: Path) -> list[str]:
        inode = path.stat().st_ino
        return [call for call, of in self.calls if of == inode]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    pwrite, fsync = os.pwrite, os.fsync

    def watched_pwrite(descriptor: int, data: Any, at: int) -> int:
        disk.calls.append(("write", os.fstat(descriptor).st_ino))
        return pwrite(descriptor, bytes(data)[: disk.bytes_at_once], at)

    def watched_fsync(descriptor: int) -> None:
        if disk.fails:
            disk.fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)
        disk.calls.append(("fsync", os.fstat(descriptor).st_ino))

    monkeypatch.setattr(os, "pwrite", watched_pwrite)
    monkeypatch.setattr(os, "fsync", watched_fsync)
    yield disk
    monkeypatch.undo()


@pytest.fixture
def spool(data_dir: Path) -> Spool:
    return Spool(data_dir)


@pytest.fixture
def file(spool: Spool) -> Iterator[SpoolFile]:
    file = spool.create(ANA)
    yield file
    file.close()


@pytest.mark.promise("P-durable")
def test_P_durable_each_append_returns_after_an_fsync_that_came_after_its_write(file: SpoolFile, disk: Disk) -> None:
    for number in range(3):
        disk.calls.clear()
        assert file.append(spooled(said(f"turn {number}"), said("and another")))
        assert disk.of(file.path) == ["write", "fsync"]


@pytest.mark.promise("P-durable")
def test_P_durable_what_is_written_in_pieces_is_synced_after_the_last_of_them(file: SpoolFile, disk: Disk) -> None:
    disk.bytes_at_once = 50
    assert file.append(spooled(said("a turn that the system takes in pieces")))
    *writes, last = disk.of(file.path)
    assert (set(writes), len(writes) > 2, last) == ({"write"}, True, "fsync")
    assert contents(file) == ["a turn that the system takes in pieces"]


@pytest.mark.promise("P-durable")
def test_P_durable_a_new_files_name_is_on_the_disk_before_a_turn_goes_into_it(spool: Spool, disk: Disk) -> None:
    file = spool.create(ANA)
    assert disk.of(spool.directory) == ["fsync"]
    file.close()


@pytest.mark.promise("P-durable")
def test_P_durable_whom_a_file_was_bound_to_is_on_the_disk_when_that_is_said(spool: Spool, disk: Disk) -> None:
    file = spool.create(UNBOUND)
    file.append(spooled(said("hello"), scope=UNBOUND))
    disk.calls.clear()
    spool.bind(file, ANA, for_good=False)
    assert disk.of(file.path) == ["write", "fsync"]
    assert disk.of(spool.directory)[-1:] == ["fsync"]
    file.close()


@pytest.mark.promise("P-durable")
def test_P_durable_a_disk_that_fails_to_sync_is_told_and_the_file_holds_what_it_held(
    file: SpoolFile, disk: Disk
) -> None:
    file.append(spooled(said("before")))
    size = file.path.stat().st_size
    disk.fails = 1
    with pytest.raises(SpoolUnusable, match=os.strerror(errno.EIO)):
        file.append(spooled(said("never on the disk")))
    assert file.path.stat().st_size == size
    assert file.records == 1
    assert contents(file) == ["before"]

    disk.calls.clear()
    assert file.append(spooled(said("after")))
    assert disk.of(file.path) == ["write", "fsync"]  # written anew: what a failed sync leaves in memory may be gone
    assert [getattr(item.record, "content", "") for item in items_in(file.path.read_bytes())] == ["before", "after"]


@pytest.mark.promise("P-durable")
def test_P_durable_a_binding_that_fails_to_sync_is_told_and_made_at_the_next_try(spool: Spool, disk: Disk) -> None:
    file = spool.create(UNBOUND)
    file.append(spooled(said("hello"), scope=UNBOUND))
    path, size = file.path, file.path.stat().st_size
    disk.fails = 1
    with pytest.raises(SpoolUnusable, match=os.strerror(errno.EIO)):
        spool.bind(file, ANA, for_good=False)
    assert (file.path, path.stat().st_size) == (path, size)
    spool.bind(file, ANA, for_good=False)
    assert spool.files(ANA) == [file.path]
    assert file.path != path
    file.close()


@pytest.mark.promise("P-erased")
async def test_P_erased_what_is_erased_is_so_on_the_disk_when_that_is_said(spool: Spool, disk: Disk) -> None:
    path = left_by_the_dead(spool, said("a secret"), said("another"))
    disk.calls.clear()
    assert await spool.erase(ANA, Selection("all")) == 2
    assert disk.of(path) == ["write", "write", "fsync"]


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_that_fails_to_sync_is_not_said_to_be_one(spool: Spool, disk: Disk) -> None:
    left_by_the_dead(spool, said("a secret"))
    disk.fails = 1
    with pytest.raises(StoreUnavailable):
        await spool.erase(ANA, Selection("all"))
