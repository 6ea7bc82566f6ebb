"""Lines of standard input, one at a time and only when asked for, without ever holding up the event loop.

From a terminal with a prompt and line editing, from a pipe or a file as they are. Above: chat. Below: memory.limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from memory.limits import ENTRY_CONTENT_BYTES_MAX

_CHUNK_BYTES = 65_536


class LineTooLong(ValueError):
    """A line larger than one turn may be. It was skipped; the next one can be read."""


class LineReader:
    """Reads lines on a daemon thread, which may stay blocked in its read when the program ends.

    ``read`` returns a line without its end, or ``None`` at the end of the input. One ``read`` at a time.
    """

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self._wanted: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[str | None]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    async def read(self) -> str | None:
        """The next line.

        Raises:
            LineTooLong: it exceeds ``ENTRY_CONTENT_BYTES_MAX``.
        """
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str | None] = loop.create_future()
        self._wanted.put((loop, line))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="stdin", daemon=True)
            self._thread.start()
        return await line

    def _serve(self) -> None:
        while True:
            loop, line = self._wanted.get()
            try:
                outcome: str | Exception | None = self._read()
            except Exception as error:
                outcome = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(_settle, line, outcome)


def _settle(line: asyncio.Future[str | None], outcome: str | Exception | None) -> None:
    if line.done():
        return
    if isinstance(outcome, Exception):
        line.set_exception(outcome)
    else:
        line.set_result(outcome)


class PipeLines:
    """Lines of a descriptor that is no terminal, as text; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    def __call__(self) -> str | None:
        skipping = False
        while (end := self._buffer.find(b"\n")) < 0 and not self._ended:
            if len(self._buffer) > ENTRY_CONTENT_BYTES_MAX:
                self._buffer, skipping = b"", True
            self._fill()
        line, self._buffer = (self._buffer, b"") if end < 0 else (self._buffer[:end], self._buffer[end + 1 :])
        if skipping or len(line) > ENTRY_CONTENT_BYTES_MAX:
            raise LineTooLong(f"A line longer than {ENTRY_CONTENT_BYTES_MAX} bytes was skipped; split it.")
        if not line and end < 0:
            return None
        return line.removesuffix(b"\r").decode(errors="replace")

    def _fill(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:  # closed, or a terminal that hung up
            data = b""
        self._ended = not data
        self._buffer += data


class TerminalLines:
    """Lines typed at a terminal, after a prompt, with editing and the history of this run where readline is there."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - input() uses it once it is imported

    def __call__(self) -> str | None:
        try:
            return input(self._prompt)
        except (EOFError, OSError, UnicodeDecodeError):
            return None


@contextlib.contextmanager
def terminal_restored() -> Any:
    """Leave the terminal as it was found: a thread that is still in readline can't put it back itself."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        found = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, found)


def is_terminal() -> bool:
    """Whether somebody types: both ends of the conversation are a terminal's."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False
