"""Ingestion as it is deployed: what a call costs in LLM calls, sessions a minute, two workers over one, and leaks.

Real workers (``python -m agent ingest``), embedded Redis+FalkorDB, PostgreSQL if it is here (else SQLite); the LLM is
the tests' own, a process that answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from memory.knowledge import ChunkState
from memory.models import MemoryEntry
from memory.ports import LogRecord
from tests.benchmarks.harness import Figure
from tests.support import postgres
from tests.support.archives import logged
from tests.support.ingest_process import IngestProcess, World, environment, ingesting

_SESSIONS = 120  # for each measurement of speed
_LEAK_SESSIONS = 500
_LEAK_FROM = 100  # sessions after which a worker has loaded what it needs
_TURNS = 20
_WAIT_S = 420.0
_POLL_S = 0.1
_MB = 1_048_576
# A call of 20 turns: 7 facts, and the 4 that repeat or contradict what an earlier call has said.
_EARLIER = ("I live in Leeds.", "I prefer email.", "My cat is called Biscuit.", "I work at Northwind.")
_CALL = (
    "I moved to York.",
    "I prefer phone calls.",
    "My cat is called Biscuit.",
    "I work at Northwind.",
    "I am allergic to peanuts.",
    "My order 4471 is late.",
    "I have an appointment on Tuesday.",
)
_SMALL_TALK = "Thank you, that is kind."


@contextlib.contextmanager
def _servers(stack: contextlib.ExitStack) -> Iterator[dict[str, str]]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vi-")))
    more = {"MEMORY_EMBEDDER": "none", "GRAPHITI_EMBEDDING_MODEL": "test-embedding", "OPENAI_API_KEY": "none-needed"}
    if binaries := postgres.binaries():
        more["DATABASE_URL"] = stack.enter_context(postgres.running(binaries)).url()
    yield environment(directory / "data", "", **more)


@contextlib.asynccontextmanager
async def _world() -> AsyncIterator[tuple[World, dict[str, str]]]:
    """Stores of their own, and the variables that lead a worker to them."""
    kept = dict(os.environ)
    with contextlib.ExitStack() as stack:
        values = stack.enter_context(_servers(stack))
        command = (sys.executable, "-m", "tests.support.graph_llm", "--port", "0")
        llm = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert llm.stdout is not None
            values["OPENAI_BASE_URL"] = (await llm.stdout.readline()).decode().strip()
            os.environ.update(values)
            world = await World.open(values)
            try:
                yield world, values
            finally:
                await world.aclose()
        finally:
            llm.kill()
            await llm.wait()
            os.environ.clear()
            os.environ.update(kept)


async def _hold_sessions(world: World, first: int, count: int) -> None:
    """``count`` calls of as many users, as the archive holds them when they are over."""
    begun = datetime.now(UTC) - timedelta(minutes=30)
    for number in range(first, first + count):
        told = [*_CALL, *(_SMALL_TALK for _ in range(_TURNS - len(_CALL)))]
        turns = [
            MemoryEntry(
                role="user" if place % 2 == 0 or text != _SMALL_TALK else "assistant",
                content=text,
                mode="voice",
                language="en",
                session_id=f"call-{number}",
                timestamp=begun + timedelta(seconds=place),
            )
            for place, text in enumerate(told)
        ]
        records: list[LogRecord] = logged(turns)
        await world.archive.store(world.scope(f"user-{number}"), records)


async def _until_done(world: World, wanted: int) -> None:
    async with asyncio.timeout(_WAIT_S):
        while (counts := await world.chunks.counts())["done"] < wanted:
            if counts["dead"]:
                raise RuntimeError(f"{counts['dead']} chunks were given up on")
            await asyncio.sleep(_POLL_S)


async def calls_per_call() -> list[Figure]:
    """LLM calls, tokens and cost of one call of 20 turns, of a user who is known already."""
    async with _world() as (world, values), ingesting(values) as worker:
        await world.say("ana", *_EARLIER, session="earlier")
        await _until_done(world, 1)
        before = await worker.until_healthy("llm")
        told = [*_CALL, *(_SMALL_TALK for _ in range(_TURNS - len(_CALL)))]
        await world.say("ana", *told, session="later")
        await _until_done(world, 2)
        after = await worker.until_healthy("llm")
        known = await world.facts("ana")
    spent = {
        name: after["details"][name] - before["details"][name] for name in ("calls", "input_tokens", "output_tokens")
    }
    if any("Leeds" in fact for fact in known) or len(known) != len(_CALL):
        raise RuntimeError(f"{len(known)} facts hold after the call; {len(_CALL)} should")
    detail = f"{spent['input_tokens']} tokens in, {spent['output_tokens']} out; 7 facts, 4 known or contradicted"
    return [Figure("llm_calls_per_20_turn_call", spent["calls"], 2, detail=detail)]


async def speed() -> list[Figure]:
    """Sessions a minute, by one worker and by two; both from the first to the last chunk that is done."""
    one, two = await _sessions_a_minute(1), await _sessions_a_minute(2)
    detail = f"{_SESSIONS} sessions of {_TURNS} turns with 7 facts, of as many users; {os.cpu_count()} cores"
    return [
        Figure("sessions_a_minute_one_worker", one, 60, better="higher", detail=detail),
        Figure("two_workers_over_one", two / one, 1.2, better="higher", detail=f"{two:.0f} a minute; {detail}"),
    ]


async def _sessions_a_minute(workers: int) -> float:
    async with _world() as (world, values), contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(ingesting(values)) for _ in range(workers)]
        for worker in started:
            await worker.until_healthy("graphiti")
        await _hold_sessions(world, 0, _SESSIONS)
        await _until_done(world, 1)
        done, begun = (await world.chunks.counts())["done"], time.perf_counter()
        await _until_done(world, _SESSIONS)
        return (_SESSIONS - done) / (time.perf_counter() - begun) * 60


async def leaks() -> list[Figure]:
    """What a worker's memory has grown by between its 100th session and its 500th."""
    async with _world() as (world, values), ingesting(values) as worker:
        await worker.until_healthy("graphiti")
        await _hold_sessions(world, 0, _LEAK_FROM)
        await _until_done(world, _LEAK_FROM)
        early = _rss_mb(worker)
        await _hold_sessions(world, _LEAK_FROM, _LEAK_SESSIONS - _LEAK_FROM)
        await _until_done(world, _LEAK_SESSIONS)
        late = _rss_mb(worker)
        statuses = await world.chunks.statuses(state=ChunkState.DEAD, limit=1)
        if statuses:
            raise RuntimeError("a chunk was given up on")
    detail = f"{early:.0f} MB after {_LEAK_FROM} sessions, {late:.0f} MB after {_LEAK_SESSIONS}"
    return [Figure("ingestion_worker_growth_mb", late - early, 15, unit="MB", detail=detail)]


def _rss_mb(worker: IngestProcess) -> float:
    return float(psutil.Process(worker.pid).memory_info().rss) / _MB
