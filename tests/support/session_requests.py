"""Asks an agent's session over its room, as LiveKit's own tools do: who may, is told the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

from livekit.agents.voice.remote_session import RoomSessionTransport
from livekit.protocol.agent_pb import agent_session as wire

from tests.support.room_clients import RoomClient

ANSWER_S = 2.0


async def session_answers(client: RoomClient, agent: str) -> list[Any]:
    """What ``agent`` tells one who asks its session for the conversation, in ``ANSWER_S``: ``AgentSessionMessage``s."""
    transport = RoomSessionTransport(client.room, agent)
    await transport.start()
    answers: list[Any] = []
    try:
        request = wire.SessionRequest(request_id="1", get_chat_history=wire.SessionRequest.GetChatHistory())
        await transport.send_message(wire.AgentSessionMessage(request=request))
        async with asyncio.timeout(ANSWER_S):
            async for message in transport:
                answers.append(message)
    except TimeoutError:
        pass
    finally:
        await transport.close()
    return answers
