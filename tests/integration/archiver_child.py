"""For each line on stdin (a number): fork an archiver that kills itself at that step, and print how it ended.

Run as ``python -m tests.integration.archiver_child REDIS_URL DATABASE_URL``. A step is whatever comes before and after
each call to the log, each SQL statement and each commit. Forking spares the start of an interpreter for each kill.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import alembic.command  # noqa: F401 - imported once, before the forks
import sqlalchemy as sa

from memory.clock import SystemClock
from memory.ingestion.archiver import Archiver
from memory.models import Scope
from memory.ports import LogSlice
from memory.stores.redis import RedisSessionStore
from memory.stores.sql import SqlArchive


class Fuse:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def burn(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class BurningLog:
    """A log whose every call is two steps."""

    def __init__(self, store: RedisSessionStore, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse

    async def pending(self, *, limit: int) -> list[Scope]:
        self._fuse.burn()
        found = await self._store.pending(limit=limit)
        self._fuse.burn()
        return found

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        self._fuse.burn()
        found = await self._store.read(scope, after=after, limit=limit)
        self._fuse.burn()
        return found

    async def confirm(self, scope: Scope, *, through: str) -> None:
        self._fuse.burn()
        await self._store.confirm(scope, through=through)
        self._fuse.burn()


async def archive_until_killed(redis_url: str, database_url: str, steps: int) -> None:
    fuse = Fuse(steps)
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(sa.Engine, name, lambda *_: fuse.burn())
    log = await RedisSessionStore.connect(redis_url)
    archive = await SqlArchive.open(database_url)
    await Archiver(BurningLog(log, fuse), archive, SystemClock()).run()


def main() -> None:
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            asyncio.run(archive_until_killed(sys.argv[1], sys.argv[2], int(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - it is the answer


if __name__ == "__main__":
    main()
