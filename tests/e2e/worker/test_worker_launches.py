"""A call without its agent, and a worker that can't give it one: its processes would not start, or it dies over it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import in_room
from tests.support.unready_worker import DIES, HANGS, UNREADY
from tests.support.workers import WorkerProcess

GREETING = "Hello! How can I help you today?"
NOT_LAUNCHED = "job_request_fnc failed"  # livekit-agents' own line, after three attempts

pytestmark = pytest.mark.timeout(180)


class Workers:
    """Workers of one data directory, each of which can be kept from starting processes for its jobs."""

    def __init__(self, livekit: LiveKitServer, data_dir: Path) -> None:
        self._livekit, self._data_dir = livekit, data_dir
        self.started: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        settings = {**self._livekit.environment, UNREADY: str(self._unready(len(self.started)))}
        self.started.append(WorkerProcess(self._data_dir, settings, module="tests.support.unready_worker"))
        return self.started[-1]

    async def lose_processes(self, worker: WorkerProcess, *, how: str = DIES) -> None:
        """Kill those that wait for calls; no other one starts until ``mend``."""
        self._unready(self.started.index(worker)).write_text(how)
        for child in psutil.Process(worker.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "forkserver" in " ".join(child.cmdline()) and not child.children():
                    child.kill()
        await worker.logged("process exited with non-zero exit code")

    def mend(self, worker: WorkerProcess) -> None:
        self._unready(self.started.index(worker)).unlink()

    def _unready(self, number: int) -> Path:
        return self._data_dir / f"unready-{number}"


@pytest.fixture
def workers(livekit: LiveKitServer, data_dir: Path) -> Iterator[Workers]:
    made = Workers(livekit, data_dir)
    yield made
    for worker in made.started:
        worker.end()


@pytest.mark.promise("P-durable")
@pytest.mark.parametrize("failures", [1, 2])
async def test_P_durable_a_call_whose_job_could_not_be_launched_gets_an_agent_once_one_can(
    failures: int, livekit: LiveKitServer, workers: Workers, record_property: Callable[[str, object], None]
) -> None:
    worker = await workers.start().registered()
    await workers.lose_processes(worker)
    async with in_room(livekit, f"not-launched-{failures}", "ana", microphone=False) as client:
        await worker.logged(NOT_LAUNCHED, times=failures)
        assert client.joined == []
        workers.mend(worker)
        mended_at = time.monotonic()
        await client.agent()
        record_property("agent_there_s", round(client.joined[-1][1] - mended_at, 2))
        await client.reads(GREETING)
        await client.type("My cat is called Biscuit.")
        await client.reads("Biscuit")
        assert len(client.joined) == 1
    assert await worker.said_by("ana", turns=1) == ["My cat is called Biscuit."]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_worker_that_dies_while_it_launches_a_job_leaves_the_call_to_another(
    livekit: LiveKitServer, workers: Workers
) -> None:
    worker = await workers.start().registered()
    await workers.lose_processes(worker, how=HANGS)
    async with in_room(livekit, "launching", "ben", microphone=False) as client:
        await worker.logged("no warmed process available for job")
        other = await workers.start().registered()
        assert client.joined == []
        worker.kill()
        await client.agent()
        await client.type("My dog is called Pepper.")
        await client.reads("Pepper")
        assert len(client.joined) == 1
    assert await other.said_by("ben", turns=1) == ["My dog is called Pepper."]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_worker_that_dies_before_it_has_brought_an_agent_back_leaves_the_call_to_another(
    livekit: LiveKitServer, workers: Workers
) -> None:
    worker = await workers.start().registered()
    async with in_room(livekit, "bringing-back", "cleo", microphone=False) as client:
        first = await client.agent()
        await client.type("My bird is called Poppy.")
        await client.reads("Poppy")
        other = await workers.start().registered()
        with livekit.frozen():  # the worker asks it in vain to send another agent
            os.kill(worker.job_of(first), signal.SIGKILL)
            await worker.logged("process exited with non-zero exit code")
            worker.kill()
        await client.agent(but=first)
        before = len(client.said_by_agent())
        await client.type("What is the name of my bird?")
        await client.reads("Poppy", after=before)
        assert len({identity for identity, _ in client.joined}) == 2
    assert await other.said_by("cleo", turns=2) == ["My bird is called Poppy.", "What is the name of my bird?"]
