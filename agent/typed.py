"""What a call's user types (``lk.chat``), handed to the session in order, once the session knows whose call it is.

LiveKit's own handler drops what comes before the agent has seen its sender, which takes up to 3 s for a client without
a microphone, or one that has just come back. Here it waits. Above: job. Below: LiveKit's room.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass

from livekit import rtc
from livekit.agents import AgentSession, room_io
from livekit.agents.types import TOPIC_CHAT

from memory.clock import Clock, SystemClock

logger = logging.getLogger("agent")

CHARS_MAX = 100_000  # of one message
WAITING_MAX = 64  # messages
READ_S = 10.0
LINK_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Message:
    identity: str
    text: asyncio.Task[str]
    info: rtc.TextStreamInfo


class TypedInput:
    """Takes what is typed from the moment it is made; ``start`` once the session has started; close with ``aclose``."""

    def __init__(self, room: rtc.Room, session: AgentSession[None], clock: Clock | None = None) -> None:
        self._session = session
        self._clock = clock or SystemClock()
        self._answer = room_io.TextInputOptions().text_input_cb
        self._waiting: asyncio.Queue[_Message] = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        room.register_text_stream_handler(TOPIC_CHAT, self._on_stream)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agent.typed")

    async def aclose(self) -> None:
        """Take no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait().text.cancel()

    def _on_stream(self, reader: rtc.TextStreamReader, identity: str) -> None:
        if self._waiting.full():
            logger.warning("a typed message is left out: %d wait already", WAITING_MAX)
            return
        # Read at once: the stream's pieces are kept until they are.
        self._waiting.put_nowait(_Message(identity, asyncio.create_task(_read(reader)), reader.info))

    async def _run(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await self._take(message)
            except Exception as error:
                logger.warning("a typed message is left out (%s)", type(error).__name__)

    async def _take(self, message: _Message) -> None:
        participant = await self._user()
        if participant is None or participant.identity != message.identity:
            message.text.cancel()
            return  # of somebody else in the room, who may never come to an end, or nobody who is there any more
        async with asyncio.timeout(READ_S):
            text = (await message.text).strip()
        if not text:
            return
        event = room_io.TextInputEvent(text=text, info=message.info, participant=participant)
        answering = self._answer(self._session, event)
        if inspect.isawaitable(answering):
            await answering

    async def _user(self) -> rtc.RemoteParticipant | None:
        """Whose call it is; waits for it to be seen."""
        until_s = self._clock.monotonic() + LINK_S
        while (participant := self._session.room_io.linked_participant) is None:
            if self._clock.monotonic() > until_s:
                return None
            await self._clock.sleep(_POLL_S)  # livekit has no event for it
        return participant


async def _read(reader: rtc.TextStreamReader) -> str:
    text = ""
    async for piece in reader:
        text += piece
        if len(text) > CHARS_MAX:
            raise ValueError("a typed message is too long")
    return text
