"""Turns on disk while their store is away: one append-only file per recorder, below ``<data_dir>/spool``.

A file's name says whose all of it is. One of a caller who isn't known (yet) is marked, and left to the session's next
process for a while. Who learns more renames it: in that one step all of it is the user's, or nobody's for good, and the
first of it is stored after that. So no turn is ever stored as two callers', wherever a process dies.

A flock on a file says that its writer lives; whoever gets that takes a dead one's turns over. Who writes, or reads in
order to store, holds the user's *gate* shared; who erases holds it alone: what was read before an erasure is never
stored after it.

Everything but ``Spool.erase`` blocks: for threads. Above: replay, service, wiring. Below: spool_file, ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from memory.datadir import sync_directory
from memory.errors import SpoolUnusable, StoreUnavailable
from memory.identity import group_digest
from memory.limits import SPOOL_TOTAL_BYTES_MAX, SPOOL_UNBOUND_S
from memory.models import Scope, new_id
from memory.ports import Selection
from memory.spool_file import Gate, Held, SpoolFile, digest_of, erase_in, id_of, unusable

_SUFFIX, _UNBOUND = ".spool", ".session.spool"
_GATES = 16
_CREATE_TRIES = 5


class Spool:
    """The spool of one data directory. Making one touches nothing; directory and files come with the first need."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / "spool"

    def gate(self, scope: Scope) -> Gate:
        """The gate of this user (and of some others)."""
        return self._gate(group_digest(scope))

    def create(self, scope: Scope, *, for_good: bool = False) -> SpoolFile:
        """A new file for turns of ``scope``. See ``bind``.

        Raises:
            SpoolUnusable: there is no place for it.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if self.size() >= SPOOL_TOTAL_BYTES_MAX:
                raise SpoolUnusable(f"The spool is full ({SPOOL_TOTAL_BYTES_MAX} bytes). Is the store coming back?")
            for _ in range(_CREATE_TRIES):
                path = self._path(group_digest(scope), new_id(), for_good=for_good or scope.kind == "user")
                held = Held.create(path)
                if held is not None:
                    sync_directory(self.directory)
                    return SpoolFile(path, held.descriptor, self.gate(scope), scope)
        except OSError as error:
            raise unusable(error) from None
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
        held = Held.take(path)
        return None if held is None else SpoolFile(path, held.descriptor, self._gate(digest_of(path)))

    def bind(self, file: SpoolFile, owner: Scope | None, *, for_good: bool) -> None:
        """Have all that is in a file of a caller who wasn't known be ``owner``'s; ``None``: whose it is by now.

        What is a user's, or was bound ``for_good``, is never bound again. For who holds the gates of both, shared.

        Raises:
            SpoolUnusable: it is so for this process alone; call again.
        """
        digest = digest_of(file.path) if owner is None else group_digest(owner)
        for_good = for_good or (owner is not None and owner.kind == "user")
        path = self._path(digest, id_of(file.path), for_good=for_good)
        if file.path.name.endswith(_UNBOUND) and path != file.path:
            file.bind(path, self._gate(digest), owner if digest != digest_of(file.path) else None)

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
            if not self.files():
                return 0
            with self.gate(scope).alone():
                return sum(erase_in(path, scope, selection) for path in self.files(scope))
        except SpoolUnusable as error:
            raise StoreUnavailable(str(error)) from None
        except OSError as error:
            raise StoreUnavailable(
                f"The spool can't be erased from: {error.strerror}; repair it, erase again."
            ) from None

    def _path(self, digest: str, file_id: str, *, for_good: bool) -> Path:
        return self.directory / f"{digest}.{file_id}{_SUFFIX if for_good else _UNBOUND}"

    def _gate(self, digest: str) -> Gate:
        return Gate(self.directory / f"gate-{int(digest[:8], 16) % _GATES:x}.lock")
