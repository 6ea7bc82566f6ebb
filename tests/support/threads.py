"""A server on a thread and an event loop of its own, for tests of another loop, or none; calls held in theirs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

_WAIT_S = 10
_HELD_S = 30


def held(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> tuple[threading.Event, threading.Event]:
    """Calls of a method tell the first event that they have begun, and wait in their thread for the second."""
    begun, goes_on = threading.Event(), threading.Event()
    real = getattr(kind, method)

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        goes_on.wait(_HELD_S)
        return real(*args, **options)

    monkeypatch.setattr(kind, method, slow)
    return begun, goes_on


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
