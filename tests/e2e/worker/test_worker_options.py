"""A call is held as the settings say, or else its dispatch: seen by what a server of OpenAI's API is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from agent.assistant import INSTRUCTIONS
from memory.context.prompt import MEMORY_GUIDANCE
from tests.e2e.worker.conftest import Start
from tests.support.livekit_server import LiveKitServer
from tests.support.openai_server import Asked, OpenAIServer, serving
from tests.support.openai_voice import local_voice
from tests.support.room_clients import in_room

KEY = "sk-of-this-test"
SAID, REPLY = "My cat is called Biscuit.", "Very well."

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def models(livekit: LiveKitServer) -> Iterator[OpenAIServer]:
    """The server of the worker's models; gives every turn the same reply."""
    with serving(answer=lambda _: REPLY, key=KEY) as server:
        yield server


@contextlib.asynccontextmanager
async def working(start: Start, models: OpenAIServer, **settings: str) -> AsyncIterator[None]:
    """A worker with these settings, which asks these models for its calls only; the one that there is."""
    parts = {f"AGENT_{part}": "openai" for part in ("STT", "LLM", "TTS")}
    access = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": KEY}
    worker = start(**parts, **access, GRAPHITI_ENABLED="false", MEMORY_EMBEDDER="none", **settings)
    try:
        await worker.registered()
        yield
    finally:
        await asyncio.to_thread(worker.end)


class Call:
    """What the models were asked in a call of one turn."""

    def __init__(self, requests: list[Asked]) -> None:
        self._requests = requests

    def asked(self, endpoint: str, field: str) -> set[Any]:
        return {each.body.get(field) for each in self._requests if each.endpoint == endpoint}

    @property
    def prompts(self) -> set[tuple[str, ...]]:
        return {tuple(each.chat.texts("system")) for each in self._requests if each.endpoint == "chat"}


async def called(
    livekit: LiveKitServer, models: OpenAIServer, room: str, *, speaks: bool, greeting: str, own: object = None
) -> Call:
    """Hold a call: the greeting is read and heard, a sentence is said (or typed), the reply is read and heard.

    ``own``: the metadata of its dispatch.
    """
    first = len(models.requests)
    token = {"agent": json.dumps(own)} if own else {}
    async with in_room(livekit, room, f"user-of-{room}", **token) as client:
        await client.agent()
        assert (await client.reads()).text == greeting
        greeted_at = await client.hears_end(since=client.connected_at)
        if speaks:
            pcm = b"".join([piece async for piece in local_voice().speak(SAID)])
            await client.say(np.frombuffer(pcm, np.int16))
        else:
            await client.type(f"This is {room}.")
        assert (await client.reads(after=1)).text == REPLY
        await client.hears(since=greeted_at)
    return Call(models.requests[first:])


async def test_a_call_has_the_instructions_voice_and_language_of_the_settings_or_of_its_dispatch(
    livekit: LiveKitServer, start: Start, models: OpenAIServer
) -> None:
    greeting = "Welcome to the hat shop."
    wanted = {"AGENT_INSTRUCTIONS": "You sell hats.", "AGENT_VOICE": "nova", "AGENT_LANGUAGE": "en"}
    async with working(start, models, AGENT_GREETING=greeting, **wanted):
        call = await called(livekit, models, "as-set", speaks=True, greeting=greeting)
        assert call.prompts == {(f"You sell hats.\n\n{MEMORY_GUIDANCE}",)}
        assert call.asked("speech", "input") == {greeting, REPLY}
        assert call.asked("speech", "voice") == {"nova"}
        assert call.asked("transcriptions", "language") == {"en"}

        greeting = "Good shoes, good day."
        own = {"instructions": "You sell shoes.", "voice": "onyx", "language": "es", "memory": False}
        own |= {"greeting": greeting}
        call = await called(livekit, models, "of-its-own", speaks=True, greeting=greeting, own=own)
        assert call.prompts == {("You sell shoes.",)}
        assert call.asked("speech", "input") == {greeting, REPLY}
        assert call.asked("speech", "voice") == {"onyx"}
        assert call.asked("transcriptions", "language") == {"es"}
    assert {asked.key for asked in models.requests} == {KEY}


async def test_a_call_has_the_name_of_the_settings_or_of_its_dispatch_and_the_guidance_of_the_settings(
    livekit: LiveKitServer, start: Start, models: OpenAIServer
) -> None:
    greeting, guidance = "Good morning.", "You know this caller."
    wanted = {"AGENT_NAME": "Ines", "AGENT_GREETING": greeting, "AGENT_MEMORY_GUIDANCE": guidance}
    async with working(start, models, **wanted), asyncio.TaskGroup() as calls:
        for room, own in (("as-named", None), ("named-otto", {"name": "Otto"})):
            calls.create_task(called(livekit, models, room, speaks=False, greeting=greeting, own=own))
    assert {chat.last_user: chat.texts("system") for chat in models.chats} == {
        "This is as-named.": [f"{INSTRUCTIONS.format(name='Ines')}\n\n{guidance}"],
        "This is named-otto.": [f"{INSTRUCTIONS.format(name='Otto')}\n\n{guidance}"],
    }
