"""A server for tests on a thread and an event loop of its own, for tests that have another loop, or none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

_WAIT_S = 10


@contextlib.contextmanager
def on_a_thread(server: AbstractAsyncContextManager[object], name: str) -> Iterator[None]:
    """Enter ``server`` on a thread called ``name``, and leave it there at the end of the block."""
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name=name, daemon=True)
    thread.start()
    try:
        assert started.wait(_WAIT_S), "the server did not start"
        yield
    finally:
        stop.set()
        thread.join(_WAIT_S)
