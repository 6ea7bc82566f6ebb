"""Twenty calls at once on one worker, with models that take a fixed time: what is lost, and what memory takes.

All twenty are there before the first of them says anything, and until the last has had its answers. Their callers,
who would be on machines of their own, are one process that does no more than it must (``callers/main.go``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import av
import numpy as np
import psutil

from memory import wiring
from memory.models import MemoryEntry, Scope
from memory.settings import load_settings
from tests.benchmarks import fixed, rooms
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.tracing import Event
from tests.support.livekit_server import LiveKitServer
from tests.support.workers import WorkerProcess

CALLS, TURNS = 20, 10
_JOIN_EVERY_S = 0.5
_TURN_EVERY_S = (5.0, 10.0)  # from a turn's begin to the next one's, as people talk on the phone
_LOUD_S, _SILENT_S = 1.2, 0.5
_OPUS_RATE, _OPUS_SAMPLES = 48_000, 960
_ALL_S = 180.0  # for the callers to come and to say all they have to
_ARCHIVED_S = 20.0


async def twenty_calls() -> list[Figure]:
    """Goals of issue 4: every turn in the archive, once and in order; memory's own time per turn p95 20 ms.

    Twenty who speak, then ten who speak and ten who type: what is typed comes at once, with nothing heard before that a
    recall could have begun with.
    """
    lost, spoken, busy = await _called(typing=0)
    lost_too, mixed, busy_too = await _called(typing=CALLS // 2)
    each = f"{TURNS} turns each with its reply"
    return [
        Figure("calls_at_once_turns_lost", lost, 0, detail=f"{CALLS} spoken calls all the time, {each}"),
        _memory("calls_at_once_memory_p95_ms", spoken[False], busy),
        Figure("calls_and_chats_at_once_turns_lost", lost_too, 0, detail=f"half of the {CALLS} type, {each}"),
        _memory("calls_and_chats_at_once_spoken_memory_p95_ms", mixed[False], busy_too),
        _memory("calls_and_chats_at_once_typed_memory_p95_ms", mixed[True], busy_too),
    ]


def _memory(name: str, times: Sequence[float], busy: float) -> Figure:
    detail = f"{_spread(times)}; cores {busy:.0f} % busy, callers and LiveKit included"
    return Figure(name, percentile(times, 0.95), 20, unit="ms", detail=detail)


async def _called(typing: int) -> tuple[int, dict[bool, list[float]], float]:
    """Twenty calls, ``typing`` of whom type: turns lost, memory's times by whether they were typed, how busy it was."""
    with rooms.server() as livekit:
        settings = {"AGENT_MAX_CALLS": str(CALLS), "AGENT_GREETING": "Hello."}
        async with rooms.worker(livekit, fixed.NAME, **settings) as (worker, traces):
            async with _callers(_orders(livekit, typing)) as callers, asyncio.timeout(_ALL_S):
                await _told(callers, "there")
                begun = len(traces.events)
                psutil.cpu_percent()
                await _told(callers, "done")
                busy = psutil.cpu_percent()
                times = memory_ms(traces.events[begun:])
            lost = [await _lost(worker, f"caller-{number}") for number in range(CALLS)]
    return sum(lost), times, busy


@asynccontextmanager
async def _callers(orders: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    """The callers' process, which has its ``orders``; they leave at the block's end."""
    program = await asyncio.to_thread(rooms.callers)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        await process.stdin.drain()
        yield process
        process.stdin.close()
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _told(callers: asyncio.subprocess.Process, event: str) -> None:
    assert callers.stdout is not None
    line = await callers.stdout.readline()
    if not line or json.loads(line) != {"event": event}:
        raise AssertionError("the callers gave up; they said why on stderr")


def _orders(livekit: LiveKitServer, typing: int) -> dict[str, Any]:
    calls = []
    for number in range(CALLS):
        identity, pauses = f"caller-{number}", random.Random(number)
        turns_s = [pauses.uniform(0, _TURN_EVERY_S[1])]
        while len(turns_s) < TURNS:
            turns_s.append(turns_s[-1] + pauses.uniform(*_TURN_EVERY_S))
        calls.append(
            {
                "identity": identity,
                "token": livekit.token(identity, f"call-{number}"),
                "join_s": number * _JOIN_EVERY_S,
                "types": [fixed.said(turn) for turn in range(1, TURNS + 1)] if number < typing else [],
                "turns_s": turns_s,
            }
        )
    return {"url": livekit.url, "sound": [base64.b64encode(packet).decode() for packet in _sound()], "calls": calls}


def _sound() -> list[bytes]:
    """What is said in a turn, as Opus packets of 20 ms."""
    loud = 8_000 * np.sin(np.arange(int(_LOUD_S * _OPUS_RATE)) * 0.05)
    samples = np.concatenate([loud, np.zeros(int(_SILENT_S * _OPUS_RATE))]).astype(np.int16)
    encoder: Any = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format = _OPUS_RATE, "mono", "s16"
    packets: list[bytes] = []
    for begin in range(0, len(samples) - _OPUS_SAMPLES + 1, _OPUS_SAMPLES):
        frame = av.AudioFrame.from_ndarray(samples[None, begin : begin + _OPUS_SAMPLES], format="s16", layout="mono")
        frame.sample_rate, frame.pts = _OPUS_RATE, begin
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets


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


def memory_ms(told: Sequence[Event]) -> dict[bool, list[float]]:
    """What memory took of each turn of each call, in milliseconds, by whether the call was typed: all its recalls,
    those that ran ahead included, and what the first frame of the reply waited for the turn to be stored."""
    times: dict[bool, list[float]] = {False: [], True: []}
    by_job: dict[int, list[Event]] = defaultdict(list)
    for event in told:
        by_job[event["pid"]].append(event)
    for events in by_job.values():
        spent, typed = 0.0, all(event["event"] != "transcript" for event in events)
        for event in events:
            if event["event"] in ("recalled", "durable"):
                spent += event["ms"]
            elif event["event"] == "item" and event["role"] == "assistant":
                times[typed].append(spent)
                spent = 0.0
    return times


def _spread(times: Sequence[float]) -> str:
    return f"{len(times)} turns, p50 {percentile(times, 0.5):.1f} ms, worst {max(times):.1f} ms"
