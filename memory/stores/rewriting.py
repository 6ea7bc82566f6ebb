"""Redis' append-only file, rewritten without what was deleted: until then the file still holds it.

Above: redis, graph.driver. Below: errors. Belongs to the event loop it is used in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from memory.errors import StoreFault, StoreUnavailable

logger = logging.getLogger(__name__)

_RETRY_S = 0.2
_TRIES = 250
_CLOSE_S = 20.0  # whoever ends is the only one who knows; a rewrite goes through about 100 MB a second


class Rewriting:
    """Rewrites of one server's append-only file. ``call`` makes one command and raises what a store's calls raise."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._wanted = 0

    async def soon(self) -> None:
        """Have the file rewritten without what was deleted; in the background if a rewrite is running now."""
        self._wanted += 1
        if self._task is None or self._task.done():
            if await self._started():
                self._wanted = 0
            else:
                self._task = asyncio.create_task(self._keep_trying())

    async def aclose(self) -> None:
        """Wait until a rewrite that is still wanted has begun, ``_CLOSE_S`` at most. Idempotent."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE_S)
            if not self._task.done():
                _tell()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_trying(self) -> None:
        for _ in range(_TRIES):
            await asyncio.sleep(_RETRY_S)
            wanted = self._wanted
            if await self._started():
                self._wanted -= wanted
            if self._wanted == 0:
                return
        _tell()

    async def _started(self) -> bool:
        """True: one began after this call (or will), or this server has nothing to rewrite or does not let us."""
        try:
            info = await self._call("INFO", "persistence")
            if not info.get("aof_enabled"):
                return True
            if info.get("aof_rewrite_in_progress"):
                return False  # it began before, and may still write out what is now deleted
            await self._call("BGREWRITEAOF")
        except StoreFault:
            return True
        except StoreUnavailable:
            return False
        return True


def _tell() -> None:
    logger.error("Deleted text may still be in Redis' append-only file: run BGREWRITEAOF.")
