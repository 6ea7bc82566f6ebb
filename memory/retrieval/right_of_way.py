"""A turn's recall goes before the storing of turns: both meet in a store that syncs each write to its disk.

Above: plugin, recorder, prefetch. Below: deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from memory.clock import Clock
from memory.retrieval.deadlines import done_within


class RightOfWay:
    """Who answers a turn takes it; who stores one waits until it is free, for a bounded time. Belongs to one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._takers = 0
        self._freed: asyncio.Future[None] | None = None

    def take(self) -> None:
        """Have it until ``give``; several may have it at once."""
        self._takers += 1

    def give(self) -> None:
        self._takers -= 1
        if not self._takers and self._freed is not None:
            self._freed.set_result(None)
            self._freed = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.give()

    async def free(self, timeout_s: float) -> None:
        """Return once nobody has it, or after ``timeout_s``."""
        if self._takers:
            if self._freed is None:
                self._freed = asyncio.get_running_loop().create_future()
            await done_within(self._freed, self._clock, timeout_s)
