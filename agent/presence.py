"""Whether a call's user is in the room: who leaves may come back, such as a browser that is loaded anew.

LiveKit would end the session as soon as the user leaves, and leave a user who comes back to the same room without an
agent. Here the session goes on as long as the room is open (its own ``departure_timeout``), and at most for
``reconnect_s``. Who hangs up a phone, or never answers, is not waited for. Above: job. Below: answer, LiveKit's room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from livekit import rtc
from livekit.agents import AgentSession
from livekit.agents.job import DEFAULT_PARTICIPANT_KINDS

from agent.answer import SIP, is_over
from memory.clock import Clock, SystemClock

logger = logging.getLogger("agent")

_POLL_S = 0.05

End = Callable[[str], None]


class Presence:
    """Watches the user of one session that has started; ``end`` is called, once, when there is none any more.

    Close with ``aclose``.
    """

    def __init__(
        self,
        room: rtc.Room,
        session: AgentSession[None],
        reconnect_s: float,
        end: End,
        clock: Clock | None = None,
    ) -> None:
        self._room, self._session = room, session
        self._reconnect_s, self._end = reconnect_s, end
        self._clock = clock or SystemClock()
        self._user: str | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._linking = asyncio.create_task(self._link(), name="agent.presence")
        room.on("participant_disconnected", self._on_gone)
        room.on("participant_connected", self._on_came)
        room.on("participant_attributes_changed", self._on_change)

    @property
    def users_left(self) -> bool:
        """Whether anybody who isn't an agent is in the room."""
        return any(each.kind in DEFAULT_PARTICIPANT_KINDS for each in self._room.remote_participants.values())

    async def aclose(self) -> None:
        """Stop watching. Idempotent."""
        with contextlib.suppress(KeyError, ValueError):
            self._room.off("participant_disconnected", self._on_gone)
            self._room.off("participant_connected", self._on_came)
            self._room.off("participant_attributes_changed", self._on_change)
        for task in (self._linking, self._leaving):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _link(self) -> None:
        while (participant := self._session.room_io.linked_participant) is None:  # livekit has no event for it
            await self._clock.sleep(_POLL_S)
        self._user = participant.identity
        if is_over(participant):
            self._on_gone(participant)

    def _on_change(self, _: object, participant: rtc.RemoteParticipant) -> None:
        # The server says so long before the participant leaves where the other side has just vanished.
        if is_over(participant):
            self._on_gone(participant)

    def _on_gone(self, participant: rtc.RemoteParticipant) -> None:
        is_user = participant.kind in DEFAULT_PARTICIPANT_KINDS and self._user in (None, participant.identity)
        if is_user and self._leaving is None:
            self._user = participant.identity
            # Whoever took its place is there already, and may have asked something.
            if participant.disconnect_reason != rtc.DisconnectReason.DUPLICATE_IDENTITY:
                self._quiet()
            wait_s = 0.0 if participant.kind == SIP else self._reconnect_s
            self._leaving = asyncio.create_task(self._leave(wait_s), name="agent.leaving")

    def _on_came(self, participant: rtc.RemoteParticipant) -> None:
        if participant.identity == self._user and self._leaving is not None:
            logger.info("the user is back in the room")
            self._leaving.cancel()
            self._leaving = None

    def _quiet(self) -> None:
        """Nobody hears what is being said."""
        with contextlib.suppress(RuntimeError):  # uninterruptible, or the session is closing
            self._session.interrupt()

    async def _leave(self, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        self._end("the user has left")
