"""A conversation of the agent whose models are all behind OpenAI's API: the product's own parts, without a room.

Settings come from the environment, as they do for users. Above: tests. Below: openai_server, agent, memory.plugin.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import livekit.agents
import numpy as np
import pytest
from livekit.agents import AgentSession, APIConnectOptions, CloseEvent, ErrorEvent, utils
from livekit.agents.voice.agent_session import SessionConnectOptions

import agent.models
from agent.assistant import Assistant
from agent.local.audio import WavMicrophone
from agent.local.models import LISTEN_RATE, TALK_RATE
from agent.local.wav import Floats, resample
from agent.models import build, new_session
from agent.settings import load
from memory.models import MemoryEntry
from memory.plugin import AttachedMemory, attach
from memory.wiring import Backend
from tests.support.openai_chat import ChatRequest
from tests.support.openai_server import OpenAIServer
from tests.support.openai_voice import local_voice
from tests.support.voice import ManualOutput, eventually

BLOCK = "<memory>"


def use(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Set what a user sets who has a model server: all three parts, and where it is."""
    parts = {f"AGENT_{part}": "openai" for part in ("STT", "LLM", "TTS")}
    for name, value in {**parts, "OPENAI_BASE_URL": server.url, **more}.items():
        monkeypatch.setenv(name, value)


def hurry(monkeypatch: pytest.MonkeyPatch, *, timeout_s: float = 10.0) -> None:
    """Let livekit retry as often as ever without its waits between, and end without waiting for last words."""
    quick = APIConnectOptions(retry_interval=0.0, timeout=timeout_s)
    options = SessionConnectOptions(stt_conn_options=quick, llm_conn_options=quick, tts_conn_options=quick)
    monkeypatch.setattr(livekit.agents, "AgentSession", functools.partial(AgentSession, conn_options=options))
    monkeypatch.setitem(agent.models._WITHOUT_ROOM, "session_close_transcript_timeout", 0.0)


@dataclass
class Talk:
    """A session that has started, and everything a test looks at."""

    session: AgentSession[None]
    memory: AttachedMemory
    backend: Backend
    server: OpenAIServer
    microphone: WavMicrophone
    output: ManualOutput
    errors: list[ErrorEvent] = field(default_factory=list)
    closed: list[CloseEvent] = field(default_factory=list)

    async def type(self, text: str) -> str:
        """The user types; returns the reply, "" where there is none, once it is over."""
        before = {item.id for item in self.session.history.items}
        await self.session.generate_reply(user_input=text).wait_for_playout()
        replies = [m for m in self.session.history.messages() if m.id not in before and m.role == "assistant"]
        return " ".join(message.text_content or "" for message in replies)

    async def say(self, text: str) -> None:
        """The user says it, and the reply to it was played."""
        before = len(self.output.played)
        self.microphone.play(await speech(text))
        await self.heard(before + 1)

    async def heard(self, number: int) -> None:
        """Return once so many replies and greetings were played, and the agent listens."""
        await eventually(lambda: len(self.output.played) >= number, "a spoken reply")
        await eventually(lambda: self.session.agent_state == "listening", "the end of a reply")

    async def entries(self) -> list[MemoryEntry]:
        """What is stored of this session, oldest first."""
        assert await self.memory.flush()
        return await self.backend.sessions.entries(self.memory.session_id, limit=1_000)

    async def stored(self) -> list[tuple[str, str]]:
        return [(entry.role, entry.content) for entry in await self.entries()]


@contextlib.asynccontextmanager
async def talk(
    server: OpenAIServer, backend: Backend, *, user_id: str = "ana", greeting: str | None = None, **attaching: Any
) -> AsyncIterator[Talk]:
    """A session of the product's models and agent, as the environment says, with the memory attached."""
    configuration = load()
    async with utils.http_context.open():
        models = build(configuration.agent, configuration.memory.data_dir, voice=True)
        session = new_session(models)
        microphone, output = WavMicrophone(), ManualOutput(instant=True)
        session.input.audio, session.output.audio = microphone, output
        assistant = Assistant(name=configuration.agent.name, greeting=greeting)
        memory = attach(session, assistant, user_id=user_id, backend=backend, **attaching)
        held = Talk(session, memory, backend, server, microphone, output)
        session.on("error", held.errors.append)
        session.on("close", held.closed.append)
        await session.start(assistant, record=False, session_host=False)
        try:
            yield held
        finally:
            microphone.close()
            await session.aclose()
            await memory.aclose()
            await models.aclose()


async def speech(text: str) -> Floats:
    """``text`` in the local talker's voice, as a microphone takes it."""
    pcm = b"".join([piece async for piece in local_voice().speak(text)])
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
    return resample(samples, TALK_RATE, LISTEN_RATE)


def user_blocks(request: ChatRequest) -> list[int]:
    """How many memory blocks there are in each message of the user."""
    return [text.count(BLOCK) for text in request.texts("user")]
