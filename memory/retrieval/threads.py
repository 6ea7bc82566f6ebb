"""Work in threads that ends before its caller does, even a cancelled one. Above: following, snapshot_files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
