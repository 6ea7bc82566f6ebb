"""The opened stores of each event loop that asks for them, and who is warm in them. Above: service. Below: wiring.

Clients belong to the loop that made them, and a service may be made at import and used in several loops one after the
other (a test suite, ``asyncio.run`` twice). So they are opened on first use, once for each loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from memory.models import Scope
from memory.wiring import Backend

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_WARMED_MAX = 1_024  # users remembered as warmed; who falls out is warmed once more


class BackendPerLoop:
    """Opens a backend with ``open_backend`` when a loop first asks, and closes it with ``aclose`` in the same loop.

    What a loop that has ended left open is let go when the next loop asks; what nobody closes ends with the process.
    """

    def __init__(self, open_backend: Callable[[], Awaitable[Backend]]) -> None:
        self._open = open_backend
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Task[Backend]] = {}

    async def get(self) -> Backend:
        """This loop's backend. A failure to open is raised, and the next call tries again."""
        loop = asyncio.get_running_loop()
        await self._let_go_of_ended(loop)
        task = self._opened.get(loop)
        if task is None or _failed(task):
            task = self._opened[loop] = loop.create_task(self._opening())
        # Shielded: whoever gives up waiting does not take the stores from the others who wait.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Close what this loop has opened. Idempotent; a later ``get`` opens anew."""
        task = self._opened.pop(asyncio.get_running_loop(), None)
        if task is None:
            return
        task.cancel()  # nothing to a task that is done
        await asyncio.wait((task,))
        if not _failed(task):
            await task.result().aclose()

    async def _opening(self) -> Backend:
        return await self._open()

    async def _let_go_of_ended(self, running: asyncio.AbstractEventLoop) -> None:
        ended = [loop for loop in self._opened if loop is not running and loop.is_closed()]
        for loop in ended:
            task = self._opened.pop(loop)
            if task.done() and not _failed(task):
                await _release(task.result())


def _failed(task: asyncio.Task[Backend]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _release(backend: Backend) -> None:
    """Close what can be closed from another loop: its connections can't, but locks and descriptors can."""
    while backend.closers:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await backend.aclose()


class WarmedUsers:
    """For whom recall was made ready already: each once per set of stores, which a new loop opens anew."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._users: OrderedDict[Scope, None] = OrderedDict()

    async def warm(self, backend: Backend, scope: Scope) -> None:
        """Have recall ready for a user; at once where it is."""
        if backend is not self._backend:
            self._backend = backend
            self._users.clear()
        if backend.retriever is None or scope in self._users:
            return
        await backend.retriever.warm(scope)
        self._users[scope] = None
        while len(self._users) > _WARMED_MAX:
            self._users.popitem(last=False)
