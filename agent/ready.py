"""Keeps an agent from falling silent for good when it is interrupted before anybody could hear it.

LiveKit's room output waits, inside the task that hands it sound, for the user's client to subscribe. Interrupting that
task cancels the wait itself, for all speech to come: who types or speaks at once would never get an answer. Here the
wait is made before the sound gets there, where an interruption cancels nothing but itself.
Above: job. Below: livekit's outputs. Can go when livekit-agents shields that wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

from livekit import rtc
from livekit.agents import AgentSession, ConversationItemAddedEvent
from livekit.agents.voice import io


def keep_audible(session: AgentSession[Any]) -> None:
    """Guard the session's room output; call it before the session starts."""

    def on_item(event: ConversationItemAddedEvent) -> None:
        # The first agent's "handoff" is told when the outputs are there, and nothing was said yet.
        if event.item.type != "agent_handoff":
            return
        session.off("conversation_item_added", on_item)
        output, subscribed = session.output.audio, _subscribed(session)
        if output is not None and subscribed is not None:
            session.output.audio = _AfterSubscription(output, subscribed)

    session.on("conversation_item_added", on_item)


def _subscribed(session: AgentSession[Any]) -> asyncio.Future[None] | None:
    try:
        return session.room_io.subscribed_fut
    except RuntimeError:  # in no room
        return None


class _AfterSubscription(io.AudioOutput):
    """Hands everything on, the first sound not before ``subscribed``."""

    def __init__(self, output: io.AudioOutput, subscribed: asyncio.Future[None]) -> None:
        super().__init__(
            label="AfterSubscription",
            next_in_chain=output,
            capabilities=io.AudioOutputCapabilities(pause=True),
            sample_rate=output.sample_rate,
        )
        self._subscribed = subscribed

    @property
    def _below(self) -> io.AudioOutput:
        assert self.next_in_chain is not None  # not always the output itself: livekit may put one between
        return self.next_in_chain

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        if not self._subscribed.done():
            await asyncio.shield(self._subscribed)
        # The output below first: cancelled, it must not be waited for as if it had taken the frame.
        await self._below.capture_frame(frame)
        await super().capture_frame(frame)

    def flush(self) -> None:
        super().flush()
        self._below.flush()

    def clear_buffer(self) -> None:
        self._below.clear_buffer()
