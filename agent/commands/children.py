"""Child processes of ``agent demo``: this program's own commands, run for real and listened to.

Above: demo. Below: nothing of the project.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

LINE_BYTES_MAX = 4_194_304  # one turn, its memory block, and JSON's escapes
STDERR_BYTES_MAX = 4_000
END_S_MAX = 15.0

Event = Mapping[str, Any]


class ChildFailed(Exception):
    """The child ended or fell silent before what was waited for. ``str`` says which, with what it printed last."""


class Child:
    """``python -m agent <words> --json`` in a process of its own. ``aclose`` kills it if it still runs."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name
        self._stderr = asyncio.create_task(self._collect())
        self._printed = b""
        self.started_at = time.time()
        self.events: list[Event] = []

    @classmethod
    async def start(cls, *words: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "agent", *words, "--json"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        return cls(process, words[0])

    @property
    def pid(self) -> int:
        return self._process.pid

    async def until(self, name: str, timeout_s: float, **wanted: Any) -> Event:
        """The next event called ``name`` whose fields are ``wanted``; events before it are kept in ``events``.

        Raises:
            ChildFailed: the child ended, told an error, or was silent about it for ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    event = await self._next()
                    if event["event"] == "error":
                        raise ChildFailed(f"The {self._name} process could not go on: {event['message']}")
                    if event["event"] == name and all(event.get(key) == value for key, value in wanted.items()):
                        return event
        except TimeoutError:
            raise ChildFailed(self._reason(f"did not come to '{name}' within {timeout_s:g} s")) from None

    async def _next(self) -> Event:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            await asyncio.wait({self._stderr}, timeout=1.0)
            raise ChildFailed(self._reason(f"ended early, with code {code}"))
        event: Event = json.loads(line)
        self.events.append(event)
        return event

    def find(self, name: str) -> Event | None:
        """The newest event called ``name`` so far."""
        return next((event for event in reversed(self.events) if event["event"] == name), None)

    async def write(self, lines: Sequence[str]) -> None:
        """Type ``lines`` and end the input."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
        self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL, now: no handler, no cleaning up, nothing flushed."""
        self._process.send_signal(signal.SIGKILL)

    async def ended(self, timeout_s: float = END_S_MAX) -> int:
        """Wait for the end; the exit code (negative: the signal that ended it).

        Raises:
            ChildFailed: it did not end within ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            raise ChildFailed(self._reason(f"did not end within {timeout_s:g} s")) from None

    async def aclose(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._stderr.cancel()
        await asyncio.gather(self._stderr, return_exceptions=True)

    async def _collect(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._printed = (self._printed + data)[-STDERR_BYTES_MAX:]

    def _reason(self, what: str) -> str:
        printed = self._printed.decode(errors="replace").strip() or "(nothing)"
        return f"The {self._name} process (pid {self.pid}) {what}. It printed:\n{printed}"
