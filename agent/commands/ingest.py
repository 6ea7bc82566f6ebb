"""``python -m agent ingest``: an ingestion worker, and its /health.

Any number of them run on any number of machines, beside calls or away from them. Above: cli, commands.worker (``dev``
runs one). Below: memory.wiring_ingestion, health.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

from agent.commands.process import end_later, log_as_service
from agent.health import HealthServer
from agent.keeper import State
from agent.settings import Configuration, load
from memory.errors import HostUnavailable, SettingsError, StoreFault, StoreUnavailable
from memory.extras import install

if TYPE_CHECKING:
    from memory.wiring_ingestion import Ingestion

logger = logging.getLogger("agent")

RETRY_S = 2.0  # between attempts to open a store that is away
NICE = 10  # calls on this machine come first
_PARENT_POLL_S = 1.0
_END_S_MAX = 9.5  # from the signal to the end of the process, whatever hangs


def run(arguments: argparse.Namespace) -> int:
    """Work until told to stop.

    Raises:
        SettingsError, StoreFault, DataDirectoryUnusable, …: with what to do. What is away for now is waited for.
    """
    configuration = load()
    if not configuration.memory.enabled:
        raise SettingsError(["MEMORY_ENABLED: is off, so there is nothing to ingest"])
    if not installed():
        raise StoreFault(f"Ingestion needs a task engine: {install('ingest')}.")
    log_as_service()
    with contextlib.suppress(OSError):
        os.nice(NICE)
    asyncio.run(IngestProcess(configuration).run(parent=arguments.parent))
    return 0


def installed() -> bool:
    """Whether this installation can ingest."""
    return find_spec("docket") is not None


class IngestProcess:
    """The worker's process: health first, then the stores, then work."""

    def __init__(self, configuration: Configuration) -> None:
        self._agent, self._memory = configuration.agent, configuration.memory
        self._ingestion: Ingestion | None = None
        self._problem = "not opened yet"
        self._stop = asyncio.Event()

    async def run(self, *, parent: int | None) -> None:
        self._heed_signals()
        watching = asyncio.create_task(self._end_with(parent)) if parent else None
        async with contextlib.AsyncExitStack() as parts:
            await self._serve_health(parts)
            self._ingestion = await self._opened()
            if self._ingestion is not None:
                parts.push_async_callback(self._ingestion.aclose)
                await self._ingestion.run(self._stop)
        if watching is not None:
            watching.cancel()
        logger.info("The ingestion worker has ended; what it left is in the stores, for the next one.")

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            if self._stop.is_set():
                os._exit(128 + number)
            logger.info("Told to stop: what is under way comes to an end, or is given back.")
            end_later(0, after_s=_END_S_MAX)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)

    async def _end_with(self, parent: int) -> None:
        while os.getppid() == parent:  # noqa: ASYNC110 - the end of a parent is no event
            await asyncio.sleep(_PARENT_POLL_S)
        self._stop.set()

    async def _opened(self) -> Ingestion | None:
        """The opened worker; ``None``: told to stop before the stores came."""
        from memory.wiring_ingestion import describe, open_ingestion

        for line in describe(self._memory):
            logger.info("%s", line)
        while not self._stop.is_set():
            try:
                return await open_ingestion(self._memory)
            except (StoreUnavailable, HostUnavailable) as error:
                if str(error) != self._problem:
                    logger.warning("Waiting for a store: %s", error)
                self._problem = str(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), RETRY_S)
        return None

    async def _serve_health(self, parts: contextlib.AsyncExitStack) -> None:
        agent = self._agent
        health = HealthServer(agent.health_host, agent.ingest_health_port, states=self._states, status=self._status)
        parts.push_async_callback(health.aclose)
        try:
            await health.start()
        except OSError as error:
            reason = error.strerror or "it can't be used"
            raise SettingsError([f"AGENT_INGEST_HEALTH_PORT: {reason}; choose another port, 0 for any"]) from None
        logger.info("health is answered on port %d", health.port)

    def _status(self) -> str:
        if self._stop.is_set():
            return "draining"
        return "" if self._ingestion is not None else "starting"

    async def _states(self) -> dict[str, State]:
        if self._ingestion is None:
            return {"redis": State("unhealthy", self._problem)}
        parts = await self._ingestion.parts()
        return {name: State(part.status, part.message, part.details) for name, part in parts.items()}
