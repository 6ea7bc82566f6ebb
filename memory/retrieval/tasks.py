"""Tasks and threads that end when they are told to, and not before. Above: whatever here runs something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

_END_S = 1.0
_ENDS_MAX = 10

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def to_the_end(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run ``function`` in a thread.

    A cancelled caller waits for the thread's end first: what a lock guards must not change once the lock is released.
    """
    job = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait((job,))
        raise


async def end_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks and wait until they have ended, whatever they end with; ``None`` is passed over.

    Told once is not enough: ``asyncio.wait_for``, which the Redis driver uses, drops a cancellation that comes at the
    moment its work is done (Python 3.11), and a loop that waits for Redis would then go on for good.
    """
    waiting = {task for task in tasks if task is not None}
    for _ in range(_ENDS_MAX):
        for task in waiting:
            task.cancel()
        ended, waiting = await asyncio.wait(waiting, timeout=_END_S) if waiting else (set(), set())
        for task in ended:
            if not task.cancelled():
                task.exception()  # looked at: asyncio would print it otherwise
        if not waiting:
            return
    logger.error("%d tasks of recall do not end; they are left behind.", len(waiting))


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Await ``work`` for so long, and end it then.

    Raises:
        TimeoutError: it was not done by then.
        Exception: whatever it raises.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            raise TimeoutError
        task.result()
    finally:
        await end_all((task,))
