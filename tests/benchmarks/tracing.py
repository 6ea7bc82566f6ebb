"""What a job of the worker did and when, told to the benchmark that runs the worker.

``preload`` is imported once in the process that jobs are forked from: it wraps a few functions of the job, and each
job sends what they saw, a JSON line an event, over a socket of its own. Nothing of it is in the agent itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESS = "BENCHMARK_TRACE"  # environment: where a job tells
WAIT_S = 60.0

Event = dict[str, Any]
_CONNECTION: list[tuple[int, socket.socket]] = []


def tell(event: str, **fields: Any) -> None:
    """Tell the benchmark; ``at`` is ``time.monotonic()``, which all processes of a machine share."""
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **fields}) + "\n"
    if not _CONNECTION or _CONNECTION[0][0] != os.getpid():
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[ADDRESS])
        _CONNECTION[:] = [(os.getpid(), connection)]
    _CONNECTION[0][1].sendall(line.encode())


class Traces:
    """What jobs tell, in the order in which it arrives. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "trace"
        self.events: list[Event] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)

    def __enter__(self) -> Traces:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile() as lines:
            for line in lines:
                self.events.append(json.loads(line))

    def of(self, event: str, where: Callable[[Event], bool] = lambda _: True) -> list[Event]:
        return [each for each in list(self.events) if each["event"] == event and where(each)]

    async def until(self, event: str, where: Callable[[Event], bool] = lambda _: True, *, times: int = 1) -> Event:
        """The ``times``-th such event; waits for it."""
        async with asyncio.timeout(WAIT_S):
            while len(found := self.of(event, where)) < times:
                await asyncio.sleep(0.01)
        return found[times - 1]
