"""The speech host: one process per data directory that has the speech models loaded and serves them on a unix socket.

A call's process holds no model; it asks here through ``client``. Listening and talking run on threads of their own,
so that neither waits for the other; each has a bounded queue, and what is past its deadline is not begun.
Above: ``python -m agent speech-host``, client (which starts it). Below: models, wire, memory.hosting.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from agent.local import wire
from agent.local.models import LocalSpeechUnavailable, Speech, SpeechToText, TextToSpeech, Transcript
from memory.datadir import _resolve_data_dir, prepare
from memory.errors import VoiceMemoryError
from memory.hosting import HostRole, HostSpec, serving
from memory.limits import HOST_IDLE_S, ONE_THREAD

QUEUE_MAX = 32  # requests of one kind that wait for a thread
TIMEOUT_S_MAX = 120.0

T = TypeVar("T")


class Listener(Protocol):
    """Speech to text, blocking; called from several threads at once."""

    def transcribe(self, audio: NDArray[np.float32]) -> Transcript: ...


class Talker(Protocol):
    """Text to speech, blocking; called from one thread."""

    def pieces(self, text: str) -> list[str]: ...

    def speak(self, piece: str) -> Speech: ...


class Refused(Exception):
    """The request can't be served; ``reason`` goes to the client: ``busy``, ``late``, ``bad`` or ``failed``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Lane:
    """Threads for one kind of work, and a bounded queue before them. ``kept`` threads are for work that isn't optional:
    somebody waits for it."""

    def __init__(self, name: str, *, threads: int, kept: int = 0, queue_max: int = QUEUE_MAX) -> None:
        self._threads = threads
        self._optional_max = threads - kept
        self._queue_max = queue_max
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._taken = 0
        self.done = 0
        self.refused = 0

    async def run(self, work: Callable[[], T], *, timeout_s: float, optional: bool = False) -> T:
        """Run ``work`` on a thread. ``optional`` work is refused unless a thread is free and not kept.

        Cancelling takes it out of the queue; work that has begun runs to its end, unheard.

        Raises:
            Refused: the queue is full, or ``timeout_s`` passed before it began.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._taken >= (self._optional_max if optional else self._threads + self._queue_max):
            self.refused += 1
            raise Refused("busy")

        def begin() -> T:
            if time.monotonic() >= deadline_s:
                raise Refused("late")
            return work()

        loop = asyncio.get_running_loop()
        self._taken += 1
        pending = self._executor.submit(begin)
        pending.add_done_callback(lambda _: self._release_on(loop))
        result = await asyncio.wrap_future(pending)
        self.done += 1
        return result

    def _release_on(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
            loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._taken -= 1

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class SpeechServer:
    """Serves connections. Requests of one connection are answered one after the other."""

    def __init__(self, listener: Listener, talker: Talker, *, listen_threads: int = 1, kept: int = 0) -> None:
        """``kept`` of the ``listen_threads`` are for final transcripts: none waits for another one's interim."""
        self._listener = listener
        self._talker = talker
        self._listening = Lane("listen", threads=listen_threads, kept=kept)
        self._talking = Lane("talk", threads=1)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it closes the connection."""
        while True:
            request = await wire.read(reader)
            try:
                await self._answer(request, reader, writer)
            except Refused as refused:
                await wire.write(writer, wire.Message({"error": refused.reason}))
            except (OSError, asyncio.IncompleteReadError):
                raise
            except Exception as error:
                # One request that the models choke on must not end the host.
                print(f"A request failed: {type(error).__name__}", file=sys.stderr, flush=True)  # noqa: T201
                await wire.write(writer, wire.Message({"error": "failed"}))

    async def _answer(self, request: wire.Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        timeout_s = _timeout(request.header)
        match request.header.get("op"):
            case "listen":
                transcript = await _unless_gone(reader, self._listen(request, timeout_s))
                header = {"text": transcript.text, "confidence": transcript.confidence}
                await wire.write(writer, wire.Message(header))
            case "talk":
                for piece in await _unless_gone(reader, self._pieces(request, timeout_s)):
                    speech = await _unless_gone(reader, self._speak(piece, timeout_s))
                    await wire.write(writer, wire.Message({"more": True, "words": speech.words}, speech.pcm))
                await wire.write(writer, wire.Message({}))
            case "state":
                await wire.write(writer, wire.Message(self.state()))
            case _:
                raise Refused("bad")

    async def _listen(self, request: wire.Message, timeout_s: float) -> Transcript:
        if len(request.body) % 2:
            raise Refused("bad")
        audio = np.frombuffer(request.body, "<i2").astype(np.float32) / np.float32(32768)
        optional = request.header.get("optional") is True
        return await self._listening.run(
            lambda: self._listener.transcribe(audio), timeout_s=timeout_s, optional=optional
        )

    async def _pieces(self, request: wire.Message, timeout_s: float) -> list[str]:
        text = request.header.get("text")
        if not isinstance(text, str):
            raise Refused("bad")
        return await self._talking.run(lambda: self._talker.pieces(text), timeout_s=timeout_s)

    async def _speak(self, piece: str, timeout_s: float) -> Speech:
        return await self._talking.run(lambda: self._talker.speak(piece), timeout_s=timeout_s)

    def state(self) -> dict[str, int]:
        """What this host has done: counts only."""
        return {
            "pid": os.getpid(),
            "listened": self._listening.done,
            "talked": self._talking.done,
            "refused": self._listening.refused + self._talking.refused,
        }

    def close(self) -> None:
        self._listening.close()
        self._talking.close()


def _timeout(header: dict[str, Any]) -> float:
    value = header.get("timeout_s", TIMEOUT_S_MAX)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= TIMEOUT_S_MAX:
        raise Refused("bad")
    return float(value)


async def _unless_gone(reader: asyncio.StreamReader, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client goes away: it sends nothing before its answer."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionResetError("The client went away.")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def spec(data_dir: Path, *, idle_s: float | None = None) -> HostSpec:
    """How the host of ``data_dir`` is found and started. ``idle_s``: see ``main``."""
    words = () if idle_s is None else ("--idle-s", f"{idle_s:g}")
    return HostSpec.module("speech", data_dir, "agent.local.speech_host", *words, env=ONE_THREAD)


def run(data_dir: Path, *, idle_s: float = HOST_IDLE_S) -> int:
    """Serve until nobody uses the host any more; returns the exit code (0 too if another host serves already)."""
    try:
        role = HostRole(spec(prepare(data_dir)), idle_s=idle_s)
        if not role.try_take():
            return 0
        try:
            server = _load()
            asyncio.run(_serve(role, server))
        finally:
            role.release()
    except (LocalSpeechUnavailable, VoiceMemoryError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - whoever started this host quotes what it printed
        return 1
    return 0


def _load() -> SpeechServer:
    threads = 1 + max(1, min(4, (os.cpu_count() or 1) // 2))
    listener, talker = SpeechToText(workers=threads), TextToSpeech()
    listener.warm_up()
    talker.warm_up()
    # What is loaded now stays: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # glibc only: loading leaves 45 MB of holes behind
        ctypes.CDLL(None).malloc_trim(0)
    return SpeechServer(listener, talker, listen_threads=threads, kept=1)


async def _serve(role: HostRole, server: SpeechServer) -> None:
    unused = asyncio.create_task(role.unused())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, unused.cancel)
    async with serving(role.spec, server.connection):
        with contextlib.suppress(asyncio.CancelledError):
            await unused
    server.close()


def main(arguments: list[str] | None = None) -> int:
    """``python -m agent.local.speech_host``; the data directory comes from ``VOICEASSIST_DATA_DIR``."""
    parser = argparse.ArgumentParser(prog="speech-host", description="Serve the local speech models.")
    idle_s = os.environ.get("MEMORY_HOST_IDLE_SECONDS") or HOST_IDLE_S
    parser.add_argument("--idle-s", type=float, default=idle_s, help="end when unused for this long")
    return run(_resolve_data_dir(), idle_s=parser.parse_args(arguments).idle_s)


if __name__ == "__main__":
    sys.exit(main())
