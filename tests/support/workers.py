"""A worker as it is run: ``python -m agent start`` as a process, with its log, its jobs and its health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from numpy.typing import NDArray

from agent.local.client import SpeechClient
from agent.local.models import TALK_RATE
from memory import wiring
from memory.models import MemoryEntry, Scope
from memory.settings import load_settings

Samples = NDArray[np.int16]

START_S = 60.0
STOP_S = 30.0
STORED_S = 10.0
_POLL_S = 0.05
_BOUNDARY_S = 0.05  # how far before its end, by the talker's clock, a word may be over
_WINDOW = TALK_RATE // 100
_SETTINGS = ("MEMORY_", "AGENT_", "REDIS_", "DATABASE_", "FALKORDB_", "GRAPHITI_", "LIVEKIT_", "OPENAI_")


class WorkerProcess:
    """One run of the worker, in a session of its own: ``end`` leaves no process of it behind.

    ``log`` are its records, one JSON object each; ``raw`` is everything it printed.
    """

    def __init__(self, data_dir: Path, environment: dict[str, str], *words: str, module: str = "agent") -> None:
        self.data_dir = data_dir
        self.started_at = time.monotonic()
        self.log: list[dict[str, Any]] = []
        self.raw = ""
        self._changed = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *(words or ("start",))],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)},
                "MEMORY_HOST_IDLE_SECONDS": "1",
                "MEMORY_TURN_BUDGET_MS": "3000",  # as long as a busy machine takes
                "VOICEASSIST_DATA_DIR": str(data_dir),
                "AGENT_HEALTH_PORT": "0",
                "AGENT_HEALTH_HOST": "127.0.0.1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.raw += line
            with contextlib.suppress(ValueError):
                self.log.append(json.loads(line))

    async def logged(self, message: str, *, times: int = 1, within_s: float = START_S) -> dict[str, Any]:
        """The ``times``-th record whose message begins with ``message``; waits for it."""
        until = time.monotonic() + within_s
        while True:
            found = [record for record in self.log if str(record.get("message", "")).startswith(message)]
            if len(found) >= times:
                return found[times - 1]
            if time.monotonic() > until or (self.process.poll() is not None and not self._reader.is_alive()):
                raise AssertionError(f"the worker never logged {message!r}. It printed:\n{self.raw[-6000:]}")
            await asyncio.sleep(_POLL_S)

    async def registered(self) -> WorkerProcess:
        """Wait until LiveKit can give it calls."""
        await self.logged("registered worker")
        return self

    async def health(self, path: str = "/health") -> tuple[int, Any]:
        """What it answers: status and body."""
        port = str((await self.logged("health is answered on port"))["message"]).rpartition(" ")[2]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            body = await answer.text()
            return answer.status, json.loads(body) if "json" in answer.content_type else body

    async def voice(self, text: str) -> Samples:
        """``text`` as the local talker says it, at 24 kHz."""
        client = SpeechClient(self.data_dir)
        try:
            pieces = [np.frombuffer(speech.pcm, np.int16) async for speech in client.talk(text)]
        finally:
            await client.aclose()
        return np.concatenate(pieces)

    async def paused(self, text: str, *, pause_s: float) -> Samples:
        """``text`` said in one breath, with a pause at each "…" that stands in it."""
        parts = [part.split() for part in text.split("…")]
        starts = {sum(map(len, parts[:number])) for number in range(1, len(parts))}
        pieces: list[Samples] = []
        client, number = SpeechClient(self.data_dir), 0
        try:
            async for speech in client.talk(" ".join(text.replace("…", " ").split())):
                samples, begin, ended_s = np.frombuffer(speech.pcm, np.int16), 0, 0.0
                for word in speech.words:
                    if number in starts:
                        cut = _quietest(samples, ended_s - _BOUNDARY_S, word.start_s)
                        pieces += [samples[begin:cut], np.zeros(int(pause_s * TALK_RATE), np.int16)]
                        begin = cut
                    number, ended_s = number + 1, word.end_s
                pieces.append(samples[begin:])
        finally:
            await client.aclose()
        return np.concatenate(pieces)

    async def stored(self, user_id: str) -> list[MemoryEntry]:
        """Every turn of a user that is stored, in whichever layer, in the order of the log."""
        scope = Scope(org_id="default", agent_id="assistant", user_id=user_id)
        backend = await wiring.open_backend(load_settings(data_dir=self.data_dir))
        try:
            archive = await backend.archive()
            archived = [each.record for each in await archive.read(scope, after=0, limit=1_000)]
            position = await archive.position(scope)
            coming = [each.record for each in (await backend.sessions.read(scope, after=position, limit=500)).records]
        finally:
            await backend.aclose()
        return [each for each in [*archived, *coming] if isinstance(each, MemoryEntry)]

    async def said_by(self, user_id: str, *, turns: int) -> list[str]:
        """What is stored of what a user said and typed; waits until there are ``turns`` turns of it."""
        until = time.monotonic() + STORED_S
        while True:
            said = [entry.content for entry in await self.stored(user_id) if entry.role == "user"]
            if len(said) >= turns or time.monotonic() > until:
                return said
            await asyncio.sleep(_POLL_S)

    async def answered(self, user_id: str) -> None:
        """Wait until the last turn of a user's that is stored is the agent's."""
        async with asyncio.timeout(START_S):
            while not (stored := await self.stored(user_id)) or stored[-1].role != "assistant":
                await asyncio.sleep(_POLL_S)

    async def archived(self, user_id: str, *, turns: int) -> None:
        """Wait until ``turns`` turns of a user's have been moved out of the log."""
        scope = Scope(org_id="default", agent_id="assistant", user_id=user_id)
        backend = await wiring.open_backend(load_settings(data_dir=self.data_dir))
        try:
            archive = await backend.archive()
            async with asyncio.timeout(START_S):
                while True:
                    rows = await archive.read(scope, after=0, limit=1_000)
                    if sum(isinstance(row.record, MemoryEntry) for row in rows) >= turns:
                        return
                    await asyncio.sleep(_POLL_S)
        finally:
            await backend.aclose()

    def job_of(self, agent: str) -> int:
        """The process that holds the call of ``agent``, an identity in a room."""
        job_id = agent.removeprefix("agent-")
        return next(
            int(record["pid"])
            for record in self.log
            if record.get("job_id") == job_id and record.get("pid") not in (None, self.process.pid)
        )

    def helper(self, *words: str) -> psutil.Process:
        """The helper process of this worker's data directory whose command line has all ``words``."""
        for process in self._processes():
            line = " ".join(process.info["cmdline"] or [])
            if all(word in line for word in words):
                return process
        raise AssertionError(f"there is no process {' '.join(words)}")

    def _processes(self) -> Iterator[psutil.Process]:
        """All that run on this worker's data directory: the worker, its jobs, the helpers."""
        for process in psutil.process_iter(["cmdline", "environ"]):
            line = " ".join(process.info["cmdline"] or [])
            environment = process.info["environ"] or {}
            if str(self.data_dir) in (line + environment.get("VOICEASSIST_DATA_DIR", "")):
                yield process

    def kill(self) -> None:
        """SIGKILL of the main process alone, as if the kernel had done it."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """SIGKILL of every process on its data directory, as at the end of a container's grace."""
        until = time.monotonic() + STOP_S
        while processes := list(self._processes()):
            assert time.monotonic() < until, processes
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=_POLL_S)
        self.process.wait()

    async def stop(self, *, within_s: float = STOP_S) -> int:
        """SIGTERM; the exit code, when it has ended."""
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, within_s)

    def end(self) -> None:
        """End whatever is left of it, by force."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(2)


def _quietest(samples: Samples, after_s: float, before_s: float) -> int:
    """The sample in the middle of the quietest hundredth of a second."""
    first = max(0, int(after_s * TALK_RATE))
    energy = np.convolve(
        samples[first : int(before_s * TALK_RATE) + 1].astype(np.float64) ** 2, np.ones(_WINDOW), "same"
    )
    return first + int(np.argmin(energy))
