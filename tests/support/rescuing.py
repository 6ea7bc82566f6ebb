"""As much of LiveKit's server, and of what other workers leave behind, as tests of rescuing calls need."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace

from livekit import api
from livekit.agents.types import ATTRIBUTE_AGENT_NAME
from livekit.protocol import agent as protocol
from livekit.protocol import models

from agent.calls import HeldCall, LeftBehind
from agent.dispatch import Rescue
from agent.rescue import LostCall, Rescuer
from tests.support.recalls import ManualClock

Kind = models.ParticipantInfo.Kind
CALL = LostCall("room-1", "AJ_dead", "", '{"user_id": "ana"}', "", deaths=1)
USER = models.ParticipantInfo(identity="ana", kind=Kind.STANDARD)
GHOST = models.ParticipantInfo(identity="agent-AJ_dead", kind=Kind.AGENT, attributes={ATTRIBUTE_AGENT_NAME: ""})


def agent(job_id: str, name: str = "") -> models.ParticipantInfo:
    attributes = {ATTRIBUTE_AGENT_NAME: name}
    return models.ParticipantInfo(identity=f"agent-{job_id}", kind=Kind.AGENT, attributes=attributes)


def sent(dispatch_id: str, dead_job: str, count: int = 1, job_id: str = "") -> api.AgentDispatch:
    """A dispatch that a worker has made in a dead job's place; ``job_id``: whom LiveKit has under way for it."""
    made = api.AgentDispatch(id=dispatch_id, attributes=Rescue(dead_job, count).attributes())
    if job_id:
        made.state.jobs.append(protocol.Job(id=job_id, state=protocol.JobState(status=protocol.JS_RUNNING)))
    return made


@dataclass
class Server:
    """As much of LiveKit's API as is used: rooms, who is in them, and what a dispatch brings there."""

    people: dict[str, list[models.ParticipantInfo]] = field(default_factory=dict)
    arrives: bool = True
    takes: bool = False  # a worker takes what is dispatched, whether or not its agent arrives
    called_off: list[str] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)  # rooms of a node that is gone
    errors: list[Exception] = field(default_factory=list)
    dispatched: list[api.CreateAgentDispatchRequest] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    made: list[api.AgentDispatch] = field(default_factory=list)
    closed: bool = False

    @property
    def room(self) -> Server:
        return self

    @property
    def agent_dispatch(self) -> Server:
        return self

    async def list_participants(self, request: api.ListParticipantsRequest) -> api.ListParticipantsResponse:
        if self.errors:
            raise self.errors.pop(0)
        if request.room not in self.people:
            raise api.TwirpError(api.TwirpErrorCode.NOT_FOUND, "no such room", status=404)
        return api.ListParticipantsResponse(participants=self.people[request.room])

    async def list_rooms(self, _: api.ListRoomsRequest) -> api.ListRoomsResponse:
        return api.ListRoomsResponse(rooms=[models.Room(name=name, sid=f"RM_{name}") for name in self.people])

    async def remove_participant(self, request: api.RoomParticipantIdentity) -> None:
        self.removed.append(request.identity)
        people = self.people[request.room]
        if not any(each.identity == request.identity for each in people):
            raise api.TwirpError(api.TwirpErrorCode.NOT_FOUND, "no such participant", status=404)
        self.people[request.room] = [each for each in people if each.identity != request.identity]

    async def create_dispatch(self, request: api.CreateAgentDispatchRequest) -> api.AgentDispatch:
        self.dispatched.append(request)
        job_id = f"AJ_{len(self.dispatched)}"
        made = api.AgentDispatch(id=f"AD_{job_id}", agent_name=request.agent_name, attributes=request.attributes)
        if self.takes:
            made.state.jobs.append(protocol.Job(id=job_id, state=protocol.JobState(status=protocol.JS_RUNNING)))
        self.made.append(made)
        if self.arrives:
            self.people[request.room].append(agent(job_id, request.agent_name))
        return made

    async def delete_dispatch(self, dispatch_id: str, _: str) -> None:
        self.called_off.append(dispatch_id)
        self.made = [each for each in self.made if each.id != dispatch_id]

    async def list_dispatch(self, room: str) -> list[api.AgentDispatch]:
        if room in self.unreachable:
            raise api.TwirpError(api.TwirpErrorCode.UNAVAILABLE, "its node is gone", status=503)
        return [each for each in self.made if each.room in ("", room)]

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Registry:
    """What this worker holds, and what others have left behind."""

    clock: ManualClock
    left: list[LeftBehind] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    unfinished: set[str] = field(default_factory=set)
    forgotten: list[tuple[str, list[str], bool]] = field(default_factory=list)
    error: Exception | None = None
    blind: Exception | None = None  # why the locks of this machine's workers can't be looked at

    async def left_behind(self) -> list[LeftBehind]:
        if self.error is not None:
            raise self.error
        return self.left

    async def death_within(self, seconds: float) -> None:
        if self.blind is not None:
            raise self.blind
        await self.clock.sleep(seconds)

    async def take(self, call: HeldCall, *, of: str) -> bool:
        assert of in {each.worker for each in self.left if call in each.calls}
        new = call.job_id not in self.taken
        self.taken.add(call.job_id)
        if new:
            self.held.add(call.job_id)
        return new

    def holds(self, job_id: str) -> bool:
        return job_id in self.held

    def remove(self, job_id: str) -> None:
        self.held.discard(job_id)

    def leave(self, job_ids: Iterable[str]) -> None:
        self.unfinished.update(job_ids)

    async def forget(self, worker: str, job_ids: list[str], *, whole: bool) -> None:
        self.forgotten.append((worker, job_ids, whole))
        self.left = [
            replace(each, calls=[call for call in each.calls if call.job_id not in job_ids])
            if each.worker == worker
            else each
            for each in self.left
            if not (whole and each.worker == worker)
        ]


@dataclass
class Desk:
    server: Server
    registry: Registry
    clock: ManualClock
    rescuer: Rescuer
    draining: bool = False

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.25)):
            await self.clock.advance(0.25)


@contextlib.asynccontextmanager
async def open_desk(server: Server | None = None) -> AsyncIterator[Desk]:
    """A rescuer, on a server and a registry that are the test's."""
    clock = ManualClock()
    server, registry = server or Server(), Registry(clock)
    rescuer = Rescuer(server, registry, clock, draining=lambda: desk.draining)  # type: ignore[arg-type] # as much of both as is used
    desk = Desk(server, registry, clock, rescuer)
    yield desk
    await rescuer.aclose()
    assert server.closed
