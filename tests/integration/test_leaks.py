"""S08: calls that come and go in one process leave nothing behind: no memory, no file or socket, no task."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

import psutil
import pytest
from livekit.agents import Agent

from memory.plugin import attach
from memory.settings import Settings, load_settings
from tests.support.redis_server import RedisServer
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import ManualOutput, SilentMicrophone

WARM = 50  # calls after which nothing may grow any more
RSS_BYTES_MAX = 12_000_000  # of growth; an interpreter's own comes and goes by as much
SESSIONS = 8  # at most so many sessions' ids: the store's own growth is not what is looked at

pytestmark = pytest.mark.timeout(600)


async def call(settings: Settings, number: int) -> None:
    session, agent = new_session(ScriptedLLM()), Agent(instructions=INSTRUCTIONS)
    session.input.audio, session.output.audio = SilentMicrophone(), ManualOutput(instant=True)
    memory: Any = attach(session, agent, user_id="ana", session_id=f"call-{number % SESSIONS}", settings=settings)
    await session.start(agent, record=False)
    await session.run(user_input=f"this is call {number}")
    assert await memory.flush(30)
    await session.aclose()
    await memory.aclose()


def held() -> tuple[int, int, int]:
    """Tasks, open files and sockets, bytes of memory."""
    gc.collect()
    process = psutil.Process(os.getpid())
    return len(asyncio.all_tasks()), process.num_fds(), process.memory_info().rss


async def calls(settings: Settings, count: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """What is held after ``WARM`` calls, and after ``count`` more."""
    for number in range(WARM):
        await call(settings, number)
    before = held()
    for number in range(count):
        await call(settings, number)
    return before, held()


@pytest.mark.case("S08")
@pytest.mark.parametrize("count", [100, pytest.param(450, marks=pytest.mark.long)])
async def test_S08_calls_that_have_ended_leave_nothing_behind(
    count: int, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", server.url())
    monkeypatch.setenv("MEMORY_RECALL_ASSURANCE", "verified")  # nobody is sure enough: no recall host
    before, after = await calls(load_settings(), count)
    assert after[0] <= before[0], "tasks"
    assert after[1] <= before[1], "files and sockets"
    assert after[2] <= before[2] + RSS_BYTES_MAX, "memory"
