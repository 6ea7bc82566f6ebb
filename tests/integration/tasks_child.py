"""A task worker that holds on to each task until it is killed: ``python -m tests.integration.tasks_child REDIS_URL``.

Prints the user's number when a task begins.
"""

from __future__ import annotations

import asyncio
import sys

from memory.counters import Counters
from memory.ingestion.scan import Queue
from memory.ingestion.tasks import TaskEngine


class Holding:
    async def look(self, queue: Queue) -> bool:
        return False

    async def ingest(self, user: int) -> bool:
        print(user, flush=True)  # noqa: T201 - it is the answer
        await asyncio.Event().wait()
        return False

    async def interrupted(self, user: int) -> None:
        pass

    async def digest(self, user: int) -> None:
        pass


async def main() -> None:
    # Looks as often as the test's own engines do: who looked last says when the next look is, for all.
    engine = TaskEngine(sys.argv[1], Holding(), Counters(), redelivery_s=1.0, scan_s=0.1)
    await engine.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
