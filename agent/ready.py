"""Keeps an agent from speaking before anybody can hear it, and from being silenced for good by an interruption then.

LiveKit's room output waits, inside the task that hands it sound, for the user's client to subscribe. Interrupting that
task cancels the wait itself, for all speech to come: who types or speaks at once would never get an answer. Here the
wait is made before the sound gets there, where an interruption cancels nothing but itself; and so is the wait for who
is called up to answer the phone.
Above: job. Below: livekit's outputs. The former can go when livekit-agents shields that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from livekit import rtc
from livekit.agents import AgentSession, ConversationItemAddedEvent
from livekit.agents.voice import io

Answered = Callable[[], Awaitable[None]]


def keep_audible(session: AgentSession[Any], answered: Answered | None = None) -> None:
    """Guard the session's room output; call it before the session starts.

    ``answered`` returns once the user can hear (``Answer.wait``); nothing is said before.
    """

    def on_item(event: ConversationItemAddedEvent) -> None:
        # The first agent's "handoff" is told when the outputs are there, and nothing was said yet.
        if event.item.type != "agent_handoff":
            return
        session.off("conversation_item_added", on_item)
        output, subscribed = session.output.audio, _subscribed(session)
        if output is not None and subscribed is not None:
            session.output.audio = _AfterSubscription(output, subscribed, answered)

    session.on("conversation_item_added", on_item)


def _subscribed(session: AgentSession[Any]) -> asyncio.Future[None] | None:
    try:
        return session.room_io.subscribed_fut
    except RuntimeError:  # in no room
        return None


class _AfterSubscription(io.AudioOutput):
    """Hands everything on, the first sound not before ``subscribed`` and ``answered``."""

    def __init__(
        self, output: io.AudioOutput, subscribed: asyncio.Future[None], answered: Answered | None = None
    ) -> None:
        super().__init__(
            label="AfterSubscription",
            next_in_chain=output,
            capabilities=io.AudioOutputCapabilities(pause=True),
            sample_rate=output.sample_rate,
        )
        self._subscribed, self._answered = subscribed, answered

    @property
    def _below(self) -> io.AudioOutput:
        assert self.next_in_chain is not None  # not always the output itself: livekit may put one between
        return self.next_in_chain

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        if not self._subscribed.done():
            await asyncio.shield(self._subscribed)
        if self._answered is not None:
            await self._answered()
        # The output below first: cancelled, it must not be waited for as if it had taken the frame.
        await self._below.capture_frame(frame)
        await super().capture_frame(frame)
        # Speech that is there as a whole would else be taken as a whole before its first frame is played.
        await asyncio.sleep(0)

    def flush(self) -> None:
        super().flush()
        self._below.flush()

    def clear_buffer(self) -> None:
        self._below.clear_buffer()
