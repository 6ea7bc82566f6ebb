"""What memory adds to a turn and to a job: paired in one process, 10,000 stored turns, real stores and model."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from memory.models import MemoryEntry, Scope
from memory.ports import LogRecord
from memory.retrieval.client import HostRetriever
from memory.wiring import Backend
from tests.benchmarks.conversation import USER
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.stores import backend

STORED_TURNS = 10_000
TURNS = 30
_OWNER = Scope(org_id="default", agent_id="assistant", user_id=USER)
_WHO = ("my sister", "the neighbour", "our manager", "the driver", "a friend from school", "the doctor", "my landlord")
_DID = ("asked about", "sent back", "forgot", "paid for", "painted", "repaired", "complained about", "ordered")
_WHAT = ("the garden gate", "a parcel", "the blue chair", "two tickets", "the invoice", "a picnic basket", "the keys")
_WHERE = ("on Elm Road", "at the clinic", "in the old office", "near the station", "in Lyon", "at the market")


async def turns() -> list[Figure]:
    """Time to the first token, RSS and loop stalls, with memory over without."""
    async with backend() as opened:
        await fill(opened)
        both = await _conversation(TURNS)
        plain = await _conversation(TURNS, "--plain")
    without, with_memory = both["times"]
    print(json.dumps({"counters": both["counters"]}), file=sys.stderr)  # noqa: T201
    return [
        _added("spoken_turn_adds_p95_ms", without, with_memory, "spoken", 0.95, 10),
        _added("spoken_turn_with_interims_adds_p95_ms", without, with_memory, "spoken_interims", 0.95, 10),
        _added("typed_turn_adds_p50_ms", without, with_memory, "typed", 0.5, 6),
        _added("typed_turn_adds_p95_ms", without, with_memory, "typed", 0.95, 12),
        Figure("job_rss_added_mb", both["rss_mb"] - plain["rss_mb"], 40, unit="MB", detail=_rss(both, plain)),
        Figure("loop_stall_added_p99_ms", both["stall_p99_ms"] - plain["stall_p99_ms"], 5, unit="ms"),
    ]


def _added(name: str, without: Any, with_memory: Any, kind: str, share: float, goal: float) -> Figure:
    base, more = percentile(without[kind], share), percentile(with_memory[kind], share)
    detail = f"{more:.1f} ms with, {base:.1f} ms without; {len(with_memory[kind])} turns of each, 300 ms LLM"
    return Figure(name, more - base, goal, unit="ms", detail=detail)


def _rss(both: dict[str, Any], plain: dict[str, Any]) -> str:
    return f"{both['rss_mb']:.0f} MB with memory and a second session, {plain['rss_mb']:.0f} MB with neither"


async def fill(opened: Backend) -> None:
    """``STORED_TURNS`` turns of the user in the archive, their index and vectors in the recall host."""
    archive = await opened.archive()
    records = [LogRecord(f"{n:016d}-000000", f"{n - 1:016d}-000000", _turn(n)) for n in range(1, STORED_TURNS + 1)]
    for first in range(0, len(records), 500):
        await archive.store(_OWNER, records[first : first + 500])
    assert isinstance(opened.retriever, HostRetriever)
    await opened.retriever.warm(_OWNER)
    async with asyncio.timeout(300):
        while not await _indexed(opened.retriever):
            await asyncio.sleep(0.5)


async def _indexed(retriever: HostRetriever) -> bool:
    stats = await retriever.stats()
    return int(stats.get("turns", 0)) >= STORED_TURNS and int(stats.get("missing_vectors", 1)) == 0


def _turn(number: int) -> MemoryEntry:
    pick = random.Random(number)
    text = (
        f"{pick.choice(_WHO)} {pick.choice(_DID)} {pick.choice(_WHAT)} {pick.choice(_WHERE)} at {number % 24} o'clock"
    )
    return MemoryEntry(
        id=f"bench-{number}",
        session_id=f"session-{number // 20}",
        role="user" if number % 2 else "assistant",
        content=text,
        mode="voice",
        language="en",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * number),
    )


async def _conversation(count: int, *flags: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.conversation", str(count), *flags, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(300):
        out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the conversation process ended with code {process.returncode}")
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report
