"""P-durable before anybody knows who is calling: a call that is killed, and whose turns are the caller's afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory.models import MemoryEntry, Scope
from memory.stores.redis import RedisSessionStore
from tests.integration.unknown_caller_child import ROOM, turn_text
from tests.support.outages import spool_files
from tests.support.redis_server import RedisServer

NUMBER = "+15550107777"
CALLER = Scope(org_id="default", agent_id="assistant", user_id=NUMBER)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisSessionStore]:
    opened = await RedisSessionStore.connect(server.url())
    yield opened
    await opened.aclose()


async def call(server: RedisServer, turns: int, number: str = "") -> int:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.unknown_caller_child", str(turns), number),
        # Nobody is sure enough for recall: its host is not what is tested.
        env={**os.environ, "REDIS_URL": server.url(), "MEMORY_RECALL_ASSURANCE": "verified"},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        _, complaints = await child.communicate()
    code = child.returncode
    assert code in (0, -signal.SIGKILL), complaints.decode()
    return int(code or 0)


@pytest.mark.promise("P-durable")
@pytest.mark.case("L01")
@pytest.mark.parametrize("turns", [1, 3])
async def test_P_durable_L01_a_call_killed_before_its_caller_is_known_keeps_every_turn_for_them(
    turns: int, server: RedisServer, store: RedisSessionStore, data_dir: Path
) -> None:
    assert await call(server, turns) == -signal.SIGKILL
    assert await store.pending(limit=9) == []  # it is nobody's yet
    assert len(spool_files(data_dir)) == 1

    assert await call(server, 1, NUMBER) == 0
    records = [item.record for item in (await store.read(CALLER, after="", limit=99)).records]
    entries = [record for record in records if isinstance(record, MemoryEntry)]
    said = [entry.content for entry in entries if entry.role == "user"]
    assert said == [*(turn_text(number) for number in range(1, turns + 1)), "said later, 1"]
    assert {entry.session_id for entry in entries} == {ROOM}
    assert {entry.user_id for entry in entries} == {NUMBER}
    assert await store.pending(limit=9) == [CALLER]
    assert spool_files(data_dir) == []
