"""Goes on with calls whose job has died: LiveKit does not dispatch again by itself.

A job that died on this machine is known to be dead at once; it is taken out of its room, where it would stand for 20 s
as a ghost, and the same dispatch is made again. Of a machine that is gone, a worker's missing sign of life tells
(``calls``), and LiveKit has to have noticed as well: while the agent is still in the room nobody else comes into it.
Until an agent is back the call stays noted down as this worker's: should it die over that, another one goes on.
Above: worker. Below: calls, dispatch, LiveKit's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from livekit import api
from livekit.agents.types import ATTRIBUTE_AGENT_NAME
from livekit.protocol import agent as protocol
from livekit.protocol import models

from agent.calls import CallRegistry, HeldCall, LeftBehind
from agent.dispatch import Rescue
from memory.clock import Clock, SystemClock
from memory.errors import VoiceMemoryError

logger = logging.getLogger("agent")

PAUSES_S = (0.0, 1.0, 4.0, 10.0)  # before each attempt to bring an agent back
DEATHS_MAX = 5  # of one call's jobs; who lives for LASTING_S begins to count anew
LASTING_S = 120.0
ARRIVAL_S = 5.0
LAUNCH_S = 30.0  # for an agent that is on its way, such as where many calls are gone on with at once
SCAN_S = 2.5
RESCUES_AT_ONCE = 16
_POLL_S = 0.25
_API_TIMEOUT_S = 5.0
_ROOMS_MAX = 10_000

_USERS = (
    models.ParticipantInfo.Kind.STANDARD,
    models.ParticipantInfo.Kind.SIP,
    models.ParticipantInfo.Kind.CONNECTOR,
)
_FAULTS = (api.TwirpError, aiohttp.ClientError, VoiceMemoryError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class LostCall:
    """A call without its agent: where it is, and what the dispatch said that made the dead job."""

    room: str
    job_id: str
    agent_name: str
    metadata: str
    deployment: str
    deaths: int

    @property
    def identity(self) -> str:
        """What the dead job was called in the room, as livekit-agents names it."""
        return f"agent-{self.job_id}"


@dataclass(slots=True)
class _Case:
    """A call that is being seen to: its latest death, the jobs that have died in it, and the dispatches made for it and
    not called off.

    ``died``: there was a death since, such as of the job that was sent.
    """

    call: LostCall
    jobs: set[str]
    sent: list[str]
    died: bool = False


def open_api(url: str, key: str, secret: str) -> api.LiveKitAPI:
    """LiveKit's API with a deadline on each call."""
    return api.LiveKitAPI(url, key, secret, timeout=aiohttp.ClientTimeout(total=_API_TIMEOUT_S))


def lost(job: protocol.Job, *, lived_s: float) -> LostCall:
    """The call of a job that has died after ``lived_s``."""
    before = Rescue.of(job)
    deaths = before.count if before is not None and lived_s < LASTING_S else 0
    return LostCall(job.room.name, job.id, job.agent_name, job.metadata, job.deployment, deaths + 1)


class Rescuer:
    """Brings agents back into calls; nothing here raises. Belongs to one event loop. ``aclose`` closes ``lkapi`` too,
    whose calls must have a bound in time (``open_api``)."""

    def __init__(self, lkapi: api.LiveKitAPI, registry: CallRegistry | None, clock: Clock | None = None) -> None:
        self._api, self._registry = lkapi, registry
        self._clock = clock or SystemClock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cases: dict[tuple[str, str], _Case] = {}  # by room and agent's name
        self._slots = asyncio.Semaphore(RESCUES_AT_ONCE)

    def start(self) -> None:
        """From now on look for calls that other machines have left behind."""
        if self._registry is not None:
            self._later(self._watch(self._registry))

    def died(self, call: LostCall, *, sent: Iterable[str] = ()) -> None:
        """A job has ended as no job should. A call is seen to once at a time, however many have, and is held by this
        worker until that is done.

        ``sent``: the dispatches that another worker made in its place, and didn't live to look after.
        """
        if call.deaths > DEATHS_MAX:
            logger.error("a call's jobs have died %d times; it is given up (job %s)", call.deaths, call.job_id)
        place = (call.room, call.agent_name)
        if (case := self._cases.get(place)) is not None:
            case.call, case.died = replace(call, deaths=max(call.deaths, case.call.deaths)), True
            case.jobs.add(call.job_id)
            case.sent.extend(sent)
        elif call.deaths <= DEATHS_MAX:
            case = self._cases[place] = _Case(call, {call.job_id}, list(sent))
            self._later(self._see_to(place, case))
        else:
            self._let_go([call.job_id])

    def not_launched(self, job: protocol.Job) -> None:
        """This machine was given a job, and could start no process for it."""
        if Rescue.of(job) is None:
            self.died(lost(job, lived_s=0.0))
        else:  # who has sent it into a dead one's place is still waiting, and sends the next one: else there were two
            self._let_go([job.id])
            self._later(self._given_back(job))

    async def aclose(self) -> None:
        """Stop; what is half done is left to other workers. Idempotent."""
        if self._registry is not None:
            self._registry.leave({job for case in self._cases.values() for job in case.jobs})
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.aclose()

    def _let_go(self, jobs: Iterable[str]) -> None:
        if self._registry is not None:
            for job_id in jobs:
                self._registry.remove(job_id)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="agent.rescue")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_to(self, place: tuple[str, str], case: _Case) -> None:
        try:
            async with self._slots:
                while case.call.deaths <= DEATHS_MAX:
                    case.died = False
                    over = await self._rescued(case)
                    if not case.died:
                        if not over:
                            logger.error("no agent came back into a call; it is given up (job %s)", case.call.job_id)
                        break
            self._let_go(case.jobs)
        finally:
            del self._cases[place]

    async def _rescued(self, case: _Case) -> bool:
        """Whether nothing is left to be done. Not so, at once, where there was another death meanwhile."""
        for pause_s in PAUSES_S:
            if not case.died:
                await self._clock.sleep(pause_s)
            if case.died:
                return False
            try:
                if await self._attempted(case):
                    return True
            except _FAULTS as error:
                logger.warning("an agent could not be brought back (%s)", type(error).__name__)
        return False

    async def _attempted(self, case: _Case) -> bool:
        """Whether nothing is left to be done: an agent is there, or nobody who would want one."""
        call = case.call
        people = await self._people(call.room)
        if not any(is_user(each) for each in people):
            logger.info("a job died; nobody is left in its call (job %s)", call.job_id)
            return True
        if _answering(people, call):
            return True
        # Out with the ghost first: should it live after all, it must not talk beside its successor.
        await self._remove(call)
        while case.sent:  # nor must who comes after all talk beside who is sent now
            await self._call_off(call.room, case.sent[0])
            del case.sent[0]
        made = await self._api.agent_dispatch.create_dispatch(
            api.CreateAgentDispatchRequest(
                room=call.room,
                agent_name=call.agent_name,
                metadata=call.metadata,
                deployment=call.deployment,
                attributes=Rescue(call.job_id, call.deaths).attributes(),
            )
        )
        case.sent.append(made.id)
        logger.warning("a job died in a call; another one goes on with it (job %s)", call.job_id)
        return await self._arrived(case, made.id)

    async def _arrived(self, case: _Case, dispatch_id: str) -> bool:
        call, sent_s = case.call, self._clock.monotonic()
        while True:
            await self._clock.sleep(_POLL_S)
            people = await self._people(call.room)
            if case.died:
                return False
            if _answering(people, call) or not any(is_user(each) for each in people):
                return True
            waited_s = self._clock.monotonic() - sent_s
            if waited_s >= LAUNCH_S or (waited_s >= ARRIVAL_S and not await self._under_way(call, dispatch_id)):
                return False

    async def _under_way(self, call: LostCall, dispatch_id: str) -> bool:
        """Whether a worker has taken the dispatch, and its job has not ended."""
        dispatches = await self._api.agent_dispatch.list_dispatch(call.room)
        jobs = [job for each in dispatches if each.id == dispatch_id for job in each.state.jobs]
        return any(job.state.status in (protocol.JS_PENDING, protocol.JS_RUNNING) for job in jobs)

    async def _people(self, room: str) -> list[models.ParticipantInfo]:
        try:
            answer = await self._api.room.list_participants(api.ListParticipantsRequest(room=room))
        except api.TwirpError as error:
            if error.code == api.TwirpErrorCode.NOT_FOUND:
                return []
            raise
        return list(answer.participants)

    async def _remove(self, call: LostCall) -> None:
        with _unless_gone():
            await self._api.room.remove_participant(api.RoomParticipantIdentity(room=call.room, identity=call.identity))

    async def _call_off(self, room: str, dispatch_id: str) -> None:
        with _unless_gone():
            await self._api.agent_dispatch.delete_dispatch(dispatch_id, room)

    async def _given_back(self, job: protocol.Job) -> None:
        """Let whoever waits for the job see that it isn't under way: LiveKit says it is while its dispatch is there."""
        try:
            await self._call_off(job.room.name, job.dispatch_id)
        except _FAULTS as error:
            logger.warning("a job that could not be launched is waited for in vain (%s)", type(error).__name__)

    async def _watch(self, registry: CallRegistry) -> None:
        while True:
            try:
                for left in await registry.left_behind():
                    await self._take_over(registry, left)
            except _FAULTS as error:
                logger.warning("calls of other workers can't be looked for now (%s)", type(error).__name__)
            try:
                await registry.death_within(SCAN_S)
            except _FAULTS:
                await self._clock.sleep(SCAN_S)

    async def _take_over(self, registry: CallRegistry, left: LeftBehind) -> None:
        rooms = await self._api.room.list_rooms(api.ListRoomsRequest()) if left.calls else None
        names = {room.sid: room.name for room in list(rooms.rooms)[:_ROOMS_MAX]} if rooms is not None else {}
        settled = []
        for call in left.calls:
            room = names.get(call.room_id)
            if room is None or await self._taken_over(registry, room, call, left):
                settled.append(call.job_id)
        await registry.forget(left.worker, settled, whole=len(settled) == len(left.calls))

    async def _taken_over(self, registry: CallRegistry, room: str, held: HeldCall, left: LeftBehind) -> bool:
        """Whether the call needs no more looking after by the worker that is gone."""
        people = await self._people(room)
        if not any(is_user(each) for each in people):
            return True
        if not left.certain and any(each.identity == f"agent-{held.job_id}" for each in people):
            return False  # it is dead to Redis; as long as LiveKit has it, it may well be talking
        dispatches = await self._api.agent_dispatch.list_dispatch(room)
        made = next((each for each in dispatches if each.id == held.dispatch_id), None)
        if made is not None and await registry.take(held, of=left.worker):
            call = LostCall(room, held.job_id, made.agent_name, made.metadata, made.deployment, _deaths(made))
            self.died(call, sent=[each.id for each in dispatches if _instead_of(each) == held.job_id])
        return True


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except api.TwirpError as error:
        if error.code != api.TwirpErrorCode.NOT_FOUND:
            raise


def is_user(person: models.ParticipantInfo) -> bool:
    return person.kind in _USERS


def _answering(people: Iterable[models.ParticipantInfo], call: LostCall) -> bool:
    """Whether another job of the same agent is in the room."""
    return any(
        person.kind == models.ParticipantInfo.Kind.AGENT
        and person.identity != call.identity
        and person.attributes.get(ATTRIBUTE_AGENT_NAME, "") == call.agent_name
        for person in people
    )


def _instead_of(made: protocol.Job | Any) -> str | None:
    rescue = Rescue.of(made)
    return rescue.dead_job if rescue is not None else None


def _deaths(made: protocol.Job | Any) -> int:
    before = Rescue.of(made)
    return 1 + (before.count if before is not None else 0)
