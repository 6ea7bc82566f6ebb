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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
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
_LIVEKIT_FAULTS = (api.TwirpError, aiohttp.ClientError, OSError, TimeoutError)
_FAULTS = (*_LIVEKIT_FAULTS, VoiceMemoryError)


@dataclass(frozen=True, slots=True)
class LostCall:
    """A call without its agent: where it is, and what the dispatch said that made the dead job."""

    room: str
    job_id: str
    agent_name: str
    metadata: str
    deployment: str
    deaths: int


@dataclass(slots=True)
class _Case:
    """A call that is being seen to: its latest death, and the jobs known to have died in it.

    ``held``: those of them that are this worker's in the registry. ``tried``: the dispatches whose jobs were waited
    for. ``died``: there was a death since, such as of the job that was sent.
    """

    call: LostCall
    dead: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
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
    whose calls must have a bound in time (``open_api``). While ``draining`` says so, no call is given up: the next
    worker may be the only one that takes any."""

    def __init__(
        self,
        lkapi: api.LiveKitAPI,
        registry: CallRegistry | None,
        clock: Clock | None = None,
        *,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._api, self._registry, self._draining = lkapi, registry, draining
        self._clock = clock or SystemClock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cases: dict[tuple[str, str], _Case] = {}  # by room and agent's name
        self._slots = asyncio.Semaphore(RESCUES_AT_ONCE)

    def start(self) -> None:
        """From now on look for calls that other machines have left behind."""
        if self._registry is not None:
            self._later(self._watch(self._registry))

    def died(self, call: LostCall, *, dead: Iterable[str] = ()) -> None:
        """A job has ended as no job should. A call is seen to once at a time, however many have, and is held by this
        worker until that is done.

        ``dead``: all jobs that are known to have died in that room.
        """
        if call.deaths > DEATHS_MAX:
            logger.error("a call's jobs have died %d times; it is given up (job %s)", call.deaths, call.job_id)
        place = (call.room, call.agent_name)
        case = self._cases.get(place)
        if case is not None:
            case.call, case.died = max(case.call, call, key=lambda each: each.deaths), True
        elif call.deaths <= DEATHS_MAX:
            case = self._cases[place] = _Case(call)
            self._later(self._see_to(place, case))
        else:
            self._let_go([call.job_id])
            return
        case.held.add(call.job_id)
        case.dead.update({call.job_id, *dead})

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
            self._registry.leave({job for case in self._cases.values() for job in case.held})
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
                over = await self._came_back(case)
            if over or self._registry is None or not self._draining():
                self._let_go(case.held)
            else:
                self._registry.leave(case.held)
        except Exception as error:
            logger.error("a call can't be gone on with (%s); it is given up", type(error).__name__)
            self._let_go(case.held)
        finally:
            del self._cases[place]

    async def _came_back(self, case: _Case) -> bool:
        """``_rescued``, after each death anew. Also where its jobs have died too often to send another one."""
        while case.call.deaths <= DEATHS_MAX:
            case.died = False
            over = await self._rescued(case)
            if not case.died:
                if not over:
                    logger.error("no agent came back into a call; it is given up (job %s)", case.call.job_id)
                return over
        return True

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
        if _answering(people, case):
            return True
        # Out with the ghosts first: should one live after all, it must not talk beside its successor.
        present = {each.identity for each in people}
        for job_id in {call.job_id, *(job_id for job_id in case.dead if _identity(job_id) in present)}:
            await self._remove(call.room, _identity(job_id))
        sent = _sent(await self._dispatches(call.room), call.agent_name, case.dead)
        for each in sent:  # by whomever, such as a worker that has died over it
            if each.id not in case.tried and _under_way(each, case.dead):
                case.tried.add(each.id)
                return await self._arrived(case, each.id)
        for each in sent:  # nor must who comes after all talk beside who is sent now
            await self._call_off(call.room, each.id)
        made = await self._api.agent_dispatch.create_dispatch(
            api.CreateAgentDispatchRequest(
                room=call.room,
                agent_name=call.agent_name,
                metadata=call.metadata,
                deployment=call.deployment,
                attributes=Rescue(call.job_id, call.deaths).attributes(),
            )
        )
        case.tried.add(made.id)
        logger.warning("a job died in a call; another one goes on with it (job %s)", call.job_id)
        return await self._arrived(case, made.id)

    async def _arrived(self, case: _Case, dispatch_id: str) -> bool:
        call, sent_s = case.call, self._clock.monotonic()
        while True:
            await self._clock.sleep(_POLL_S)
            people = await self._people(call.room)
            if case.died:
                return False
            if _answering(people, case) or not any(is_user(each) for each in people):
                return True
            waited_s = self._clock.monotonic() - sent_s
            if waited_s >= LAUNCH_S:
                return False
            if waited_s >= ARRIVAL_S:
                dispatches = await self._dispatches(call.room)
                if not any(each.id == dispatch_id and _under_way(each, case.dead) for each in dispatches):
                    return False

    async def _dispatches(self, room: str) -> list[api.AgentDispatch]:
        return list(await self._api.agent_dispatch.list_dispatch(room))

    async def _people(self, room: str) -> list[models.ParticipantInfo]:
        try:
            answer = await self._api.room.list_participants(api.ListParticipantsRequest(room=room))
        except api.TwirpError as error:
            if error.code == api.TwirpErrorCode.NOT_FOUND:
                return []
            raise
        return list(answer.participants)

    async def _remove(self, room: str, identity: str) -> None:
        with _unless_gone():
            await self._api.room.remove_participant(api.RoomParticipantIdentity(room=room, identity=identity))

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
            except Exception as error:
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
            try:
                if room is None or await self._taken_over(registry, room, call, left):
                    settled.append(call.job_id)
            except _LIVEKIT_FAULTS as error:  # this one is looked at again; the others are not kept waiting
                logger.warning("a call of another worker can't be looked at now (%s)", type(error).__name__)
        await registry.forget(left.worker, settled, whole=len(settled) == len(left.calls))

    async def _taken_over(self, registry: CallRegistry, room: str, held: HeldCall, left: LeftBehind) -> bool:
        """Whether the call needs no more looking after by the worker that is gone."""
        people = await self._people(room)
        if not any(is_user(each) for each in people):
            return True
        present = {each.identity for each in people}
        dead = {
            each.job_id
            for each in left.calls
            if each.room_id == held.room_id and (left.certain or _identity(each.job_id) not in present)
        }
        if held.job_id not in dead:
            return False  # it is dead to Redis; as long as LiveKit has it, it may well be talking
        dispatches = await self._dispatches(room)
        made = next((each for each in dispatches if each.id == held.dispatch_id), None)
        if made is None:
            return True
        if not await registry.take(held, of=left.worker):
            return registry.holds(held.job_id)  # else it is for whoever has taken it to say that it is settled
        # How often the jobs of the call have died is counted on from the last one that was sent, by whomever.
        deaths = max(_deaths(each) for each in (made, *_sent(dispatches, made.agent_name, dead)))
        call = LostCall(room, held.job_id, made.agent_name, made.metadata, made.deployment, deaths)
        self.died(call, dead=dead)
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


def _identity(job_id: str) -> str:
    """What a job is called in its room, as livekit-agents names it."""
    return f"agent-{job_id}"


def _answering(people: Iterable[models.ParticipantInfo], case: _Case) -> bool:
    """Whether another job of the same agent is in the room, and none that has died."""
    ghosts = {_identity(job_id) for job_id in case.dead}
    return any(
        person.kind == models.ParticipantInfo.Kind.AGENT
        and person.identity not in ghosts
        and person.attributes.get(ATTRIBUTE_AGENT_NAME, "") == case.call.agent_name
        for person in people
    )


def _sent(dispatches: Iterable[api.AgentDispatch], agent_name: str, dead: set[str]) -> list[api.AgentDispatch]:
    """The dispatches that were made in place of ``dead`` jobs of the agent."""
    found = [(each, Rescue.of(each)) for each in dispatches if each.agent_name == agent_name]
    return [each for each, rescue in found if rescue is not None and rescue.dead_job in dead]


def _under_way(made: api.AgentDispatch, dead: set[str]) -> bool:
    """Whether a worker has taken the dispatch, and its job has not ended."""
    return any(
        job.state.status in (protocol.JS_PENDING, protocol.JS_RUNNING) and job.id not in dead for job in made.state.jobs
    )


def _deaths(made: api.AgentDispatch) -> int:
    before = Rescue.of(made)
    return 1 + (before.count if before is not None else 0)
