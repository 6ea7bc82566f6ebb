"""Where index snapshots lie: one file a user, owner only, replaced atomically, removed durably. Never on the loop.

A file is a short header (JSON: whose it is and up to where it reads), then what ``snapshot.dump`` made of the index.
Above: engine, client (which removes files while the host is away). Below: identity, limits. Imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from memory.datadir import sync_directory
from memory.errors import SnapshotError
from memory.identity import group_digest
from memory.models import Scope
from memory.retrieval.tasks import to_the_end

KEY_BYTES = 32
_MAGIC = b"VMSNAP1\n"
_HEADER_BYTES_MAX = 65_536
_SUFFIX, _UNFINISHED = ".idx", ".new"


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """What a snapshot is of. ``position``, ``cursor``, ``epoch``: how far it reads in log and archive, and under which
    count of erasures; ``origin``: of which log and archive. ``model``: of its vectors ("" if it was made without).
    ``facts_at``: where in the body the facts begin, after the turns; 0 without facts."""

    scope: Scope
    origin: str
    epoch: int
    position: str
    cursor: int
    model: str
    facts_at: int = 0

    def encode(self) -> bytes:
        fields = {**asdict(self), "scope": self.scope.to_dict()}
        body = json.dumps(fields).encode()
        return _MAGIC + len(body).to_bytes(4, "big") + body

    @classmethod
    def read(cls, file: BinaryIO) -> SnapshotHeader:
        """The header at the start of a file, which is left at the end of it. Raises SnapshotError."""
        start = file.read(len(_MAGIC) + 4)
        length = int.from_bytes(start[len(_MAGIC) :], "big")
        if not start.startswith(_MAGIC) or length > _HEADER_BYTES_MAX:
            raise SnapshotError("The snapshot's header is damaged or of another version; it is built anew.")
        try:
            fields: dict[str, Any] = json.loads(file.read(length))
            return cls(
                Scope.from_dict(fields["scope"]),
                str(fields["origin"]),
                int(fields["epoch"]),
                str(fields["position"]),
                int(fields["cursor"]),
                str(fields["model"]),
                int(fields.get("facts_at", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SnapshotError("The snapshot's header is damaged; it is built anew.") from None


def snapshot_directory(data_dir: Path) -> Path:
    return data_dir / "snapshots"


class SnapshotStore:
    """The snapshots of one data directory. One process writes them: the recall host.

    ``origin`` names the log and archive that they are made from: positions and cursors of others mean nothing.
    """

    def __init__(self, directory: Path, *, origin: str = "") -> None:
        self.origin = origin
        self._directory = directory
        self._writing = asyncio.Lock()

    async def key(self) -> bytes:
        """The secret under which words are hashed; made on first use.

        Raises:
            OSError: it can be neither read nor made.
        """
        return await asyncio.to_thread(self._read_or_make_key)

    async def read(self, scope: Scope) -> tuple[SnapshotHeader, bytes] | None:
        """Header and body; ``None`` where there is none, or none that can be read.

        Raises:
            SnapshotError: the header is damaged.
        """
        return await asyncio.to_thread(_read, self._path(scope))

    async def write(self, header: SnapshotHeader, body: bytes, *, still_wanted: Callable[[], bool]) -> bool:
        """Replace the user's snapshot, unless it is not wanted any more once it is its turn to be written.

        Raises:
            OSError: the disk is full or not writable; an older snapshot stays as it was.
        """
        async with self._writing:
            if not still_wanted():
                return False
            await to_the_end(self._write, self._path(header.scope), header.encode(), body)
            return True

    async def remove(self, scope: Scope) -> bool:
        """Remove the user's snapshot; when this returns, the removal is durable. False: there was none."""
        async with self._writing:
            return await to_the_end(remove_snapshot, self._directory, scope)

    async def headers(self) -> list[SnapshotHeader]:
        """Of every snapshot there is; files that are no snapshots of this version are removed."""
        return await asyncio.to_thread(self._headers)

    async def prune(self, *, older_than_s: float) -> int:
        """Remove snapshots that nobody has read or written for so long; returns how many."""
        async with self._writing:
            return await to_the_end(self._prune, time.time() - older_than_s)

    def _path(self, scope: Scope) -> Path:
        return self._directory / (group_digest(scope) + _SUFFIX)

    def _read_or_make_key(self) -> bytes:
        self._make_directory()
        path = self._directory / "key"
        while True:
            try:
                key = path.read_bytes()
                if len(key) == KEY_BYTES:
                    return key
                path.unlink()  # cut off by a full disk: snapshots made under it can't be read anyway
            except FileNotFoundError:
                _replace(path, secrets.token_bytes(KEY_BYTES))

    def _make_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _write(self, path: Path, *parts: bytes) -> None:
        self._make_directory()
        _replace(path, *parts)

    def _headers(self) -> list[SnapshotHeader]:
        found = []
        for path in sorted(self._directory.glob("*" + _SUFFIX)):
            try:
                with path.open("rb") as file:
                    found.append(SnapshotHeader.read(file))
            except SnapshotError:
                path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
        return found

    def _prune(self, before: float) -> int:
        count = 0
        for path in self._directory.glob("*" + _SUFFIX):
            try:
                if path.stat().st_mtime < before:
                    path.unlink()
                    count += 1
            except FileNotFoundError:
                continue
        return count


def remove_snapshot(directory: Path, scope: Scope) -> bool:
    """Remove a user's snapshot durably, an unfinished one included. Blocking; idempotent.

    Raises:
        OSError: it is there and can't be removed.
    """
    path = directory / (group_digest(scope) + _SUFFIX)
    there = path.exists()
    for doomed in (path, path.with_suffix(_UNFINISHED)):
        doomed.unlink(missing_ok=True)
    if there:
        sync_directory(directory)
    return there


def _read(path: Path) -> tuple[SnapshotHeader, bytes] | None:
    try:
        with path.open("rb") as file:
            os.utime(path)  # how prune() knows what is in use
            return SnapshotHeader.read(file), file.read()
    except OSError:
        return None


def _replace(path: Path, *parts: bytes) -> None:
    unfinished = path.with_suffix(_UNFINISHED)
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
