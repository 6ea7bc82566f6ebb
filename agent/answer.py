"""Whether a phone call has been answered: on an outbound call the agent is in the room while it still rings.

LiveKit's SIP server puts the call's state into an attribute of the participant. Others, such as a browser, have none,
and are there as soon as they have come. Above: job, ready, presence. Below: LiveKit's room.
"""

from __future__ import annotations

import asyncio
import logging

from livekit import rtc
from livekit.agents import AgentSession

from memory.backlog import finished_within
from memory.clock import Clock, SystemClock

logger = logging.getLogger("agent")

SIP = rtc.ParticipantKind.PARTICIPANT_KIND_SIP
CALL_STATUS = "sip.callStatus"
ANSWER_S_MAX = 120.0  # livekit-sip itself gives up sooner; a state that stays as it is must not silence the agent

_ACTIVE = "active"
_OVER = ("hangup", "failed")


def is_over(participant: rtc.Participant) -> bool:
    """Whether this is a phone call that was hung up, or never came about."""
    return participant.kind == SIP and participant.attributes.get(CALL_STATUS) in _OVER


def is_unanswered(participant: rtc.Participant) -> bool:
    """Whether this is a phone call in which nobody listens: not yet, or no more."""
    return participant.kind == SIP and participant.attributes.get(CALL_STATUS, _ACTIVE) != _ACTIVE


class Answer:
    """What the first word of one session waits for: that the callee has answered. Belongs to one event loop."""

    def __init__(self, room: rtc.Room, session: AgentSession[None], clock: Clock | None = None) -> None:
        self._room, self._session = room, session
        self._clock = clock or SystemClock()
        self._answered = False

    async def wait(self) -> None:
        """Return once the session's user can hear: at once, but on a phone that still rings; ``ANSWER_S_MAX`` at most.

        Of a call that is over it is not told here: its session ends (``presence``).
        """
        if not self._answered and not await finished_within(self._picked_up(), self._clock, ANSWER_S_MAX):
            logger.warning("a call was not said to be answered within %g s; the agent speaks", ANSWER_S_MAX)
        self._answered = True

    async def _picked_up(self) -> None:
        changed = asyncio.Event()

        def on_change(*_: object) -> None:
            changed.set()

        self._room.on("participant_attributes_changed", on_change)
        try:
            while self._rings():
                changed.clear()
                await changed.wait()
        finally:
            self._room.off("participant_attributes_changed", on_change)

    def _rings(self) -> bool:
        linked = self._session.room_io.linked_participant
        callees = [linked] if linked is not None else [*self._room.remote_participants.values()]
        return any(map(is_unanswered, callees))
