"""What an outage costs a call's greeting, and how long a call whose job was killed is without an agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import psutil

from tests.benchmarks import rooms, unresolved
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.tracing import Traces
from tests.support.livekit_server import LiveKitServer, free_port
from tests.support.outages import Gateway, dropping
from tests.support.redis_server import DURABLE, HOST, running
from tests.support.room_clients import RoomClient, in_room
from tests.support.workers import WorkerProcess

PAIRS = 16  # of calls, one with the outage and one without memory
KILLS = 6
GOAL_MS = 50
SLOW_S = 5.0
_BETWEEN_S = 0.7  # for a job to end, and another process to be ready
_FIRST = 1  # of a worker's pairs that nobody counts
_OUTAGE_S = 180.0  # one outage at most, its worker's start included
_Before = Callable[[], None]


async def greetings(*names: str) -> list[Figure]:
    """The greeting's first frame, from the job's start: what each outage (``OUTAGES``, or those that are named) adds.

    Each call of a worker with the outage has one of a worker without memory beside it, before and after it by turns:
    what else goes on in the machine meets both. The figure is the median of the pairs' differences.
    """
    figures = []
    with rooms.server() as livekit, rooms.server() as other:
        async with _off(livekit) as (plain, _):
            for name in names or OUTAGES:
                figures.append(await _added(name, (livekit, plain), other))
    return figures


async def _added(name: str, without: tuple[LiveKitServer, Traces], other: LiveKitServer) -> Figure:
    """The figure of one outage. Where a greeting never comes, it says so, and the other outages are measured."""
    try:
        async with asyncio.timeout(_OUTAGE_S), OUTAGES[name](other) as (traces, before):
            plain, away = await _pairs(without, (other, traces), before)
    except (AssertionError, TimeoutError) as error:
        detail = (str(error).splitlines() or ["it took too long"])[0]
        return Figure(f"greeting_added_{name}_ms", _OUTAGE_S * 1e3, GOAL_MS, unit="ms", detail=detail)
    differences = [late - early for late, early in zip(away, plain, strict=True)]
    detail = (
        f"{len(differences)} pairs, their middle half {_middle(differences)}; "
        f"median {statistics.median(away):.0f} ms, {statistics.median(plain):.0f} ms with memory off ({_middle(plain)})"
    )
    return Figure(f"greeting_added_{name}_ms", statistics.median(differences), GOAL_MS, unit="ms", detail=detail)


def _middle(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.0f} to {high:.0f}"


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


async def _pairs(
    without: tuple[LiveKitServer, Traces], away: tuple[LiveKitServer, Traces], before: _Before
) -> tuple[list[float], list[float]]:
    """How long each call's greeting took, in milliseconds: without memory, and with the outage."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_FIRST + PAIRS):
        for side in ((0, 1), (1, 0))[number % 2]:
            if side:
                before()
            times[side].append(await _greeted_ms(*(without, away)[side], number))
    return times[0][_FIRST:], times[1][_FIRST:]


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
async def _worker(
    livekit: LiveKitServer, *preloads: str, **environment: str
) -> AsyncIterator[tuple[WorkerProcess, Traces]]:
    async with rooms.worker(livekit, *preloads, **environment) as both:
        yield both


def _nothing() -> None:
    """Nothing happens before a call."""


@asynccontextmanager
async def _with(livekit: LiveKitServer, *preloads: str, **environment: str) -> AsyncIterator[tuple[Traces, _Before]]:
    async with _worker(livekit, *preloads, **environment) as (_, traces):
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


def _disk_full(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    """Redis is away, and the kernel refuses every write of a call's to a file: to the spool's too."""
    return _with(livekit, "tests.benchmarks.full_disk", REDIS_URL=f"redis://{HOST}:{free_port()}")


@asynccontextmanager
async def _redis_slow(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    """Connections are made at once, and each answer takes ``SLOW_S``."""
    with running(*DURABLE) as server:
        gateway = Gateway(server.port)
        gateway.open = _Slow()
        async with gateway.running(), _with(livekit, REDIS_URL=f"redis://{HOST}:{gateway.port}") as both:
            yield both


class _Slow(asyncio.Event):
    async def wait(self) -> Literal[True]:
        await asyncio.sleep(SLOW_S)
        return True


def _unresolved(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    """No name of a store is resolved: a job learns so after ``unresolved.AFTER_S``."""
    stores = {
        "REDIS_URL": f"redis://redis.{unresolved.DOMAIN}:6379",
        "DATABASE_URL": f"postgresql://user:word@archive.{unresolved.DOMAIN}/memory",
    }
    return _with(livekit, unresolved.NAME, **stores)


def _graph_refused(livekit: LiveKitServer) -> AbstractAsyncContextManager[tuple[Traces, _Before]]:
    return _with(livekit, **_graph(free_port()))


@asynccontextmanager
async def _graph_dropped(livekit: LiveKitServer) -> AsyncIterator[tuple[Traces, _Before]]:
    with _dropped() as port:
        async with _with(livekit, **_graph(port)) as both:
            yield both


def _graph(port: int) -> dict[str, str]:
    """Facts are wanted, and FalkorDB is at ``port``; nobody asks an LLM in a call that only greets."""
    local = dict.fromkeys(("AGENT_STT", "AGENT_LLM", "AGENT_TTS"), "local")
    return {**local, "OPENAI_API_KEY": "none", "FALKORDB_HOST": HOST, "FALKORDB_PORT": str(port)}


@contextlib.contextmanager
def _dropped() -> Iterator[int]:
    port = free_port()
    with dropping(port):
        yield port


OUTAGES = {
    "healthy": _healthy,
    "redis_refused": _redis_refused,
    "redis_dropped": _redis_dropped,
    "redis_slow": _redis_slow,
    "archive_refused": _archive_refused,
    "archive_dropped": _archive_dropped,
    "graph_refused": _graph_refused,
    "graph_dropped": _graph_dropped,
    "names_unresolved": _unresolved,
    "recall_dead": _recall_dead,
    "recall_frozen": _recall_frozen,
    "disk_full": _disk_full,
}
