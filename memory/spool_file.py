"""One file of the spool, held by one process, and the gate that its readers and writers pass and an eraser keeps.

Frames one after another (``spool_frames``), appended and read in order. The file's name begins with the digest of the
scope that all of it is of; which one that is, a frame says: of a record, or of whom the file was bound to.

Everything blocks: for threads. Above: spool. Below: spool_frames, hosting, ports.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memory.datadir import sync_directory
from memory.errors import DataDirectoryUnusable, SpoolUnusable, StoreUnavailable
from memory.hosting import FileLock
from memory.identity import group_digest
from memory.limits import SPOOL_BYTES_MAX, SPOOL_ERASE_S, SPOOL_GATE_S, SPOOL_RECORDS_MAX
from memory.models import Scope
from memory.ports import Selection
from memory.spool_frames import Spooled, Stretch, decode, encode, encode_owner, split

_WINDOW = 1 << 20  # bytes read at once, unless one frame is larger
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Batch:
    """The next records of a file, up to ``end``; ``damaged`` stretches between them could not be read."""

    records: tuple[Spooled, ...]
    end: int
    damaged: int


class SpoolFile:
    """A file of the spool that this process holds. Its methods may be called in several threads.

    ``scope``: whose it is; ``None``: the file knows. ``path`` and ``gate`` change with ``bind``.
    """

    def __init__(self, path: Path, descriptor: int, gate: Gate, scope: Scope | None = None) -> None:
        self.path = path
        self.gate = gate
        self.records = 0  # appended by this process
        self._scope = scope
        self._says_owner: Scope | None = None  # in its newest frame of that kind
        self._file = descriptor
        self._size = os.fstat(descriptor).st_size
        self._read_to = 0
        self._one_at_a_time = threading.Lock()

    def append(self, items: Sequence[Spooled]) -> bool:
        """Write records to the end, as its owner's; they are on the disk when this returns, and none is when it raises.

        False: the file was all replayed, and is gone.

        Raises:
            SpoolUnusable: the spool is full, or its disk is, or can't be written.
        """
        with self._one_at_a_time, self.gate.shared():
            if self._file < 0:
                return False
            data = b"".join(encode(item.of(self._scope or item.scope)) for item in items)
            if self._size + len(data) > SPOOL_BYTES_MAX or self.records + len(items) > SPOOL_RECORDS_MAX:
                raise SpoolUnusable(
                    f"The spool of this session is full ({SPOOL_BYTES_MAX} bytes, {SPOOL_RECORDS_MAX} records)."
                )
            self._put(data)
            self.records += len(items)
            return True

    def bind(self, path: Path, gate: Gate, owner: Scope | None) -> None:
        """Have the file be at ``path``, and all that is in it ``owner``'s. See ``Spool.bind``.

        Raises:
            SpoolUnusable: it is so for this process alone; call again.
        """
        with self._one_at_a_time:
            self._scope = owner or self._scope
            if self._file < 0:
                return
            if owner is not None and owner != self._says_owner:
                self._put(encode_owner(owner))
                self._says_owner = owner
            try:
                os.rename(self.path, path)
                self.path, self.gate = path, gate
                sync_directory(path.parent)
            except OSError as error:
                raise unusable(error) from None

    def batch(self, limit: int) -> Batch:
        """The next ``limit`` records at most that were not ``passed``.

        Raises:
            SpoolUnusable: the file can't be read, or a newer version wrote it.
        """
        with self._one_at_a_time:
            records: list[Spooled] = []
            end, damaged = self._read_to, 0
            scope = self._scope = self._scope or self._found_scope()
            for stretch in self._stretches():
                item = None if stretch.payload is None or stretch.erased else decode(stretch.payload)
                end = stretch.end
                if isinstance(item, Spooled) and scope is not None:
                    records.append(item.of(scope))
                elif not (isinstance(item, Scope) or stretch.erased):
                    damaged += 1
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
                sync_directory(self.path.parent)
            self._close()
            return True

    def close(self) -> None:
        """Let go of the file; what is in it is the next one's to store. Idempotent."""
        with self._one_at_a_time:
            self._close()

    def _put(self, data: bytes) -> None:
        try:
            _write(self._file, data, self._size)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left of it is recognised as no frame
                os.ftruncate(self._file, self._size)
            raise unusable(error) from None
        self._size += len(data)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _found_scope(self) -> Scope | None:
        try:
            return _whose(_read(self._file), self.path)
        except OSError as error:
            raise SpoolUnusable(f"The spool can't be read: {error.strerror}.") from None

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


@dataclass(frozen=True, slots=True)
class Held:
    """A file that this process has locked."""

    descriptor: int

    @classmethod
    def create(cls, path: Path) -> Self | None:
        """Raises OSError: there is no place for it, or there is such a file."""
        return cls._locked(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @classmethod
    def take(cls, path: Path) -> Self | None:
        try:
            return cls._locked(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return None

    @classmethod
    def _locked(cls, path: Path, descriptor: int) -> Self | None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # whoever had it neither removed nor renamed it
                return cls(descriptor)
        os.close(descriptor)
        return None


def digest_of(path: Path) -> str:
    """The digest of the scope that all of the file is of."""
    return path.name.split(".")[0]


def id_of(path: Path) -> str:
    """The part of a file's name that stays when it is bound."""
    return path.name.split(".")[1]


def erase_in(path: Path, scope: Scope, selection: Selection) -> int:
    """Overwrite what is in a file of ``scope``'s of ``selection``; returns how many records that were.

    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        gone, stretches = 0, _read(descriptor)
        if _whose(stretches, path) not in (scope, None):
            return 0
        for stretch in stretches:
            if not stretch.erased and _is_meant(item := _item(stretch), selection):
                # In place: a writer that lives goes on writing behind it.
                _write(descriptor, stretch.blank(), stretch.begin)
                gone += stretch.payload is not None and not isinstance(item, Scope)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return gone


def _is_meant(item: Spooled | Scope | None, selection: Selection) -> bool:
    if item is None or selection.what == "all":
        return True
    if isinstance(item, Scope):  # what is left needs it
        return False
    if selection.what == "session":
        return item.record.session_id == selection.session_id
    return selection.since is None or item.record.timestamp >= selection.since


def _read(descriptor: int) -> list[Stretch]:
    return split(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _whose(stretches: Sequence[Stretch], path: Path) -> Scope | None:
    """Whose the file is: the scope that its name is the digest of, if a frame is left that says it."""
    for stretch in reversed(stretches):  # those who became known later come later
        item = _item(stretch)
        scope = item.scope if isinstance(item, Spooled) else item
        if scope is not None and group_digest(scope) == digest_of(path):
            return scope
    return None


def _item(stretch: Stretch) -> Spooled | Scope | None:
    """What a stretch holds; ``None`` where it can't be told, such as in a newer version's."""
    with contextlib.suppress(SpoolUnusable):
        return None if stretch.payload is None else decode(stretch.payload)
    return None


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def unusable(error: OSError) -> SpoolUnusable:
    return SpoolUnusable(
        f"The spool can't be written: {error.strerror or type(error).__name__}. Free space in the data directory"
        " (VOICEASSIST_DATA_DIR), or bring the store back."
    )
