"""What is left of a budget, and who goes first, on an injected clock. Above: prefetch, client, engine, upkeep, the
archiver. Below: clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from memory.clock import Clock

_YIELD_S = 0.05  # between two looks at whether others are still busy


class Deadline:
    """``budget_ms`` from the moment it is made."""

    def __init__(self, clock: Clock, budget_ms: float) -> None:
        self._clock = clock
        self.started_s = clock.monotonic()
        self._ends_s = self.started_s + max(0.0, budget_ms) / 1_000

    def remaining_s(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self._ends_s - self._clock.monotonic())

    def elapsed_ms(self) -> float:
        return (self._clock.monotonic() - self.started_s) * 1_000

    async def met_by(self, future: asyncio.Future[Any], *, reserve_s: float = 0.0) -> bool:
        """Wait for ``future`` until ``reserve_s`` before the deadline; whether it is done by then.

        The future is neither cancelled nor asked for its result: both are its owner's.
        """
        return await done_within(future, self._clock, self.remaining_s() - reserve_s)


async def done_within(future: asyncio.Future[Any], clock: Clock, seconds: float) -> bool:
    """Whether ``future`` is done within ``seconds``."""
    if seconds > 0 and not future.done():
        alarm = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait((future, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
    return future.done()


async def while_busy(busy: Callable[[], bool], clock: Clock, until_s: float) -> None:
    """Return once others are not ``busy`` any more, or at ``until_s`` of the clock."""
    while clock.monotonic() < until_s and busy():
        await clock.sleep(_YIELD_S)
