"""Whose call it is: what the program says, what the signed dispatch says, or the participant that the session is with.

Only what the server vouches for counts; a participant's own metadata and attributes are never looked at, except for
the ``sip.`` ones, which the server sets. Above: attached. Below: identity.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from livekit import rtc
from livekit.agents import AgentSession, JobContext

from memory.clock import Clock
from memory.errors import InvalidIdentity
from memory.identity import Assurance, Identity, identify, normalise_phone
from memory.limits import DISPLAY_NAME_CHARS_MAX, ID_CHARS_MAX
from memory.models import Scope
from memory.settings import Settings

logger = logging.getLogger("memory.plugin")

SIP_ATTRIBUTES_S = 2.0  # they may come after the participant
CONSOLE_USER = "console"  # whoever sits at the terminal
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Given:
    """What the program or the dispatch says about the user; ``None`` where it says nothing."""

    user_id: str | None = None
    org_id: str | None = None
    agent_id: str | None = None
    assurance: Assurance | None = None

    def filled(self, other: Given) -> Given:
        """With what ``other`` says where this says nothing."""
        gaps = {name: getattr(other, name) for name in self.__slots__ if getattr(self, name) is None}
        return replace(self, **gaps)


@dataclass(frozen=True, slots=True)
class Caller:
    """The user, and the scope of what is remembered of them."""

    identity: Identity
    scope: Scope


def from_dispatch(ctx: JobContext | None, region: str | None = None) -> Given:
    """``user_id``, ``org_id`` and ``agent_id`` of the job's metadata, if it is a JSON object: a dispatch is signed.

    ``phone`` in place of ``user_id`` is a number in any spelling; ``region`` completes one without a country's code.
    """
    found = _metadata(ctx)
    user_id, phone = _id(found, "user_id"), found.get("phone")
    if user_id is None and isinstance(phone, str):
        user_id = normalise_phone(phone, region)
    return Given(user_id, _id(found, "org_id"), _id(found, "agent_id"))


def session_id_of(ctx: JobContext | None) -> str | None:
    """``named_session``, else the room's server-made id; never its name, which holds the caller's number on inbound
    calls."""
    if ctx is None or ctx.is_fake_job():
        return None
    return named_session(ctx) or ctx.job.room.sid or None


def named_session(ctx: JobContext | None) -> str | None:
    """``session_id`` of the job's metadata: an app's own session, which may go on in several rooms."""
    return _id(_metadata(ctx), "session_id")


def _metadata(ctx: JobContext | None) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(ctx.job.metadata) if ctx is not None and ctx.job.metadata else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _id(found: Mapping[str, Any], name: str) -> str | None:
    text = found.get(name)
    if text is None or text == "":
        return None
    if isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= ID_CHARS_MAX:
        return text
    logger.warning("%s of the job's metadata is left out: it must be plain text, %d characters", name, ID_CHARS_MAX)
    return None


class CallerFinder:
    """Finds the caller of one session. ``started`` is set once the session has its inputs and outputs."""

    def __init__(
        self, session: AgentSession[Any], ctx: JobContext | None, settings: Settings, clock: Clock, given: Given
    ) -> None:
        self._session = session
        self._ctx = ctx
        self._settings = settings
        self._clock = clock
        self._given = given.filled(from_dispatch(ctx, settings.phone_region))
        self.started = asyncio.Event()

    async def find(self, session_id: str, seen: Callable[[Scope], None] = lambda _: None) -> Caller:
        """The caller, once it is known: at once, or when a participant has joined. An anonymous one's memory is of
        this session and this participant alone: another withheld number in the same room is somebody else.

        ``seen`` is told whose turns they are until then, where that may take its time: the session's, later those of
        the participant in it.
        """

        def nobodys(participant_id: str) -> Scope:
            return self._scope("/".join(filter(None, (session_id, participant_id))), kind="session")

        identity, participant_id = await self._identity(lambda participant_id: seen(nobodys(participant_id)))
        if identity.user_id is None:
            return Caller(identity, nobodys(participant_id))
        return Caller(identity, self._scope(identity.user_id, kind="user"))

    def _scope(self, user_id: str, *, kind: Literal["user", "session"]) -> Scope:
        org_id = self._given.org_id or self._settings.org_id
        agent_id = self._given.agent_id or self._settings.agent_id
        return Scope(org_id=org_id, agent_id=agent_id, user_id=user_id, kind=kind)

    async def _identity(self, seen: Callable[[str], None]) -> tuple[Identity, str]:
        """Who it is, and the server-made id of the participant that says so, if one does."""
        if self._given.user_id is not None:
            sure = self._given.assurance
            return Identity(self._given.user_id, Assurance.SIGNED if sure is None else sure), ""
        if self._at_a_terminal():
            return Identity(CONSOLE_USER, Assurance.SIGNED), ""
        seen("")
        participant = await self._participant()
        if participant is None:
            return Identity(None, Assurance.ANONYMOUS), ""
        seen(participant.sid)
        identity = await self._identified(participant)
        assurance = self._given.assurance
        return identity if assurance is None else replace(identity, assurance=assurance), participant.sid

    def _at_a_terminal(self) -> bool:
        # In console mode the room is a mock, whose participant's attributes are true whatever they are asked for.
        return self._ctx is not None and self._ctx.is_fake_job() and not issubclass(type(self._ctx.room), rtc.Room)

    async def _participant(self) -> rtc.RemoteParticipant | None:
        """The one participant that the session listens to, if it is in a room."""
        await self.started.wait()
        try:
            room_io = self._session.room_io
        except RuntimeError:
            return await self._ctx.wait_for_participant() if self._ctx is not None else None
        while (participant := room_io.linked_participant) is None:  # livekit has no event for it
            await self._clock.sleep(_POLL_S)
        return participant

    async def _identified(self, participant: rtc.RemoteParticipant) -> Identity:
        is_sip = participant.kind == rtc.ParticipantKind.PARTICIPANT_KIND_SIP
        until_s = self._clock.monotonic() + SIP_ATTRIBUTES_S
        while is_sip and "sip.phoneNumber" not in participant.attributes and self._clock.monotonic() < until_s:
            await self._clock.sleep(_POLL_S)
        try:
            identity = identify(
                participant.identity,
                is_sip=is_sip,
                attributes=participant.attributes,
                region=self._settings.phone_region,
            )
            # A phone's name is made of its number. Whoever has chosen another name for themselves gains nothing by it.
            return identity if is_sip else replace(identity, name=participant.name[:DISPLAY_NAME_CHARS_MAX] or None)
        except InvalidIdentity:
            return Identity(None, Assurance.ANONYMOUS)
