"""``agent dev``: everything in one go, an ingestion worker beside the calls."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from tests.e2e.worker.conftest import Start
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import in_room
from tests.support.workers import START_S, WorkerProcess

pytestmark = pytest.mark.timeout(180)


async def printed(worker: WorkerProcess, text: str) -> None:
    """Wait until the worker, whose log is for people, has printed ``text``."""
    async with asyncio.timeout(START_S):
        while text not in worker.raw:
            assert worker.process.poll() is None, worker.raw[-3000:]
            await asyncio.sleep(0.05)


async def test_dev_takes_calls_and_ingests_and_ends_with_all_it_started(livekit: LiveKitServer, start: Start) -> None:
    worker = start("dev", AGENT_GREETING="off", AGENT_DRAIN_SECONDS="1")
    await printed(worker, "registered worker")
    children = psutil.Process(worker.process.pid).children(recursive=True)
    [ingest] = [child for child in children if child.cmdline()[1:4] == ["-m", "agent", "ingest"]]
    async with in_room(livekit, "dev", "ana", microphone=False) as client:
        await client.agent()
        await client.type("My cat is called Biscuit.")
        await client.reads("Biscuit")
    assert await worker.said_by("ana", turns=1) == ["My cat is called Biscuit."]
    assert "Biscuit" not in worker.raw
    assert await worker.stop(within_s=60) == 0
    assert not ingest.is_running()
