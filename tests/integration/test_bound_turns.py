"""Turns of a caller who becomes known, by a process killed at every step of it: one's alone, and deleted with them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory.clock import SystemClock
from memory.counters import Counters
from memory.limits import SPOOL_UNBOUND_S
from memory.models import MemoryEntry, Scope
from memory.replay import replay_left
from memory.retrieval.engine import RecallEngine
from memory.service import UnifiedMemoryService
from memory.spool import Spool
from memory.stores.redis import RedisSessionStore
from memory.wiring import Archive, Backend
from tests.integration.bound_turns_child import TURNS, nobody, said, user
from tests.support import archives
from tests.support.redis_server import RedisServer
from tests.support.services import archive_all

STEPS_MAX = 40

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def backend(server: RedisServer, data_dir: Path) -> AsyncIterator[Backend]:
    """A real Redis, a real SQLite, the real index, and the spool."""
    store = await RedisSessionStore.connect(server.url())
    async with archives.opened(archives.sqlite_url(data_dir)) as archive:

        async def opened() -> Archive:
            return archive

        engine = RecallEngine(log=store, archive=archive, embedder=None, clock=SystemClock())
        yield Backend(store, engine, opened, spool=Spool(data_dir))
        await engine.aclose()
    await store.aclose()


async def call(name: str, killed_before_step: int) -> bool:
    """Whether the caller's turns were bound before the call could be killed."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.bound_turns_child", name, str(killed_before_step)),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, complaints = await child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), complaints.decode()
    return child.returncode == 0


async def replayed(backend: Backend) -> None:
    """Nobody goes on with the call: what it has left is stored once its time is over, and archived."""
    spool = backend.spool
    assert spool is not None
    old = time.time() - SPOOL_UNBOUND_S - 1
    for path in spool.files():
        os.utime(path, (old, old))
    await replay_left(spool, backend.sessions, Counters(), SystemClock())
    assert spool.files() == []
    await archive_all(backend)


async def archived(backend: Backend, scope: Scope) -> list[str]:
    records = [item.record for item in await (await backend.archive()).read(scope, after=0, limit=500)]
    assert all(record.user_id == (scope.user_id if scope.kind == "user" else "") for record in records)
    return [record.content for record in records if isinstance(record, MemoryEntry)]


async def recalled(backend: Backend, scope: Scope, query: str) -> list[str]:
    assert backend.retriever is not None
    found = await backend.retriever.recall(scope, query, limit=9, budget_ms=60_000)
    return [passage.text for passage in found.passages]


@pytest.mark.promise("P-isolated")
@pytest.mark.promise("P-erased")
async def test_P_isolated_P_erased_turns_are_one_owners_alone_wherever_their_process_was_killed(
    backend: Backend, data_dir: Path
) -> None:
    service = UnifiedMemoryService(backend=backend, org_id="acme", agent_id="desk")
    owners: list[str] = []
    bound = False
    while not bound:
        name = f"ana{len(owners)}"
        bound = await call(name, len(owners))
        await replayed(backend)
        theirs, nobodys = [await archived(backend, scope) for scope in (user(name), nobody(name))]
        everything = [said(name, number) for number in range(TURNS)]
        assert (theirs, nobodys) in ((everything, []), ([], everything)), f"killed before step {len(owners)}"
        owners.append("user" if theirs else "nobody")
        history = await service.get_history(f"call-{name}", TURNS, user_id=name if theirs else None)
        assert [entry.content for entry in history] == everything
        found = await recalled(backend, user(name), said(name, 7))
        assert bool(found) == bool(theirs)
        assert len(set(found)) == len(found)

        assert bool(await service.delete_user_memory(name, "all")) == bool(theirs)
        assert await archived(backend, user(name)) == await recalled(backend, user(name), said(name, 7)) == []
        if theirs:
            assert await service.get_history(f"call-{name}", TURNS, user_id=name) == []
            assert await recalled(backend, nobody(name), said(name, 7)) == []
    assert owners == sorted(owners)  # nobody's at first, then the user's
    assert set(owners) == {"nobody", "user"}
    assert len(owners) <= STEPS_MAX


@pytest.mark.promise("P-erased")
async def test_P_erased_nothing_of_a_call_killed_at_any_step_comes_from_its_files_after_an_erasure(
    backend: Backend, data_dir: Path
) -> None:
    service = UnifiedMemoryService(backend=backend, org_id="acme", agent_id="desk")
    spool, bound, step = Spool(data_dir), False, 0
    while not bound:
        name = f"ben{step}"
        bound = await call(name, step)
        theirs = bool(spool.files(user(name)))
        assert bool(await service.delete_user_memory(name, "all")) == theirs
        left = b"".join(path.read_bytes() for path in spool.files())
        await replayed(backend)
        assert await archived(backend, user(name)) == []
        if theirs:
            assert said(name, 7).encode() not in left
            assert await archived(backend, nobody(name)) == []
        else:
            assert len(await archived(backend, nobody(name))) == TURNS
        step += 1
    assert step <= STEPS_MAX
