"""The LiveKit worker: takes calls, as many as it may, each in a process of its own, and looks after what they need.

The main process holds no call. Before it registers it starts the helper processes (``keeper``); while it runs it
answers /health, and has calls gone on with whose job has died (``rescue``). Above: serve, commands.worker. Below: job,
keeper, health, rescue, calls, private.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from typing import Any

from livekit.agents import AgentServer, JobRequest
from livekit.agents.types import NOT_GIVEN, NotGivenOr
from livekit.agents.utils.hw import get_cpu_monitor
from livekit.protocol import agent as protocol

from agent import job
from agent.calls import CallRegistry, HeldCall
from agent.health import HealthServer
from agent.keeper import Keeper
from agent.private import keep_logs_private, keep_traces_private
from agent.rescue import Rescuer, lost, open_api
from agent.settings import AgentSettings, Configuration
from memory.errors import SettingsError
from memory.limits import ONE_THREAD

logger = logging.getLogger("agent")

CALLS_PER_CORE_LOCAL, CALLS_PER_CORE = 4, 12
IDLE_PROCESSES_MAX = 4
CLOSE_S_MAX = 10.0
FULL_LOAD = 0.7  # what livekit-server takes for full: a worker that says more is sent nothing, whatever its own limit
PRELOADED = ["agent.preload"]
# LiveKit looks for a blocked loop five times in so many ms, and wakes up twice for it: by default 100 times a second.
BLOCKED_WARN = ("LIVEKIT_AGENTS_LOOP_BLOCK_WARN_MS", "250")


class Worker(AgentServer):
    """A worker for one configuration. ``failure`` is why it ended, if it ended by itself."""

    def __init__(self, configuration: Configuration) -> None:
        agent = configuration.agent
        super().__init__(
            ws_url=agent.livekit_url,
            api_key=agent.livekit_api_key,
            api_secret=agent.livekit_api_secret.get_secret_value() if agent.livekit_api_secret else None,
            load_fnc=self.own_load,
            load_threshold=FULL_LOAD,
            num_idle_processes=min(math.ceil(get_cpu_monitor().cpu_count()), IDLE_PROCESSES_MAX),
            drain_timeout=agent.drain_seconds,
            setup_fnc=job.setup,
            preload_modules=PRELOADED,
            host="127.0.0.1",  # its own answers; ours are where the settings say
            port=0,
        )
        self.rtc_session(job.entry, on_request=self._on_request, on_session_end=job.on_session_end)
        self.failure: Exception | None = None
        self.max_calls = agent.max_calls or default_max_calls(agent)
        self._configuration = configuration
        self._registry: CallRegistry | None = None
        self._rescuer: Rescuer | None = None
        self._began: dict[str, float] = {}
        self._given: set[str] = set()  # jobs that LiveKit has given to this worker, on their way into a process
        self._running: asyncio.Task[Any] | None = None
        self._ran, self._registered = False, False
        self.on("worker_started", self._on_started)
        self.on("worker_registered", self._on_registered)

    def own_load(self) -> float:
        """How full this worker is, by its own calls: 0 to ``FULL_LOAD``. Not by the machine's processor: the models, or
        whatever else runs beside it, would make it refuse calls, and LiveKit offers a call only once."""
        return FULL_LOAD * len(self.active_jobs) / self.max_calls

    def _get_effective_load(self) -> float:
        # LiveKit's own estimate of calls that are just being accepted is made of the number of idle processes, and
        # refuses the third of three calls that come at once to an empty worker.
        return FULL_LOAD * (len(self.active_jobs) + self._reserved_slots) / self.max_calls

    async def run(self, *, devmode: bool = False, unregistered: bool = False) -> None:
        """Run until it is told to end. See ``AgentServer.run``."""
        self._running = asyncio.current_task()
        # A job has nothing to calculate with several threads, and is forked from a process that should have none.
        for name, threads in ONE_THREAD.items():
            os.environ.setdefault(name, threads)
        os.environ.setdefault(*BLOCKED_WARN)
        keep_logs_private()
        keep_traces_private()
        try:
            async with contextlib.AsyncExitStack() as open_parts:
                await self._open(open_parts, devmode=devmode, unregistered=unregistered)
                self._ran = True
                await super().run(devmode=devmode, unregistered=unregistered)
        except Exception as error:
            self.failure = error
            raise

    async def drain(self, timeout: NotGivenOr[int | None] = NOT_GIVEN) -> None:
        """Let calls go on, and take no new ones. See ``AgentServer.drain``."""
        if self._ran:
            await super().drain(timeout)

    async def aclose(self) -> None:
        """End all calls, as each of them ends by itself, and close everything. See ``AgentServer.aclose``."""
        if self._ran:  # LiveKit's own would fail on a worker that never came to run
            await super().aclose()
        if self._running is not None and self._running is not asyncio.current_task():
            await asyncio.wait({self._running}, timeout=CLOSE_S_MAX)

    async def _open(self, open_parts: contextlib.AsyncExitStack, *, devmode: bool, unregistered: bool) -> None:
        memory = self._configuration.memory
        keeper = Keeper(self._configuration)
        open_parts.push_async_callback(keeper.aclose)
        if unregistered:  # at a terminal: nobody to be healthy for, and no room to go on in
            await keeper.start()
            return
        health = self._health_server(keeper, devmode=devmode)
        open_parts.push_async_callback(health.aclose)
        try:
            await health.start()
        except OSError as error:
            reason = error.strerror or "it can't be used"
            raise SettingsError([f"AGENT_HEALTH_PORT: {reason}; choose another port, 0 for any"]) from None
        logger.info("health is answered on port %d", health.port)
        await keeper.start()
        if memory.enabled:
            self._registry = CallRegistry(memory)
            open_parts.push_async_callback(self._registry.aclose)
            await asyncio.to_thread(self._registry.hold_life)
            self._registry.start()
        lkapi = open_api(self._ws_url, self._api_key, self._api_secret)
        self._rescuer = Rescuer(lkapi, self._registry, draining=lambda: self.draining)
        open_parts.push_async_callback(self._rescuer.aclose)

    def _health_server(self, keeper: Keeper, *, devmode: bool) -> HealthServer:
        agent = self._configuration.agent
        # Somebody who develops may run several, or have something else on that port.
        any_port = devmode and "health_port" not in agent.model_fields_set
        return HealthServer(
            agent.health_host,
            0 if any_port else agent.health_port,
            states=keeper.states,
            status=self._status,
            livekit_port=lambda: self.worker_info.http_port,
        )

    def _status(self) -> str:
        if self._connection_failed:
            return "disconnected"
        if self.draining:
            return "draining"
        return "" if self._registered else "starting"

    def _on_registered(self, *_: object) -> None:
        # Not sooner: an agent that is asked for while no worker is there never comes, and each try has its time.
        if not self._registered and self._rescuer is not None:
            self._rescuer.start()
        self._registered = True

    def _on_started(self) -> None:
        self._proc_pool.on("process_job_launched", self._on_launched)
        self._proc_pool.on("process_closed", self._on_closed)

    async def _on_request(self, request: JobRequest) -> None:
        """Take a call that is offered. Returns when it has a process; LiveKit logs why it can't have one."""
        try:
            await request.accept()
        except Exception:
            if request.id in self._given:
                self._not_launched(request.job)
            raise
        finally:
            self._given.discard(request.id)

    def _handle_assignment(self, assignment: protocol.JobAssignment) -> None:
        # From here on no other worker is offered the call: if it doesn't come to life here, it does nowhere.
        if assignment.job.id in self._pending_assignments:
            self._given.add(assignment.job.id)
            self._hold(assignment.job)
        super()._handle_assignment(assignment)

    def _not_launched(self, given: protocol.Job) -> None:
        """No process could be started for a job: it has died before it lived, and LiveKit goes on waiting for it."""
        if self._rescuer is not None and not self._closed:
            self._rescuer.not_launched(given)
        elif self._registry is not None:
            self._registry.remove(given.id)

    def _hold(self, held: protocol.Job) -> None:
        if self._registry is not None:
            self._registry.add(HeldCall(held.id, held.room.sid, held.dispatch_id))

    def _on_launched(self, process: Any) -> None:
        held = process.running_job.job
        self._began[held.id] = time.monotonic()
        self._hold(held)

    def _on_closed(self, process: Any) -> None:
        """A process has ended. Whatever code but 0 it ended with, there was a call in it that has not."""
        if process.running_job is None:
            return
        ended = process.running_job.job
        lived_s = time.monotonic() - self._began.pop(ended.id, 0.0)
        told_to_end = self._closed or getattr(process, "_closing", False)
        if getattr(process, "exitcode", 0) != 0 and not told_to_end and self._rescuer is not None:
            self._rescuer.died(lost(ended, lived_s=lived_s))
        elif self._registry is not None:
            self._registry.remove(ended.id)


def default_max_calls(agent: AgentSettings) -> int:
    """By the machine's cores, or what a container may use of them: local speech needs more of one than a connection to
    a provider."""
    per_core = CALLS_PER_CORE_LOCAL if agent.speaks_locally else CALLS_PER_CORE
    return max(1, math.floor(get_cpu_monitor().cpu_count() * per_core))
