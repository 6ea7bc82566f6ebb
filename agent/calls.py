"""Which worker holds which calls, in Redis: so that the calls of a machine that is gone can be found by another one.

Server-made ids alone, nobody's number, room or words. Each key is used by itself, so that any cluster will do::

    vm:worker:<w>     string   there while the worker lives: it is written anew every few seconds, and lapses
    vm:workers        set      <w>
    vm:calls:<w>      hash     job id -> room id|dispatch id
    vm:taken:<job>    string   the worker that goes on with that job's call; lapses

On one machine a worker's lock on a file tells at once, and for certain, that it is dead.
Above: worker, rescue. Below: memory.wiring, memory.hosting, memory's connection to Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from memory import wiring
from memory.clock import Clock, SystemClock
from memory.datadir import runtime_dir
from memory.errors import DataDirectoryUnusable, VoiceMemoryError
from memory.hosting import FileLock
from memory.models import new_id
from memory.retrieval.deadlines import done_within
from memory.settings import Settings
from memory.stores.connection import Command, RedisLink, Script

logger = logging.getLogger("agent")

LEASE_S = 10
BEAT_S = 2.5
BEATS_WHOLE = 12  # all that is held is written anew as often: a Redis may have lost what it had
WORKERS_MAX = 256  # looked at in one scan
TAKEN_S = 600
LOOK_S = 0.25  # between two looks at the locks of this machine's workers
_KEPT_S = 86_400
_CLOSE_S = 2.0

_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.01

_WORKERS = "vm:workers"
_LIFE = "worker."

# Once for all workers, and anew when the one that took it is gone in its turn.
_TAKE = Script.of("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return 1
""")


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call as a worker noted it down."""

    job_id: str
    room_id: str
    dispatch_id: str


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a worker held that gives no sign of life. ``certain``: its process has ended, so its jobs have too."""

    worker: str
    calls: list[HeldCall]
    certain: bool


class CallRegistry:
    """This worker's calls, and what others held that are gone. Redis away: nothing is noted, and nothing raises.

    A call is held until it is over, the time in which an agent is brought back into it included: with Redis there, each
    is noted down at any moment. ``start`` and ``aclose`` it in one event loop; ``aclose`` says that the worker has
    ended properly, or, where it leaves calls, that it is dead.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._me = new_id()
        self._life: FileLock | None = None
        self._held: dict[str, HeldCall] = {}
        self._unfinished: set[str] = set()
        self._signing = asyncio.Lock()
        self._link: RedisLink | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._changed = asyncio.Event()
        self._version, self._written = 0, -1  # of what is held here, and of what is held in Redis
        self._beats = 0
        self._alive_since_s: float | None = None  # since when the worker's own sign of life has never failed
        self._task: asyncio.Task[None] | None = None
        self._known_dead: set[str] = set()

    def hold_life(self) -> None:
        """Take the lock that says, to others on this machine, that this process lives. Touches the disk.

        Raises:
            DataDirectoryUnusable: the directory for locks, or the lock, can't be used.
        """
        self._life = self._life_of(self._me)
        for _ in range(_LOCK_TRIES):  # somebody may be looking whether it is held
            if self._life.try_acquire():
                return
            time.sleep(_LOCK_PAUSE_S)
        raise DataDirectoryUnusable(f"The lock {self._life.path.name} can't be taken; start the worker again.")

    def start(self) -> None:
        """Begin to give signs of life in Redis."""
        self._task = asyncio.create_task(self._beat(), name="agent.calls")

    def add(self, call: HeldCall) -> None:
        """From now on this worker holds ``call``."""
        self._held[call.job_id] = call
        self._change()

    def remove(self, job_id: str) -> None:
        """The call is over, or is gone on with by another job."""
        if self._held.pop(job_id, None) is not None:
            self._change()

    def leave(self, job_ids: Iterable[str]) -> None:
        """At the end of this worker these calls are another one's to go on with."""
        self._unfinished.update(job_ids)

    def holds(self, job_id: str) -> bool:
        return job_id in self._held

    async def take(self, call: HeldCall, *, of: str) -> bool:
        """Whether it is this worker, of all, that goes on with a call of the worker ``of``, from now on. It holds it
        then, in Redis too.

        Raises:
            VoiceMemoryError: Redis is away; the call is not held, and may be taken again.
        """
        if call.job_id in self._held:
            return False
        self.add(call)
        taken = False
        try:
            await self._sign()  # first: should this worker die as well, the next one finds it here
            taken = bool(await (await self._opened()).script(_TAKE, [_taken(call.job_id)], (self._me, of, TAKEN_S)))
        except asyncio.CancelledError:  # Redis may have done it: what this worker can't go on with is the next one's
            taken = True
            self.leave([call.job_id])
            raise
        finally:
            if not taken:
                self.remove(call.job_id)
        return taken

    async def left_behind(self) -> list[LeftBehind]:
        """The calls of each worker that is dead, or has given no sign of life for ``LEASE_S``.

        Of the latter none where this worker's own signs failed lately: then it may be Redis that was away, not they.

        Raises:
            VoiceMemoryError: Redis is away.
        """
        [members] = await self._commands(("SMEMBERS", _WORKERS))
        others = sorted(set(members) - {self._me})[:WORKERS_MAX]
        if not others:
            return []
        alive = await self._commands(*(("EXISTS", _worker(other)) for other in others))
        silent = {other for other, there in zip(others, alive, strict=True) if not there} if self._steady() else set()
        dead = {other for other in others if self._is_dead(other)}
        gone = sorted(silent | dead)
        held = await self._commands(*(("HGETALL", _calls(worker)) for worker in gone)) if gone else []
        return [
            LeftBehind(worker, _read(calls), certain=worker in dead) for worker, calls in zip(gone, held, strict=True)
        ]

    async def death_within(self, seconds: float) -> None:
        """Return once another worker of this machine has died, or after ``seconds``."""
        until_s = self._clock.monotonic() + seconds
        while (left_s := until_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(LOOK_S, left_s))
            if await asyncio.to_thread(self._somebody_died):
                return

    def _somebody_died(self) -> bool:
        """Whether a worker is dead that wasn't known to be."""
        paths = list(runtime_dir(self._settings.data_dir).glob(f"{_LIFE}*"))[:WORKERS_MAX]
        workers = {path.name.removeprefix(_LIFE) for path in paths} - {self._me}
        dead = {worker for worker in workers if self._is_dead(worker)}
        news = dead - self._known_dead
        self._known_dead = dead
        return bool(news)

    def _steady(self) -> bool:
        alive_since_s = self._alive_since_s
        return alive_since_s is not None and self._clock.monotonic() - alive_since_s > LEASE_S + BEAT_S

    def _is_dead(self, worker: str) -> bool:
        """Whether it was a process of this machine and is none any more."""
        life = self._life_of(worker)
        if not life.path.exists():
            return False
        try:
            return life.try_acquire(shared=True)
        finally:
            life.release()

    def _life_of(self, worker: str) -> FileLock:
        return FileLock(runtime_dir(self._settings.data_dir) / f"{_LIFE}{worker}")

    async def forget(self, worker: str, job_ids: list[str], *, whole: bool) -> None:
        """These calls of a worker that is gone are dealt with; with ``whole`` all of them."""
        commands: list[Command] = [("HDEL", _calls(worker), *job_ids)] if job_ids else []
        if whole:
            commands += [("DEL", _calls(worker)), ("SREM", _WORKERS, worker)]
        if commands:
            await self._commands(*commands)
        if whole and self._is_dead(worker):  # one that only fell silent may be back
            self._life_of(worker).path.unlink(missing_ok=True)

    async def aclose(self) -> None:
        """This worker holds no call any more, but for what it leaves. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._held = {job_id: call for job_id, call in self._held.items() if job_id in self._unfinished}
        self._change()
        with contextlib.suppress(VoiceMemoryError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if self._link is not None:
                    await self._sign_off()
        self._link = None
        if self._life is not None:
            if not self._held:
                self._life.path.unlink(missing_ok=True)
            self._life.release()
            self._life = None
        while self._closers:
            with contextlib.suppress(Exception):
                await self._closers.pop()()

    async def _sign_off(self) -> None:
        if self._held:
            await self._sign()
        else:
            await self.forget(self._me, [], whole=True)
        await self._commands(("DEL", _worker(self._me)))

    @property
    def noted(self) -> bool:
        """Whether what is held is in Redis."""
        return self._written == self._version

    def _change(self) -> None:
        self._version += 1
        self._changed.set()

    async def _beat(self) -> None:
        told = False
        while True:
            self._changed.clear()
            try:
                await self._sign()
                told = False
            except (VoiceMemoryError, OSError, TimeoutError) as error:
                self._alive_since_s, self._written = None, -1
                if not told:
                    logger.warning("calls can't be noted down, so no other machine could go on with them: %s", error)
                told = True
                await self._clock.sleep(BEAT_S)  # a change is no reason to ask an absent Redis sooner
                continue
            changed = asyncio.create_task(self._changed.wait())
            try:
                await done_within(changed, self._clock, BEAT_S)
            finally:
                changed.cancel()

    async def _sign(self) -> None:
        async with self._signing:
            version = self._version
            commands: list[Command] = [("SET", _worker(self._me), "1", "EX", LEASE_S), ("SADD", _WORKERS, self._me)]
            if version != self._written or self._beats % BEATS_WHOLE == 0:
                calls = [word for call in self._held.values() for word in (call.job_id, _written(call))]
                commands.append(("DEL", _calls(self._me)))
                if calls:
                    commands += [("HSET", _calls(self._me), *calls), ("EXPIRE", _calls(self._me), _KEPT_S)]
            await self._commands(*commands)
            self._written, self._beats = version, self._beats + 1
            if self._alive_since_s is None:
                self._alive_since_s = self._clock.monotonic()

    async def _commands(self, *commands: Command) -> list[Any]:
        return await (await self._opened()).commands(commands)

    async def _opened(self) -> RedisLink:
        if self._link is None:
            self._link = await _open(self._settings, self._closers)
        return self._link


async def _open(settings: Settings, closers: list[Callable[[], Awaitable[None]]]) -> RedisLink:
    opened: list[Callable[[], Awaitable[None]]] = []
    try:
        url, on_lost = await wiring.redis_place(settings, opened)
        link = await RedisLink.open(url, on_lost=on_lost)
    except BaseException:
        while opened:  # it is tried again every few seconds, and each use of the embedded server is a file held open
            await opened.pop()()
        raise
    closers += [*opened, link.aclose]
    return link


def _worker(worker: str) -> str:
    return f"vm:worker:{worker}"


def _calls(worker: str) -> str:
    return f"vm:calls:{worker}"


def _taken(job_id: str) -> str:
    return f"vm:taken:{job_id}"


def _written(call: HeldCall) -> str:
    return f"{call.room_id}|{call.dispatch_id}"


def _read(calls: dict[str, str]) -> list[HeldCall]:
    return [HeldCall(job_id, *text.partition("|")[::2]) for job_id, text in calls.items()]
