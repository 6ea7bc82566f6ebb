"""What an outage costs a call's greeting, and how long a call whose job was killed is without an agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import psutil

from tests.benchmarks import rooms
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.tracing import Traces
from tests.support.livekit_server import LiveKitServer, free_port
from tests.support.outages import dropping
from tests.support.room_clients import RoomClient, in_room
from tests.support.workers import WorkerProcess

CALLS = 7  # of each kind, one after the other
KILLS = 6
_BETWEEN_S = 0.7  # for a job to end, and another process to be ready
_FIRST = 1  # of a worker's calls that nobody counts
_Before = Callable[[], None]


async def greetings(*names: str) -> list[Figure]:
    """The greeting's first frame, from the job's start: median with each outage, over the median without memory.

    Calls of two workers take turns, so that what else goes on in the machine meets both.
    """
    figures = []
    with rooms.server() as livekit, rooms.server() as other:
        async with _off(livekit) as plain:
            for name, outage in OUTAGES.items():
                if names and name not in names:
                    continue
                async with outage(other) as away:
                    without, with_outage = await _taking_turns((livekit, plain), (other, away))
                detail = f"medians of {CALLS} calls each: {with_outage:.0f} ms, {without:.0f} ms with memory off"
                figures.append(Figure(f"greeting_added_{name}_ms", with_outage - without, 50, unit="ms", detail=detail))
    return figures


async def comeback() -> list[Figure]:
    """From a job's SIGKILL until another agent is in the room, and until it is heard."""
    back, heard = [], []
    with rooms.server() as livekit:
        async with rooms.worker(livekit) as (worker, _):
            for number in range(KILLS):
                async with in_room(livekit, f"killed-{number}", f"user-{number}") as client:
                    killed_at = await _killed(client, worker)
                    await client.agent(but=client.joined[0][0])
                    back.append(client.joined[-1][1] - killed_at)
                    heard.append(await client.hears(since=client.joined[-1][1]) - killed_at)
    detail = f"worst of {KILLS}; median {percentile(back, 0.5):.2f} s, heard after {percentile(heard, 0.5):.2f} s"
    return [Figure("agent_back_after_sigkill_s", max(back), 2, unit="s", detail=detail)]


async def _killed(client: RoomClient, worker: WorkerProcess) -> float:
    agent = await client.agent()
    await client.hears_end(since=client.connected_at)
    job = worker.job_of(agent)
    killed_at = time.monotonic()
    os.kill(job, signal.SIGKILL)
    return killed_at


async def _taking_turns(*sides: tuple[LiveKitServer, tuple[Traces, _Before]]) -> list[float]:
    """The median of each side's calls, in milliseconds."""
    times: list[list[float]] = [[] for _ in sides]
    for number in range(_FIRST + CALLS):
        for (livekit, (traces, before)), taken in zip(sides, times, strict=True):
            before()
            taken.append(await _greeted_ms(livekit, traces, number))
    return [percentile(taken[_FIRST:], 0.5) for taken in times]


async def _greeted_ms(livekit: LiveKitServer, traces: Traces, number: int) -> float:
    begun, room = len(traces.events), f"{time.monotonic_ns()}"
    async with in_room(livekit, room, f"user-{number}") as client:
        await client.hears(since=client.connected_at)
        events = traces.events[begun:]
    await livekit.close(room)
    await asyncio.sleep(_BETWEEN_S)
    job = next(event for event in events if event["event"] == "job")
    speaking = next(event for event in events if event["event"] == "agent" and event["state"] == "speaking")
    return float(speaking["at"] - job["at"]) * 1e3


@asynccontextmanager
async def _worker(livekit: LiveKitServer, **environment: str) -> AsyncIterator[tuple[WorkerProcess, Traces]]:
    async with rooms.worker(livekit, **environment) as both:
        yield both


def _nothing() -> None:
    """Nothing happens before a call."""


@asynccontextmanager
async def _with(livekit: LiveKitServer, **environment: str) -> AsyncIterator[tuple[Traces, _Before]]:
    async with _worker(livekit, **environment) as (_, traces):
        yield traces, _nothing


def _off(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    return _with(livekit, MEMORY_ENABLED="false")


def _healthy(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    return _with(livekit)


def _redis_refused(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    return _with(livekit, REDIS_URL=f"redis://127.0.0.1:{free_port()}")


@asynccontextmanager
async def _redis_dropped(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    with _dropped() as port:
        async with _with(livekit, REDIS_URL=f"redis://127.0.0.1:{port}") as both:
            yield both


def _archive_refused(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    return _with(livekit, DATABASE_URL=f"postgresql://user:word@127.0.0.1:{free_port()}/memory")


@asynccontextmanager
async def _archive_dropped(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    with _dropped() as port:
        async with _with(livekit, DATABASE_URL=f"postgresql://user:word@127.0.0.1:{port}/memory") as both:
            yield both


@asynccontextmanager
async def _recall_dead(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    async with _worker(livekit) as (worker, traces):

        def kill() -> None:  # whoever needs it starts another one
            with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
                worker.helper("memory", "host").kill()

        yield traces, kill


@asynccontextmanager
async def _recall_frozen(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    async with _worker(livekit) as (worker, traces):
        host = worker.helper("memory", "host")
        host.suspend()
        try:
            yield traces, _nothing
        finally:
            host.resume()


@asynccontextmanager
async def _disk_full(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    """Redis is away, and the kernel refuses every write to a file, the spool's too."""
    async with _worker(livekit, REDIS_URL=f"redis://127.0.0.1:{free_port()}") as (worker, traces):
        for process in psutil.Process(worker.process.pid).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        yield traces, _nothing


@contextlib.contextmanager
def _dropped() -> Iterator[int]:
    port = free_port()
    with dropping(port):
        yield port


OUTAGES = {
    "healthy": _healthy,
    "redis_refused": _redis_refused,
    "redis_dropped": _redis_dropped,
    "archive_refused": _archive_refused,
    "archive_dropped": _archive_dropped,
    "recall_dead": _recall_dead,
    "recall_frozen": _recall_frozen,
    "disk_full": _disk_full,
}
