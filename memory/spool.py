"""Turns on disk while their store is away: one append-only file per recorder, below ``<data_dir>/spool``.

A file is named after its user's digest and holds frames (``spool_frames``); one of a caller who isn't known (yet) is
marked, and left to the session's next process for a while. A flock on it says that its writer lives;
whoever gets that takes a dead one's turns over. Who writes, or reads in order to store, holds the user's *gate* shared;
who erases holds it alone: what was read before an erasure is never stored after it.

Everything but ``Spool.erase`` blocks: for threads. Above: replay, service, wiring. Below: spool_frames, hosting, ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memory.errors import DataDirectoryUnusable, SpoolUnusable, StoreUnavailable
from memory.hosting import FileLock
from memory.identity import group_digest
from memory.limits import (
    SPOOL_BYTES_MAX,
    SPOOL_ERASE_S,
    SPOOL_GATE_S,
    SPOOL_RECORDS_MAX,
    SPOOL_TOTAL_BYTES_MAX,
    SPOOL_UNBOUND_S,
)
from memory.models import Scope, new_id
from memory.ports import Selection
from memory.spool_frames import Spooled, Stretch, decode, encode, split

_SUFFIX, _UNBOUND = ".spool", ".session.spool"
_WINDOW = 1 << 20  # bytes read at once, unless one frame is larger
_GATES = 16
_POLL_S = 0.005
_CREATE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """The next records of a file, up to ``end``; ``damaged`` stretches between them could not be read."""

    records: tuple[Spooled, ...]
    end: int
    damaged: int


class SpoolFile:
    """A file of the spool that this process holds. Its methods may be called in several threads."""

    def __init__(self, path: Path, descriptor: int, gate: Gate) -> None:
        self.path = path
        self.gate = gate
        self.records = 0  # appended by this process
        self._file = descriptor
        self._size = os.fstat(descriptor).st_size
        self._read_to = 0
        self._one_at_a_time = threading.Lock()

    def append(self, items: Sequence[Spooled]) -> bool:
        """Write records to the end; they are on the disk when this returns, and none of them is when it raises.

        False: the file was all replayed, and is gone.

        Raises:
            SpoolUnusable: the spool is full, or its disk is, or can't be written.
        """
        data = b"".join(map(encode, items))
        with self._one_at_a_time, self.gate.shared():
            if self._file < 0:
                return False
            if self._size + len(data) > SPOOL_BYTES_MAX or self.records + len(items) > SPOOL_RECORDS_MAX:
                raise SpoolUnusable(
                    f"The spool of this session is full ({SPOOL_BYTES_MAX} bytes, {SPOOL_RECORDS_MAX} records)."
                )
            try:
                _write(self._file, data, self._size)
                os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # what is left of it is recognised as no frame
                    os.ftruncate(self._file, self._size)
                raise _unusable(error) from None
            self._size += len(data)
            self.records += len(items)
            return True

    def batch(self, limit: int) -> Batch:
        """The next ``limit`` records at most that were not ``passed``.

        Raises:
            SpoolUnusable: the file can't be read, or a newer version wrote it.
        """
        with self._one_at_a_time:
            records: list[Spooled] = []
            end, damaged = self._read_to, 0
            for stretch in self._stretches():
                item = None if stretch.payload is None or stretch.erased else decode(stretch.payload)
                damaged += item is None and not stretch.erased
                end = stretch.end
                if item is not None:
                    records.append(item)
                if len(records) >= limit:
                    break
            if end == self._read_to:  # somebody has cut the file off
                return Batch((), self._size, int(end < self._size))
            return Batch(tuple(records), end, damaged)

    def passed(self, end: int) -> bool:
        """What is before ``end`` is stored. True: so is all of the file, which is gone then."""
        with self._one_at_a_time:
            self._read_to = end
            if end < self._size:
                return False
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
                _sync(self.path.parent)
            self._close()
            return True

    def close(self) -> None:
        """Let go of the file; what is in it is the next one's to store. Idempotent."""
        with self._one_at_a_time:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _stretches(self) -> list[Stretch]:
        """Some of what comes next: whole stretches."""
        begin, window = self._read_to, _WINDOW
        while True:
            try:
                data = os.pread(self._file, min(window, self._size - begin), begin)
            except OSError as error:
                raise SpoolUnusable(f"The spool can't be read: {error.strerror}.") from None
            found = split(data)
            if begin + len(data) < self._size and found and found[-1].payload is None:
                found.pop()  # it may go on behind the window
            if found or begin + window >= self._size:
                return [Stretch(begin + part.begin, begin + part.end, part.payload) for part in found]
            window *= 2


class Gate:
    """Where readers and writers of some users' files pass together, and an eraser alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Raises SpoolUnusable: an erasure takes long."""
        lock = self._taken(shared=True, timeout_s=SPOOL_GATE_S)
        if lock is None:
            raise SpoolUnusable("The spool is being erased from; it takes turns again afterwards.")
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Raises StoreUnavailable: turns are being stored for too long."""
        lock = self._taken(shared=False, timeout_s=SPOOL_ERASE_S)
        if lock is None:
            raise StoreUnavailable("Turns of the spool are being stored just now; erase again.")
        try:
            yield
        finally:
            lock.release()

    def _taken(self, *, shared: bool, timeout_s: float) -> FileLock | None:
        lock = FileLock(self._path)
        until_s = time.monotonic() + timeout_s
        try:
            while not lock.try_acquire(shared=shared):
                if time.monotonic() >= until_s:
                    lock.release()
                    return None
                time.sleep(_POLL_S)
        except DataDirectoryUnusable as error:
            raise SpoolUnusable(str(error)) from None
        return lock


class Spool:
    """The spool of one data directory. Making one touches nothing; directory and files come with the first need."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / "spool"

    def gate(self, scope: Scope) -> Gate:
        """The gate of this user (and of some others)."""
        return self._gate(group_digest(scope))

    def create(self, scope: Scope) -> SpoolFile:
        """A new file for turns of ``scope``.

        Raises:
            SpoolUnusable: there is no place for it.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if self.size() >= SPOOL_TOTAL_BYTES_MAX:
                raise SpoolUnusable(f"The spool is full ({SPOOL_TOTAL_BYTES_MAX} bytes). Is the store coming back?")
            for _ in range(_CREATE_TRIES):
                suffix = _UNBOUND if scope.kind == "session" else _SUFFIX
                path = self.directory / f"{group_digest(scope)}.{new_id()}{suffix}"
                held = _Held.create(path)
                if held is not None:
                    _sync(self.directory)
                    return SpoolFile(path, held.descriptor, self.gate(scope))
        except OSError as error:
            raise _unusable(error) from None
        raise SpoolUnusable("The spool's files are taken as soon as they are made.")

    def files(self, scope: Scope | None = None) -> list[Path]:
        """The files there are, of one user if given, oldest first."""
        begin = f"{group_digest(scope)}." if scope is not None else ""
        try:
            names = [name for name in os.listdir(self.directory) if name.endswith(_SUFFIX) and name.startswith(begin)]
        except FileNotFoundError:
            return []
        return [self.directory / name for name in sorted(names, key=lambda name: name.partition(".")[2])]

    def is_anybodys(self, path: Path) -> bool:
        """Whether what is in a file may be stored by now as what it says it is, by whoever comes."""
        if not path.name.endswith(_UNBOUND):
            return True
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime > SPOOL_UNBOUND_S
        return False

    def adopt(self, path: Path) -> SpoolFile | None:
        """A file whose writer is dead, to be stored and let go; ``None`` where somebody has it, or it is gone."""
        held = _Held.take(path)
        return None if held is None else SpoolFile(path, held.descriptor, self._gate(path.name.partition(".")[0]))

    def size(self) -> int:
        """Bytes in all files."""
        total = 0
        for path in self.files():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    async def erase(self, scope: Scope, selection: Selection) -> int:
        """Overwrite what is in the spool of ``selection``; returns how many records that were. See ``ports.Erasable``.

        Damaged stretches in a file of the user are taken to be meant.

        Raises:
            StoreUnavailable: not finished; call again.
        """
        return await asyncio.to_thread(self._erase, scope, selection)

    def _erase(self, scope: Scope, selection: Selection) -> int:
        try:
            if not self.files(scope):
                return 0
            with self.gate(scope).alone():
                return sum(_erase_in(path, scope, selection) for path in self.files(scope))
        except SpoolUnusable as error:
            raise StoreUnavailable(str(error)) from None
        except OSError as error:
            raise StoreUnavailable(
                f"The spool can't be erased from: {error.strerror}; repair it, erase again."
            ) from None

    def _gate(self, digest: str) -> Gate:
        return Gate(self.directory / f"gate-{int(digest[:8], 16) % _GATES:x}.lock")


@dataclass(frozen=True, slots=True)
class _Held:
    """A file that this process has locked."""

    descriptor: int

    @classmethod
    def create(cls, path: Path) -> Self | None:
        return cls._locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @classmethod
    def take(cls, path: Path) -> Self | None:
        try:
            return cls._locked(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return None

    @classmethod
    def _locked(cls, descriptor: int) -> Self | None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # not removed by whoever had it before
                return cls(descriptor)
        os.close(descriptor)
        return None


def _erase_in(path: Path, scope: Scope, selection: Selection) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        gone = 0
        for stretch in split(os.pread(descriptor, os.fstat(descriptor).st_size, 0)):
            if not stretch.erased and _is_meant(stretch, scope, selection):
                # In place: a writer that lives goes on writing behind it.
                _write(descriptor, stretch.blank(), stretch.begin)
                gone += stretch.payload is not None
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return gone


def _is_meant(stretch: Stretch, scope: Scope, selection: Selection) -> bool:
    try:
        item = None if stretch.payload is None else decode(stretch.payload)
    except SpoolUnusable:  # of a newer version: it doesn't tell either
        item = None
    if item is None:
        return True
    if item.scope != scope:
        return False
    if selection.what == "session":
        return item.record.session_id == selection.session_id
    return selection.what == "all" or selection.since is None or item.record.timestamp >= selection.since


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(error: OSError) -> SpoolUnusable:
    return SpoolUnusable(
        f"The spool can't be written: {error.strerror or type(error).__name__}. Free space in the data directory"
        " (VOICEASSIST_DATA_DIR), or bring the store back."
    )
