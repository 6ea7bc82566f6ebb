"""What dies in the middle of a call - a job, the worker, the store, the client - ends neither the call nor its memory.

The tests go on where the one before has left the workers: run the file as a whole.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.worker.conftest import Start
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import RoomClient, in_room
from tests.support.workers import WorkerProcess

GREETING = "Hello! How can I help you today?"
TAKEN_UP = "a job died in a call; another one goes on with it"
DRAIN_S = 8
ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def worker(start: Start) -> WorkerProcess:
    return asyncio.run(start(AGENT_DRAIN_SECONDS=str(DRAIN_S)).registered())


@pytest.fixture(scope="module")
def successor(start: Start, worker: WorkerProcess) -> Callable[[], WorkerProcess]:
    """The worker that is started beside the first one, when it is first asked for."""
    return functools.cache(lambda: start(data_dir=worker.data_dir, AGENT_DRAIN_SECONDS=str(DRAIN_S)))


async def answered(client: RoomClient, text: str, *words: str) -> None:
    """Type ``text``, and wait for a line of the agent with all ``words``."""
    before = len(client.said_by_agent())
    await client.type(text)
    await client.reads(*words, after=before)


@pytest.mark.promise("P-durable")
@pytest.mark.case("L38")
async def test_L38_P_durable_a_killed_job_does_not_end_the_call(
    livekit: LiveKitServer, worker: WorkerProcess, record_property: Callable[[str, object], None]
) -> None:
    async with in_room(livekit, "job-killed", "ana") as client:
        first = await client.agent()
        await client.reads(GREETING)
        await client.hears_end(since=client.connected_at)
        await client.say(await worker.voice("My cat is called Biscuit."))
        await client.hears(since=client.spoken_at)  # the reply has begun
        job = worker.job_of(first)
        killed_at = time.monotonic()
        os.kill(job, signal.SIGKILL)

        second = await client.agent(but=first)
        record_property("agent_back_s", round(client.joined[-1][1] - killed_at, 2))
        await client.reads("Biscuit", after=1)  # it answers what was left unanswered, by itself
        await client.until_left(first)
        await answered(client, "What is the name of my cat?", "Biscuit")

        await worker.answered("ana")
        os.kill(worker.job_of(second), signal.SIGKILL)  # with nothing left to answer
        third = await client.agent(but=second)
        await client.reads("I was gone for a moment")
        await answered(client, "And what did I tell you about my cat?", "Biscuit")
        assert third not in (first, second)

    said = await worker.said_by("ana", turns=3)
    assert [line.lower() for line in said] == [
        "my cat is called biscuit.",
        "what is the name of my cat?",
        "and what did i tell you about my cat?",
    ]
    entries = await worker.stored("ana")
    assert len({entry.session_id for entry in entries}) == 1
    assert [entry.content for entry in entries].count(GREETING) == 1
    assert client.said_by_agent().count(GREETING) == 1


@pytest.mark.promise("P-durable")
@pytest.mark.case("L35")
async def test_L35_P_durable_a_killed_redis_loses_and_doubles_nothing(
    livekit: LiveKitServer, worker: WorkerProcess
) -> None:
    async with in_room(livekit, "redis-killed", "ben", microphone=False) as client:
        await client.agent()
        await answered(client, "My dog is called Pepper.", "Pepper")
        worker.helper("redis-server").kill()
        await answered(client, "My horse is called Clover.", "Clover")
        await answered(client, "What is the name of my dog?", "Pepper")
    said = ["My dog is called Pepper.", "My horse is called Clover.", "What is the name of my dog?"]
    assert await worker.said_by("ben", turns=3) == said
    status, body = await worker.health()
    assert (status, body["components"]["redis"]["status"]) == (200, "healthy")


@pytest.mark.promise("P-silent")
async def test_P_silent_killed_helpers_come_back_without_a_call_asking_for_them(
    livekit: LiveKitServer, worker: WorkerProcess
) -> None:
    hosts = [worker.helper("memory", "host"), worker.helper("agent.local.speech_host")]
    async with in_room(livekit, "hosts-killed", "cleo") as client:
        await client.agent()
        await client.hears_end(since=client.connected_at)
        for host in hosts:
            host.kill()
        await answered(client, "My boat is called Marlin.", "Marlin")
        await client.hears(since=client.lines[-1].at - 2)
    pids = {host.pid for host in hosts}
    async with asyncio.timeout(30):
        while pids & {worker.helper("memory", "host").pid, worker.helper("agent.local.speech_host").pid}:
            await asyncio.sleep(0.1)
    assert await worker.said_by("cleo", turns=1) == ["My boat is called Marlin."]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_killed_client_leaves_everything_stored(
    livekit: LiveKitServer, worker: WorkerProcess
) -> None:
    token = livekit.token("dora", "client-killed")
    said = "My bird is called Poppy."
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.support.room_caller", livekit.url, token, said],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "answered\n"
    finally:
        client.kill()
        client.wait()
        if client.stdout is not None:
            client.stdout.close()
    assert await worker.said_by("dora", turns=1) == [said]
    async with in_room(livekit, "client-killed", "dora") as again:  # the same identity, in the room that still stands
        await again.agent()
        await answered(again, "What is the name of my bird?", "Poppy")
    entries = await worker.stored("dora")
    assert len({entry.session_id for entry in entries}) == 1


@pytest.mark.promise("P-durable")
async def test_P_durable_another_worker_goes_on_with_the_calls_of_a_killed_one(
    livekit: LiveKitServer,
    worker: WorkerProcess,
    successor: Callable[[], WorkerProcess],
    record_property: Callable[[str, object], None],
) -> None:
    async with in_room(livekit, "worker-killed", "emma", microphone=False) as client:
        first = await client.agent()
        await answered(client, "My parrot is called Mango.", "Mango")
        other = await successor().registered()
        killed_at = time.monotonic()
        worker.kill()
        await client.agent(but=first)
        record_property("agent_back_s", round(client.joined[-1][1] - killed_at, 2))
        await client.reads("I was gone for a moment")
        await answered(client, "What is the name of my parrot?", "Mango")
        await client.until_left(first)
    assert await other.said_by("emma", turns=2) == ["My parrot is called Mango.", "What is the name of my parrot?"]


@pytest.mark.promise("P-durable")
@pytest.mark.case("L38")
async def test_L38_P_durable_a_worker_that_is_told_to_end_lets_calls_go_on_and_stores_them_alike(
    livekit: LiveKitServer, worker: WorkerProcess, successor: Callable[[], WorkerProcess]
) -> None:
    running = await successor().registered()
    worker.kill()
    async with (
        in_room(livekit, "drained-1", "fay", microphone=False) as fay,
        in_room(livekit, "drained-2", "gus", microphone=False) as gus,
    ):
        for client in (fay, gus):
            await client.agent()
        ending = asyncio.create_task(running.stop())
        await running.logged("draining worker")
        status, body = await running.health()
        assert (status, body["status"]) == (200, "draining")
        await asyncio.gather(
            answered(fay, "My car is called Rocket.", "Rocket"), answered(gus, "My tent is called Castle.", "Castle")
        )
        await fay.aclose()
        assert await ending == 0
    assert await running.said_by("fay", turns=1) == ["My car is called Rocket."]
    assert await running.said_by("gus", turns=1) == ["My tent is called Castle."]


@pytest.mark.promise("P-durable")
@pytest.mark.case("L38")
async def test_L38_P_durable_calls_that_outlast_the_grace_of_their_worker_go_on_with_the_next_one(
    livekit: LiveKitServer, start: Start, record_property: Callable[[str, object], None]
) -> None:
    ending = await start().registered()
    async with (
        in_room(livekit, "grace-1", "hana", microphone=False) as hana,
        in_room(livekit, "grace-2", "igor") as igor,
    ):
        first = {client: await client.agent() for client in (hana, igor)}
        await asyncio.gather(*(client.hears_end(since=client.connected_at) for client in first))
        await asyncio.gather(
            answered(hana, "My lamp is called Ember.", "Ember"), answered(igor, "My boat is called Heron.", "Heron")
        )
        await igor.hears_end(since=igor.lines[-1].at)
        cat = await ending.voice("My cat is called Biscuit.")
        ending.process.terminate()
        await ending.logged("draining worker")
        await answered(hana, "My bike is called Comet.", "Comet")
        await igor.say(cat)
        await igor.hears(since=igor.spoken_at)  # the reply has begun
        heard = len(igor.said_by_agent())
        ending.kill_all()

        running = await start(data_dir=ending.data_dir).registered()
        registered_at = time.monotonic()
        for client, agent in first.items():
            await client.agent(but=agent)
        record_property("agents_back_s", round(max(each.joined[-1][1] for each in first) - registered_at, 2))
        told = [str(record.get("message")) for record in running.log]
        assert told.index("registered worker") < next(at for at, line in enumerate(told) if line.startswith(TAKEN_UP))
        await igor.reads("Biscuit", after=heard)  # it answers what was left unanswered, by itself
        await hana.reads("I was gone for a moment")
        await asyncio.gather(
            answered(hana, "What is the name of my lamp?", "Ember"), answered(igor, "What is my cat called?", "Biscuit")
        )
    lamp = ["My lamp is called Ember.", "My bike is called Comet.", "What is the name of my lamp?"]
    boat = ["my boat is called heron.", "my cat is called biscuit.", "what is my cat called?"]
    assert await running.said_by("hana", turns=3) == lamp
    assert [line.lower() for line in await running.said_by("igor", turns=3)] == boat
    for client in first:
        entries = await running.stored(client.identity)
        assert len({entry.session_id for entry in entries}) == 1
        assert len({entry.id for entry in entries}) == len(entries)
        assert [entry.content for entry in entries].count(GREETING) == 1
        assert len({identity for identity, _ in client.joined}) == 2
