"""What one session has recorded and not yet stored: between the task that stores it and the one that puts it on disk.

Whoever waits here is woken by any change. Above: recorder, spooling. Below: limits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any

from memory.clock import Clock
from memory.limits import RECORD_QUEUE_MAX
from memory.models import Record
from memory.retrieval.deadlines import done_within


@dataclass(slots=True, eq=False)
class Waiting:
    """A record, since when it waits, and whether it was told that the disk does not take it."""

    record: Record
    since_s: float
    told: bool = False


class Backlog:
    """A bounded queue, and what is known of where it goes.

    ``silent``: another process records this session. ``away``: somebody has waited for the store in vain since it last
    answered. ``settled`` records have left, stored, on disk or given up; ``lost`` counts the latter.
    """

    def __init__(self, clock: Clock) -> None:
        self.silent = self.away = False
        self.settled = self.lost = 0
        self._clock = clock
        self._queue: deque[Waiting] = deque()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def oldest(self) -> Waiting | None:
        return self._queue[0] if self._queue else None

    @property
    def total(self) -> int:
        """How many have ever come."""
        return self.settled + len(self._queue)

    def first(self, limit: int) -> list[Waiting]:
        return list(islice(self._queue, limit))

    def add(self, record: Record) -> bool:
        """False: too many wait."""
        if len(self._queue) >= RECORD_QUEUE_MAX:
            return False
        self._queue.append(Waiting(record, self._clock.monotonic()))
        self.notify()
        return True

    def leave(self, *waiting: Waiting) -> None:
        """``waiting`` are settled. Those that the other task has settled already are gone, which is no matter."""
        for each in waiting:
            if self._queue and self._queue[0] is each:
                self._queue.popleft()
                self.settled += 1
        self.notify()

    def clear(self) -> None:
        self._queue.clear()
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    async def changed_within(self, timeout_s: float) -> None:
        """Return at the next change, or after ``timeout_s``."""
        # This very event: by the time a task of its own looked for it, another could be in its place.
        await finished_within(self._changed.wait(), self._clock, timeout_s)


async def finished_within(call: Coroutine[Any, Any, Any], clock: Clock, timeout_s: float) -> bool:
    """Whether ``call`` ends within ``timeout_s``; it is cancelled where it doesn't. Raises what it raises."""
    task = asyncio.ensure_future(call)
    try:
        if await done_within(task, clock, timeout_s):
            task.result()
            return True
        return False
    finally:
        await cancelled(task)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and wait for its end."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
