"""What a command prints: lines for people or one JSON object a line, from a thread of its own.

A reader that is slow or paused must not hold up a call, and one that went away must end it quietly.
Above: commands. Below: memory.models (cleaning of text for terminals).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from memory.models import clean_text

CLOSE_S = 1.0


class Output:
    """Standard output. ``text`` and ``line`` are for people, ``event`` is for scripts; none of them ever waits.

    Order is kept. When the reader is gone, or the file it goes to is full, ``failure`` says so, what is printed is
    dropped, and ``on_broken`` is called once, on the loop that ``watch`` was called from.
    """

    def __init__(self, descriptor: int | None = None, *, encoding: str = "utf-8") -> None:
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._encoding = encoding
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._notify: Callable[[], None] = lambda: None
        self.failure: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    def watch(self, on_broken: Callable[[], None]) -> None:
        """Call ``on_broken`` on this loop if the reader goes away."""
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(on_broken)

        self._notify = notify

    def text(self, text: str) -> None:
        """Print ``text`` as it is, without what a terminal would obey."""
        self._queue.put(clean_text(text).encode(self._encoding, errors="replace"))

    def line(self, text: str = "") -> None:
        self.text(text + "\n")

    def event(self, event: str, **fields: Any) -> None:
        """Print one JSON object: ``event`` first, then ``fields``."""
        line = json.dumps({"event": event, **fields}, ensure_ascii=False, default=str)
        self._queue.put((line + "\n").encode("utf-8", errors="replace"))

    async def drained(self) -> None:
        """Return once everything printed so far has been handed over, or can't be."""
        written = threading.Event()
        self._queue.put(written)
        while not written.is_set():  # noqa: ASYNC110 - set by a thread, which may end with the reader
            await asyncio.sleep(0.005)

    def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Hand over what is left, for at most ``timeout_s``."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self.failure is None:
                self._write(item)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self.failure = error
            self._notify()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """``rows`` with their columns in line; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def milliseconds(value: float | None) -> str:
    """A time for people: ``7.3 ms``, ``430 ms``, ``-`` where it isn't known."""
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
