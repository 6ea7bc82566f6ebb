"""``python -m tests.benchmarks torture --kills N --seed S``: is anything lost, said twice or out of order?

Callers talk, each in a process of its own, while their processes, the ingestion worker, the recall host, the embedded
Redis+FalkorDB and PostgreSQL are SIGKILLed at random moments; whatever manages processes elsewhere (here: this) starts
callers, worker and PostgreSQL anew. In the end every turn that was durable is looked for in every layer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.benchmarks.torture_check import SESSION_NUMBERS, Found, look_everywhere
from tests.support import postgres
from tests.support.graph_llm import serving

_CALLERS = 2
_NUMBERS_EACH = 10_000_000  # turn numbers of one caller: no two callers share one
_GAP_S = (0.2, 1.6)  # between kills
_START_S = 120.0
_SETTLE_S = 300.0  # for everything to be ingested in the end
_STOP_S = 30.0
_KINDS = {"caller": 5, "worker": 5, "host": 3, "redis": 4, "postgres": 3}


@dataclass
class Slot:
    """One caller at a time: a user of their own, a session for each process, turn numbers that only grow."""

    number: int
    durable: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    sessions: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def user(self) -> str:
        return f"caller-{self.number}"

    def next_number(self) -> int:
        # Behind whatever the one before may have said: what it said last was perhaps not durable.
        return self.number * _NUMBERS_EACH + self.sessions * SESSION_NUMBERS


class Torture:
    def __init__(self, directory: Path, environment: dict[str, str], database: postgres.Postgres, seed: int) -> None:
        self._directory, self._environment, self._database = directory, environment, database
        self._random = random.Random(seed)
        self._slots = [Slot(number) for number in range(1, _CALLERS + 1)]
        self._worker: asyncio.subprocess.Process | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._starting_database = asyncio.Lock()
        self.kills: Counter[str] = Counter()

    async def run(self, kills: int) -> Found:
        """Kill ``kills`` times, let everything settle, look.

        Raises:
            TimeoutError: it did not start, or did not settle; the processes' output is in the directory.
        """
        self._keepers = [asyncio.create_task(self._keep_calling(slot)) for slot in self._slots]
        self._keepers.append(asyncio.create_task(self._keep_ingesting()))
        try:
            async with asyncio.timeout(_START_S):
                while not all(slot.durable for slot in self._slots):
                    await self._breathe(0.1)
            for kind in self._plan(kills):
                async with asyncio.timeout(_START_S):
                    while not await self._kill(kind):
                        await self._breathe(0.1)  # it is not there: somebody is starting it
            await self._stop_callers()
            said = {slot.user: (tuple(slot.durable), tuple(slot.late)) for slot in self._slots}
            async with asyncio.timeout(_SETTLE_S):
                return await look_everywhere(self._environment, said)
        finally:
            await self._end()

    def _plan(self, kills: int) -> list[str]:
        """Every kind at least once, if there are as many; the rest as the weights say."""
        kinds = list(_KINDS)
        rest = self._random.choices(kinds, list(_KINDS.values()), k=max(0, kills - len(kinds)))
        plan = [*kinds[:kills], *rest]
        self._random.shuffle(plan)
        return plan

    async def _breathe(self, seconds: float) -> None:
        """Wait, unless one of those that keep processes running has failed."""
        done, _ = await asyncio.wait(self._keepers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if not self._over.is_set():
                task.result()

    # -- what runs

    async def _keep_calling(self, slot: Slot) -> None:
        while not self._over.is_set():
            first = slot.next_number()
            slot.sessions += 1
            session = f"RM_{slot.number}_{slot.sessions}"
            module = ("tests.benchmarks.torture_caller", slot.user, session, str(first))
            slot.process = await self._start(f"caller-{slot.number}", *module)
            assert slot.process.stdout is not None
            async for line in slot.process.stdout:
                number, _, late = line.decode().strip().partition(" ")
                (slot.late if late else slot.durable).append(int(number))
            _expect_killed(f"caller-{slot.number}", await slot.process.wait())

    async def _keep_ingesting(self) -> None:
        while not self._over.is_set():
            self._worker = await self._start("worker", "agent", "ingest")
            _expect_killed("worker", await self._worker.wait())

    async def _start(self, name: str, module: str, *words: str) -> asyncio.subprocess.Process:
        with (self._directory / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *words, env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=log
            )

    # -- kills

    async def _kill(self, kind: str) -> bool:
        """After a moment, SIGKILL one of a kind; False where none is running."""
        await self._breathe(self._random.uniform(*_GAP_S))
        kill: dict[str, Callable[[], Awaitable[bool]]] = {
            "caller": self._kill_caller,
            "worker": self._kill_worker,
            "host": self._kill_host,
            "redis": self._kill_redis,
            "postgres": self._kill_postgres,
        }
        if done := await kill[kind]():
            self.kills[kind] += 1
        return done

    async def _kill_caller(self) -> bool:
        slot = self._random.choice([slot for slot in self._slots if slot.process is not None])
        return _killed([slot.process.pid] if slot.process and slot.process.returncode is None else [])

    async def _kill_worker(self) -> bool:
        return _killed([self._worker.pid] if self._worker and self._worker.returncode is None else [])

    async def _kill_host(self) -> bool:
        return _killed(await asyncio.to_thread(_processes, self._mine, "-m memory host"))

    async def _kill_redis(self) -> bool:
        return _killed(await asyncio.to_thread(_processes, self._mine, "bin/redis-server"))

    async def _kill_postgres(self) -> bool:
        async with self._starting_database:
            await asyncio.to_thread(self._database.kill)
            await asyncio.to_thread(self._database.start)
        return True

    def _mine(self, process: psutil.Process) -> bool:
        directory = self._environment["VOICEASSIST_DATA_DIR"]
        # The server writes its title over its environment; its socket is in the title.
        return process.environ().get("VOICEASSIST_DATA_DIR") == directory or directory in " ".join(process.cmdline())

    # -- the end

    async def _stop_callers(self) -> None:
        self._over.set()
        for slot in self._slots:
            if slot.process is not None and slot.process.returncode is None:
                slot.process.terminate()
        await asyncio.wait_for(asyncio.gather(*self._keepers[:-1]), _STOP_S)
        if self._worker is None or self._worker.returncode is not None:
            self._over.clear()
            self._keepers[-1] = asyncio.create_task(self._keep_ingesting())

    async def _end(self) -> None:
        self._over.set()
        running = [slot.process for slot in self._slots if slot.process is not None]
        for process in (*running, *([self._worker] if self._worker else [])):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.gather(*self._keepers, return_exceptions=True), _STOP_S)
        except TimeoutError:
            for process in (*running, *([self._worker] if self._worker else [])):
                if process.returncode is None:
                    process.kill()
        for pid in await asyncio.to_thread(_processes, self._mine, ""):
            _killed([pid])


def _expect_killed(name: str, status: int) -> None:
    if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
        raise RuntimeError(f"{name} ended by itself ({status}); see its log in the directory")


def _processes(mine: Callable[[psutil.Process], bool], words: str) -> list[int]:
    """Processes of the data directory under test whose command line has ``words`` in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and mine(process) and words in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _killed(pids: Sequence[int]) -> bool:
    done = False
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            done = True
        except ProcessLookupError:
            continue
    return done


async def torture(*, kills: int, seed: int) -> tuple[Found, Counter[str]]:
    """Run it on fresh servers; returns what was found and how often each kind was killed.

    Raises:
        RuntimeError: there is no PostgreSQL on this machine.
    """
    if (binaries := postgres.binaries()) is None:
        raise RuntimeError("PostgreSQL is not installed: apt install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="vmt-"))
    async with AsyncExitStack() as stack:
        database = stack.enter_context(postgres.running(binaries))
        llm = stack.enter_context(serving())
        environment = {
            **os.environ,
            "VOICEASSIST_DATA_DIR": str(directory / "data"),
            "DATABASE_URL": database.url(),
            "OPENAI_BASE_URL": llm.url,
            "OPENAI_API_KEY": "none-needed",
            "GRAPHITI_EMBEDDING_MODEL": "test-embedding",
            "MEMORY_EMBEDDER": "none",
            "MEMORY_IDLE_SECONDS": "2",
            "MEMORY_CHUNK_TOKENS": "200",
            "MEMORY_HOST_IDLE_SECONDS": "5",
            "AGENT_HEALTH_PORT": "0",
            "AGENT_INGEST_HEALTH_PORT": "0",
        }
        run = Torture(directory, environment, database, seed)
        found = await run.run(kills)
    if found.ok:
        shutil.rmtree(directory, ignore_errors=True)
    return found, run.kills


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    found, kills = asyncio.run(torture(kills=given.kills, seed=given.seed))
    for name, value in found.figures().items():
        layers = {layer: count for layer, count in getattr(found, name).items() if count}
        line = {"figure": f"torture_{name}", "value": value, "goal": "<= 0", "ok": value == 0, **layers}
        sys.stdout.write(json.dumps(line) + "\n")
    summary = {"figure": "torture_turns", "value": found.turns, "detail": f"kills {dict(kills)}, seed {given.seed}"}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0 if found.ok else 1
