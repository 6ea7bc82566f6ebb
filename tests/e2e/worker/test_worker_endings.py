"""However a call ends, or doesn't, the same is stored: whether its user leaves or falls silent, its room is closed, or
its agent, job, worker or machine goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from livekit import api

from tests.e2e.worker.conftest import Start
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import RoomClient, in_room, on_the_phone
from tests.support.workers import WorkerProcess

GREETING = "Hello! How can I help you today?"
SAID = "My kayak is yellow."
EXPECTED = [("assistant", GREETING), ("user", SAID), ("assistant", f'Noted: "{SAID}"')]
NUMBER = "+15550103333"

pytestmark = pytest.mark.timeout(240)

End = Callable[[RoomClient, str], Awaitable[object]]


async def leaves(client: RoomClient, _: str) -> None:
    await client.aclose()


def closes(livekit: LiveKitServer) -> End:
    async def close(client: RoomClient, agent: str) -> None:
        await livekit.close(client.room.name)

    return close


def removes(livekit: LiveKitServer) -> End:
    async def remove(client: RoomClient, agent: str) -> None:
        lkapi = livekit.api()
        try:
            await lkapi.room.remove_participant(api.RoomParticipantIdentity(room=client.room.name, identity=agent))
        finally:
            await lkapi.aclose()
        await client.until_left(agent)

    return remove


def crashes(worker: WorkerProcess) -> End:
    """Its job is killed, and another one is in the call before its user leaves."""

    async def crash(client: RoomClient, agent: str) -> None:
        await worker.answered(client.identity)  # the last of what was heard is stored when it was heard
        os.kill(worker.job_of(agent), signal.SIGKILL)
        await client.agent(but=agent)

    return crash


def falls_silent(worker: WorkerProcess) -> End:
    """Nobody ends it: what it has left is in the archive while it goes on."""

    async def fall_silent(client: RoomClient, _: str) -> None:
        assert await stored(worker, client.identity) == EXPECTED

    return fall_silent


async def call(client_in: contextlib.AbstractAsyncContextManager[RoomClient], end: End) -> None:
    """Greeted, said something, answered: and then it ends."""
    async with client_in as client:
        agent = await client.agent()
        await client.reads(GREETING)
        greeted_at = await client.hears_end(since=client.connected_at)
        await client.type(SAID)
        await client.reads("Noted")
        await client.hears_end(since=greeted_at)
        await end(client, agent)


async def stored(worker: WorkerProcess, user: str) -> list[tuple[str, str]]:
    await worker.archived(user, turns=len(EXPECTED))
    return [(entry.role, entry.content) for entry in await worker.stored(user)]


@pytest.mark.promise("P-durable")
@pytest.mark.case("L38")
async def test_L38_P_durable_every_way_of_ending_leaves_the_same_stored(livekit: LiveKitServer, start: Start) -> None:
    silent = {"AGENT_RESUMED": "off"}  # an agent that comes back says nothing of its own
    first = await start(**silent).registered()
    workers, stopping = [first], []

    async def outlasts(client: RoomClient, agent: str) -> None:
        """The worker is told to end, and killed with all its processes before its calls are over."""
        await first.answered(client.identity)
        first.process.terminate()
        await first.logged("draining worker")
        first.kill_all()
        workers.append(await start(data_dir=first.data_dir, AGENT_DRAIN_SECONDS="1", **silent).registered())
        await client.agent(but=agent)

    async def stops(client: RoomClient, agent: str) -> None:
        stopping.append(asyncio.create_task(workers[-1].stop(within_s=60)))
        await client.until_left(agent)

    endings: dict[str, tuple[contextlib.AbstractAsyncContextManager[RoomClient], End]] = {
        "lea": (in_room(livekit, "of-lea", "lea", departure_s=1), leaves),
        "clo": (in_room(livekit, "of-clo", "clo"), closes(livekit)),
        "rem": (in_room(livekit, "of-rem", "rem"), removes(livekit)),
        "cra": (in_room(livekit, "of-cra", "cra"), crashes(first)),
        "sil": (in_room(livekit, "of-sil", "sil"), falls_silent(first)),
        NUMBER: (on_the_phone(livekit, "of-phone", NUMBER), leaves),
    }
    async with asyncio.TaskGroup() as calls:
        for client_in, end in endings.values():
            calls.create_task(call(client_in, end))
    for user in endings:  # before whatever comes could mend it
        assert await stored(first, user) == EXPECTED, user
    await call(in_room(livekit, "of-out", "out"), outlasts)
    await call(in_room(livekit, "of-sto", "sto"), stops)
    assert await stopping[0] == 0
    found = {user: await stored(first, user) for user in (*endings, "out", "sto")}
    assert found == dict.fromkeys(found, EXPECTED)
