"""How soon a running call sees a new fact, and what a profile of many facts costs: real stores, host and model."""

from __future__ import annotations

import asyncio
import os
import time
from typing import cast

from memory.limits import PROFILE_BUDGET_MS, PROFILE_LIMIT
from memory.models import Scope
from memory.retrieval.client import HostRetriever
from memory.stores.sql import SqlArchive
from memory.wiring import Backend
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.stores import backend, scope
from tests.support.learning import Learner

STORED_FACTS = 10_000
_AT_ONCE = 500  # facts of one commit
_ROUNDS = 60
_LOAD_S = 240.0
_WHO = ("the user", "a sister of the user", "the neighbour", "the landlord of the user", "a friend of the user")
_DID = ("ordered", "sent back", "prefers", "paid for", "has lost", "owns", "complained about", "booked")
_WHAT = ("the garden gate", "a parcel", "the blue chair", "two tickets", "an invoice", "green tea", "the spare keys")


async def facts() -> list[Figure]:
    """Visibility after ingestion's commit, and the profile, both of a user of whom ``STORED_FACTS`` facts are known."""
    async with backend() as opened:
        owner = scope("facts")
        learner = Learner(cast("SqlArchive", await opened.archive()), owner)
        await _fill(opened, learner, owner)
        profiles = [await _profile_ms(opened, owner) for _ in range(_ROUNDS)]
        waits = [await _visible_ms(opened, learner, owner) for _ in range(_ROUNDS)]
    known = f"{_ROUNDS} times, {STORED_FACTS} facts with vectors"
    return [
        Figure(
            "fact_visible_after_commit_p95_ms",
            percentile(waits, 0.95),
            300,
            unit="ms",
            detail=f"{known}, from the announcement until a recall has told it; p50 {percentile(waits, 0.5):.1f} ms",
        ),
        Figure(
            "profile_p95_ms",
            percentile(profiles, 0.95),
            50,
            unit="ms",
            detail=f"{known}, through the host's socket; p50 {percentile(profiles, 0.5):.1f} ms",
        ),
    ]


async def _fill(opened: Backend, learner: Learner, owner: Scope) -> None:
    version = 0
    for start in range(0, STORED_FACTS, _AT_ONCE):
        version, _ = await learner.learn(*(_fact(number) for number in range(start, start + _AT_ONCE)))
    await opened.sessions.announce(owner, version=version)
    host = _host(opened)
    await host.warm(owner)
    async with asyncio.timeout(_LOAD_S):
        while (stats := await host.stats())["facts"] < STORED_FACTS or stats["missing_vectors"]:
            await asyncio.sleep(0.5)


def _fact(number: int) -> str:
    who, did, what = _WHO[number % 5], _DID[number // 5 % 8], _WHAT[number // 40 % 7]
    return f"{who.capitalize()} {did} {what}, note {number}"


async def _profile_ms(opened: Backend, owner: Scope) -> float:
    begun = time.perf_counter()
    made = await _host(opened).profile(owner, name="Ana", limit=PROFILE_LIMIT, budget_ms=PROFILE_BUDGET_MS)
    took_ms = (time.perf_counter() - begun) * 1e3
    if len(made.facts) < PROFILE_LIMIT or made.degraded:
        raise RuntimeError(f"a profile of {len(made.facts)} facts, without {made.degraded}")
    return took_ms


async def _visible_ms(opened: Backend, learner: Learner, owner: Scope) -> float:
    """From before the announcement of a fact that is committed until a recall of a running call has told it."""
    word = f"codeword{os.urandom(4).hex()}"
    version, _ = await learner.learn(f"The user said that the word of the day is {word}")
    begun = time.perf_counter()
    await opened.sessions.announce(owner, version=version)
    async with asyncio.timeout(10):
        while True:
            found = await _host(opened).recall(owner, f"what is my word {word}", limit=8, budget_ms=300)
            if any(word in fact.text for fact in found.facts):
                return (time.perf_counter() - begun) * 1e3


def _host(opened: Backend) -> HostRetriever:
    assert isinstance(opened.retriever, HostRetriever)
    return opened.retriever
