"""Many short calls on one worker: its processes, and those that its calls share, hold no more after than before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil
import pytest

from memory.settings import load_settings
from tests.e2e.worker.conftest import Start
from tests.support.footprints import Footprint, fill_pools, grown, told
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import in_room
from tests.support.workers import WorkerProcess

AT_ONCE, USERS = 3, 8
RSS_MB, HANDLES = 15.0, 3
QUIET_S = 60.0

pytestmark = pytest.mark.timeout(1_800)


async def short_call(livekit: LiveKitServer, number: int) -> None:
    room = f"short-{number}"
    async with in_room(livekit, room, f"user-{number % USERS}") as client:
        await client.agent()
        await client.type(f"My number is {number}.")
        await client.reads(str(number))
    await livekit.close(room)


async def short_calls(livekit: LiveKitServer, numbers: range) -> None:
    waiting = iter(numbers)

    async def one_after_the_other() -> None:
        for number in waiting:
            await short_call(livekit, number)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def settled(worker: WorkerProcess, children: int) -> dict[str, Footprint]:
    """What each process holds when no call is left."""
    main = psutil.Process(worker.process.pid)
    async with asyncio.timeout(QUIET_S):
        while len(main.children(recursive=True)) != children:
            await asyncio.sleep(0.2)
    forkserver = next(child for child in main.children() if "forkserver" in " ".join(child.cmdline()))
    processes = {
        "worker": main,
        "forkserver": forkserver,
        "recall host": worker.helper("memory", "host"),
        "speech host": worker.helper("agent.local.speech_host"),
        "redis-server": worker.helper("redis-server"),
    }
    return {name: Footprint.of(process) for name, process in processes.items()}


@pytest.mark.case("S08")
@pytest.mark.parametrize(("warm", "count"), [(15, 45), pytest.param(50, 500, marks=pytest.mark.long)])
async def test_S08_short_jobs_leave_nothing_behind(
    livekit: LiveKitServer, start: Start, warm: int, count: int, record_property: Callable[[str, object], None]
) -> None:
    worker = await start(AGENT_GREETING="off", AGENT_MAX_CALLS="24", MEMORY_HOST_IDLE_SECONDS="30").registered()
    idle = len(psutil.Process(worker.process.pid).children(recursive=True))
    await fill_pools(load_settings(data_dir=worker.data_dir))
    await short_calls(livekit, range(warm))
    before = await settled(worker, idle)
    await short_calls(livekit, range(warm, count))
    after = await settled(worker, idle)
    record_property("footprints", told(before, after))
    assert grown(before, after, rss_mb=RSS_MB, handles=HANDLES) == {}
    assert await worker.said_by("user-0", turns=len(range(0, count, USERS))) != []
