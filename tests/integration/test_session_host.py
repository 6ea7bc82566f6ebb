"""A session that serves its room, and one that does not, asked by a stranger: the control of the intruder's test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice import room_io

from tests.support import livekit_server
from tests.support.livekit_server import LiveKitServer
from tests.support.room_clients import in_room
from tests.support.scripted_llm import ScriptedLLM
from tests.support.session_requests import session_answers

SAID = "My bicycle is blue."


@pytest.fixture(scope="module")
def livekit() -> Iterator[LiveKitServer]:
    program = livekit_server.binary()
    if isinstance(program, str):
        pytest.skip(program)
    with livekit_server.running(program) as server:
        yield server


@contextlib.asynccontextmanager
async def agent_in(livekit: LiveKitServer, name: str, *, session_host: bool) -> AsyncIterator[AgentSession[Any]]:
    """An agent that was told ``SAID``, in the room ``name``."""
    room = rtc.Room()
    await room.connect(livekit.url, livekit.token("agent", name, kind="agent"))
    session: AgentSession[Any] = AgentSession(llm=ScriptedLLM(), vad=None, turn_handling={"turn_detection": "manual"})
    options = room_io.RoomOptions(audio_input=False, audio_output=False)
    try:
        await session.start(
            Agent(instructions="Be brief."), room=room, room_options=options, record=False, session_host=session_host
        )
        await session.run(user_input=SAID)
        yield session
    finally:
        await session.aclose()
        await room.disconnect()


@pytest.mark.parametrize("session_host", [True, False])
async def test_a_stranger_is_told_the_conversation_by_a_session_that_serves_its_room_and_by_no_other(
    livekit: LiveKitServer, session_host: bool
) -> None:
    name = f"served-{session_host}"
    async with asyncio.timeout(60), agent_in(livekit, name, session_host=session_host) as session:
        assert SAID in [message.text_content for message in session.history.messages()]
        async with in_room(livekit, name, "intruder", microphone=False) as intruder:
            answers = await session_answers(intruder, await intruder.agent())
    told = [str(answer.response.get_chat_history) for answer in answers if answer.HasField("response")]
    assert [SAID in text for text in told] == ([True] if session_host else [])
    assert session_host or answers == []
