"""Twenty calls at once on one worker, with models that take a fixed time: what is lost, and what memory takes."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from livekit import rtc

from memory import wiring
from memory.models import MemoryEntry, Scope
from memory.settings import load_settings
from tests.benchmarks import fixed, rooms
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.tracing import Event, Traces
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import RATE, RoomClient
from tests.support.workers import WorkerProcess

CALLS, TURNS = 20, 5
_GREETING = "Hello."
_JOIN_EVERY_S = 1.0
_FRAME = RATE // 20
_FRAMES_LOUD, _FRAMES_SILENT = 24, 10  # of 50 ms
_BETWEEN_S = 2.0
_ARCHIVED_S = 20.0


async def twenty_calls() -> list[Figure]:
    """Goals of issue 4: every turn in the archive, once and in order; memory's own time per turn p95 20 ms."""
    with rooms.server() as livekit:
        settings = {"AGENT_MAX_CALLS": str(CALLS), "AGENT_GREETING": _GREETING}
        async with rooms.worker(livekit, fixed.NAME, **settings) as (worker, traces):
            async with asyncio.TaskGroup() as calls:
                for number in range(CALLS):
                    calls.create_task(_call(livekit, number))
            lost = [await _lost(worker, f"caller-{number}") for number in range(CALLS)]
            times = memory_ms(traces)
    return [
        Figure(
            "calls_at_once_turns_lost",
            sum(lost),
            0,
            detail=f"{CALLS} calls, half of them spoken, {TURNS} turns each with its reply",
        ),
        Figure("calls_at_once_memory_p95_ms", percentile(times, 0.95), 20, unit="ms", detail=_told(times)),
    ]


class _Caller(RoomClient):
    """Speaks, or types, and reads. It neither sends silence nor decodes what it hears: twenty that did would take the
    processor from the worker, and callers have machines of their own."""

    async def _play(self, source: rtc.AudioSource) -> None:
        while True:
            samples = await self._saying.get()
            for begin in range(0, len(samples), _FRAME):
                piece = samples[begin : begin + _FRAME]
                await source.capture_frame(rtc.AudioFrame(piece.tobytes(), RATE, 1, len(piece)))
            self.spoken_at = time.monotonic()
            self._happened.set()

    def _on_track(self, *_: object) -> None:
        """Let it play."""


async def _call(livekit: LiveKitServer, number: int) -> None:
    await asyncio.sleep(number * _JOIN_EVERY_S)
    spoken = (8_000 * np.sin(np.arange(_FRAME * _FRAMES_LOUD) * 0.1)).astype(np.int16)
    spoken = np.concatenate([spoken, np.zeros(_FRAME * _FRAMES_SILENT, np.int16)])
    client = _Caller(f"caller-{number}")
    try:
        speaks = number % 2 == 0
        await client.connect(livekit, f"call-{number}", microphone=speaks)
        await client.reads(_GREETING)
        for turn in range(1, TURNS + 1):
            await (client.say(spoken) if speaks else client.type(fixed.said(turn)))
            await client.reads(after=turn)
            await asyncio.sleep(_BETWEEN_S)
    finally:
        await client.aclose()


async def _lost(worker: WorkerProcess, user_id: str) -> int:
    """How many turns of a user are not in the archive as they were said: missing, twice, or out of order.

    On a busy machine sound has gaps, and what was said in one breath may be heard as two turns: more than ``TURNS`` are
    no fault, as long as each is there.
    """
    until = time.monotonic() + _ARCHIVED_S
    while True:
        entries = await _archived(worker, user_id)
        heard = [entry.content for entry in entries if entry.role == "user"]
        replies = sum(entry.role == "assistant" and entry.content == fixed.REPLY for entry in entries)
        wanted = [fixed.said(number) for number in range(1, max(TURNS, len(heard)) + 1)]
        lost = len(wanted) - sum(map(str.__eq__, wanted, heard)) + max(0, TURNS - replies)
        if not lost or time.monotonic() > until:
            return lost
        await asyncio.sleep(0.2)


async def _archived(worker: WorkerProcess, user_id: str) -> list[MemoryEntry]:
    scope = Scope(org_id="default", agent_id="assistant", user_id=user_id)
    backend = await wiring.open_backend(load_settings(data_dir=worker.data_dir))
    try:
        archive = await backend.archive()
        records = [each.record for each in await archive.read(scope, after=0, limit=1_000)]
    finally:
        await backend.aclose()
    return [each for each in records if isinstance(each, MemoryEntry)]


def memory_ms(traces: Traces) -> list[float]:
    """What memory took of each turn of each call, in milliseconds: all its recalls, those that ran ahead included, and
    what the first frame of the reply waited for the turn to be stored."""
    times: list[float] = []
    by_job: dict[int, list[Event]] = defaultdict(list)
    for event in traces.events:
        by_job[event["pid"]].append(event)
    for events in by_job.values():
        spent = 0.0
        for event in events:
            if event["event"] in ("recalled", "durable"):
                spent += event["ms"]
            elif event["event"] == "item" and event["role"] == "assistant":
                times.append(spent)
                spent = 0.0
    return times


def _told(times: Sequence[float]) -> str:
    return f"{len(times)} turns, p50 {percentile(times, 0.5):.1f} ms, worst {max(times):.1f} ms"
