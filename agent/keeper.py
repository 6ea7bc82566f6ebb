"""Keeps running what calls on this machine need: the embedded server, the recall host, the speech host.

The worker's main process owns it, so that no call has to start a process, and none of them ends between two calls.
Above: worker, health. Below: memory.wiring, agent.local.client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.settings import Configuration
from memory import wiring
from memory.errors import HostUnavailable, NoGraphServer, StoreUnavailable, VoiceMemoryError
from memory.hosting import HostUse
from memory.limits import HOST_START_S, LOG_FULL_SHARE, SPOOL_TOTAL_BYTES_MAX
from memory.models import Scope

logger = logging.getLogger("agent")

READY_S_MAX = HOST_START_S + 5.0  # then the worker registers all the same; calls go on without what is missing
WATCH_S, WATCH_S_MAX = 2.0, 30.0
CHECK_S = 1.0
BACKLOG_S_MAX = 60.0  # how long turns may wait in the log before that counts as the archive's trouble
_CLOSE_S = 3.0

_BACKLOG = ("pending_users", "oldest_age_s")
_NOBODY = Scope(org_id="worker", agent_id="worker", user_id="worker")

Ensure = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class State:
    """Whether a part works. ``status``: healthy, skipped (this configuration has none), unhealthy. ``details``:
    figures of it, by name."""

    status: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


class Keeper:
    """Starts the helper processes, watches them, and says how they are. Belongs to one event loop."""

    def __init__(self, configuration: Configuration) -> None:
        self._agent, self._memory = configuration.agent, configuration.memory
        self._backend: wiring.Backend | None = None
        self._recall: HostUse | None = None
        self._speech: Any = None
        self._graph: Callable[[], Awaitable[str]] | None = None
        self._graph_closers: list[Callable[[], Awaitable[None]]] = []
        self._placing = asyncio.Lock()
        self._problems: dict[str, str] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start everything and wait until it is there, ``READY_S_MAX`` at most.

        Raises:
            VoiceMemoryError: something can never run as things are, such as a data directory that can't be written,
                a missing package; the message says what to do. What is away for now is no error.
        """
        parts = self._parts()
        starting = {name: asyncio.create_task(self._ensured(name, ensure)) for name, ensure in parts.items()}
        try:
            done, late = await asyncio.wait(starting.values(), timeout=READY_S_MAX) if starting else (set(), set())
            for task in done:
                task.result()
            for name, task in starting.items():
                if task in late:
                    self._told(name, f"not ready within {READY_S_MAX:g} s")
        finally:
            for task in starting.values():
                task.cancel()
            await asyncio.gather(*starting.values(), return_exceptions=True)
        self._watching = [
            asyncio.create_task(self._watch(name, ensure), name="agent.keeper") for name, ensure in parts.items()
        ]

    def _parts(self) -> dict[str, Ensure]:
        parts: dict[str, Ensure] = {}
        if self._memory.enabled:
            parts["redis"] = self._store
            parts["recall"] = self._recall_host
        if self._agent.speaks_locally:
            parts["speech"] = self._speech_host
        return parts

    async def _ensured(self, name: str, ensure: Ensure) -> None:
        try:
            await ensure()
        except (StoreUnavailable, HostUnavailable, OSError, TimeoutError) as error:
            self._told(name, str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__)
        else:
            if self._problems.pop(name, None) is not None:
                logger.info("%s is back", name)

    def _told(self, name: str, problem: str) -> None:
        if name not in self._problems:
            logger.warning("%s is away, calls go on without it: %s", name, problem)
        self._problems[name] = problem

    async def _watch(self, name: str, ensure: Ensure) -> None:
        pause_s = WATCH_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._ensured(name, ensure)
            except Exception as error:  # broken while it ran, such as by an upgrade
                self._told(name, str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__)
            # What can't be had now is not started over and over: each start is a process.
            pause_s = min(2 * pause_s, WATCH_S_MAX) if name in self._problems else WATCH_S

    async def _store(self) -> None:
        if self._backend is None:
            self._backend = await wiring.open_backend(self._memory)
        await self._backend.sessions.find("worker")

    async def _recall_host(self) -> None:
        if self._recall is None:
            self._recall = await asyncio.to_thread(HostUse, wiring.recall_host(self._memory))
        await self._recall.ensure()

    async def _speech_host(self) -> None:
        from agent.local.client import SpeechClient

        if self._speech is None:
            self._speech = SpeechClient(self._memory.data_dir)
        await self._speech.ensure()

    async def states(self) -> dict[str, State]:
        """How each part is now; answers within ``CHECK_S``."""
        speech = {"speech": self._speech_state()} if self._agent.speaks_locally else {}
        if not self._memory.enabled:
            off = State("skipped", "MEMORY_ENABLED is off")
            return {"redis": off, "recall": off, "archive": off, "spool": off, "graphiti": off, **speech}
        redis, recall, archive, spool, graphiti = await asyncio.gather(
            self._redis_state(), self._recall_state(), self._archive_state(), self._spool_state(), self._graph_state()
        )
        return {"redis": redis, "recall": recall, "archive": archive, "spool": spool, "graphiti": graphiti, **speech}

    def _speech_state(self) -> State:
        if problem := self._problems.get("speech"):
            return State("unhealthy", problem)
        return State("healthy", "the local listener and talker are there")

    async def _redis_state(self) -> State:
        where = "the embedded server" if wiring.redis_url(self._memory) is None else "Redis"
        if self._backend is None:
            return State("unhealthy", self._problems.get("redis", "not opened yet"))
        sessions = self._backend.sessions

        async def asked() -> State:
            await sessions.find("health")
            faults = await sessions.durability()
            filled = await sessions.filled()
            details = {"durability": faults, **filled}
            if filled.get("used_bytes", 0) >= LOG_FULL_SHARE * (filled.get("max_bytes") or math.inf):
                full = f"{where} is full (maxmemory): turns wait on disk until the archive has taken what is in the log"
                return State("unhealthy", f"{full}. If the archive is there, raise maxmemory.", details)
            told = f"{where} answers, but may lose turns" if faults else f"{where} answers"
            return State("healthy", told, details)

        return await _checked(asked())

    async def _recall_state(self) -> State:
        if self._backend is None or self._backend.retriever is None:
            return State("unhealthy", self._problems.get("recall", "not opened yet"))
        retriever = self._backend.retriever

        async def asked() -> State:
            await retriever.recall(_NOBODY, "health", limit=1, budget_ms=CHECK_S * 900)
            return State("healthy", "the recall host answers")

        return await _checked(asked())

    async def _archive_state(self) -> State:
        """How far the archive is behind the log, as the recall host, which moves it, says."""
        if self._backend is None or self._backend.stats is None:
            return State("unhealthy", self._problems.get("recall", "not opened yet"))
        ask = self._backend.stats

        async def asked() -> State:
            stats = await ask()
            figures = {name: stats[name] for name in _BACKLOG if name in stats}
            if problem := stats.get("archive_problem"):
                return State("unhealthy", str(problem), figures)
            if float(figures.get("oldest_age_s", 0.0)) > BACKLOG_S_MAX:
                return State("unhealthy", f"turns have waited in the log for more than {BACKLOG_S_MAX:g} s", figures)
            return State("healthy", "turns are moved from the log into the archive", figures)

        return await _checked(asked())

    async def _spool_state(self) -> State:
        spool = wiring.open_spool(self._memory)

        async def asked() -> State:
            files, size = await asyncio.to_thread(lambda: (len(spool.files()), spool.size()))
            if size >= SPOOL_TOTAL_BYTES_MAX:
                full = "the spool is full: turns wait in their calls' memory alone until the store is back"
                return State("unhealthy", full, {"files": files, "bytes": size})
            told = "turns wait on disk for the store" if files else "nothing waits on disk"
            return State("healthy", told, {"files": files, "bytes": size})

        return await _checked(asked())

    async def _graph_state(self) -> State:
        """Whether FalkorDB is there. Calls don't ask it: their facts come from the archive."""
        from memory.wiring_ingestion import checker, graph_place, skipped

        if reason := skipped(self._memory):
            return State("skipped", reason)

        async def asked() -> State:
            async with self._placing:
                if self._graph is None:
                    try:
                        self._graph = checker(await graph_place(self._memory, self._graph_closers))
                    except BaseException:
                        await self._close_graph()
                        raise
            try:
                return State("healthy", await self._graph())
            except NoGraphServer as error:
                return State("skipped", str(error))

        return await _checked(asked())

    async def aclose(self) -> None:
        """Let go of everything; what nobody else uses ends. Idempotent."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self._recall is not None:
            self._recall.release()
        await self._close_graph()
        for part in (self._speech, self._backend):
            if part is not None:
                await _closed(part.aclose)

    async def _close_graph(self) -> None:
        while self._graph_closers:
            await _closed(self._graph_closers.pop())


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_S):
            await close()


async def _checked(question: Awaitable[State]) -> State:
    try:
        async with asyncio.timeout(CHECK_S):
            return await question
    except VoiceMemoryError as error:
        return State("unhealthy", str(error))
    except TimeoutError:
        return State("unhealthy", f"no answer within {CHECK_S:g} s")
    except OSError as error:
        return State("unhealthy", error.strerror or type(error).__name__)
    except Exception as error:  # whoever watches /health must not end, for that, a worker whose calls go on
        return State("unhealthy", type(error).__name__)
