"""What recording a turn costs, and how soon it can be recalled elsewhere: on the embedded server, in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from memory.models import MemoryEntry, Scope, new_id
from memory.settings import load_settings
from memory.wiring import Backend, open_backend
from tests.benchmarks.harness import Figure, percentile

_ROUNDS = 40
_WIDTH = 10


@contextlib.asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """The embedded default in a fresh data directory."""
    directory = Path(tempfile.mkdtemp(prefix="vb-"))
    os.environ["VOICEASSIST_DATA_DIR"] = str(directory)
    opened = await open_backend(load_settings(data_dir=directory, host_idle_seconds=1.0))
    try:
        yield opened
    finally:
        await opened.aclose()
        shutil.rmtree(directory, ignore_errors=True)


def scope(user_id: str) -> Scope:
    return Scope(org_id="bench", agent_id="bench", user_id=user_id)


def turn(session_id: str, text: str) -> MemoryEntry:
    return MemoryEntry(role="user", content=text, mode="voice", language="en", session_id=session_id)


async def recording() -> list[Figure]:
    """The cost of recording turn 1,000 of a session over that of turn 10: sessions interleaved, so load hits both."""
    early: list[float] = []
    late: list[float] = []
    async with backend() as opened:
        owner = scope("recording")
        await opened.sessions.claim("long", owner)
        for number in range(1_000):
            await opened.sessions.append(owner, turn("long", f"turn {number} of a long session about parcels"))
        for _ in range(_ROUNDS):
            session_id = new_id()
            await opened.sessions.claim(session_id, owner)
            for number in range(_WIDTH):
                await opened.sessions.append(owner, turn(session_id, f"turn {number} about parcels"))
                early.append(await _append_ms(opened, owner, session_id))
                late.append(await _append_ms(opened, owner, "long"))
    value = percentile(late, 0.5) / percentile(early, 0.5)
    detail = f"p50 {percentile(late, 0.5):.3f} ms at turn 1,000+, {percentile(early, 0.5):.3f} ms at turn 1-20"
    return [Figure("record_turn_1000_over_10", value, 1.1, detail=detail)]


async def _append_ms(opened: Backend, owner: Scope, session_id: str) -> float:
    entry = turn(session_id, "the parcel for Elm Road came back twice this week")
    begun = time.perf_counter()
    await opened.sessions.append(owner, entry)
    return (time.perf_counter() - begun) * 1e3


async def freshness() -> list[Figure]:
    """From before a turn is appended here until another process has recalled it; with the bundled embedder."""
    waits: list[float] = []
    async with backend() as opened:
        owner = scope("freshness")
        await opened.sessions.claim("said", owner)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.benchmarks.reader",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await _line(process.stdout)  # ready
            for number in range(60):
                word = f"codeword{number}x{os.urandom(3).hex()}"
                begun = time.monotonic()
                await opened.sessions.append(owner, turn("said", f"My secret word for today is {word}."))
                process.stdin.write(f"what is {word}\n".encode())
                found = float(await _line(process.stdout))
                waits.append((found - begun) * 1e3)
        finally:
            process.stdin.close()
            await asyncio.wait_for(process.wait(), 10)
    detail = f"{len(waits)} turns, p50 {percentile(waits, 0.5):.1f} ms"
    return [Figure("said_to_recallable_elsewhere_p95_ms", percentile(waits, 0.95), 300, unit="ms", detail=detail)]


async def _line(stream: asyncio.StreamReader) -> str:
    async with asyncio.timeout(60):
        line = await stream.readline()
    if not line:
        raise RuntimeError("the reading process ended early")
    return line.decode().strip()
