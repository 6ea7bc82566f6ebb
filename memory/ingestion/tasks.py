"""The task engine: pydocket over the same Redis, for any number of workers on any number of machines.

Tasks hold a user's number and nothing else, are kept below ``vm:{ingest}``, and leave no result. Nothing is lost with
them: what there is to do stands in SQL, and ``scan`` finds it again. One task of a user runs at a time over the
cluster; the commit in SQL is the last guard. A worker that is killed leaves its tasks to the others, within
``INGEST_REDELIVERY_S`` or a little more. Importing this costs 1.7 s and is never done in a call's process.
Above: worker. Below: docket, scan's ``Queue``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from docket import CurrentExecution, Docket, Execution, Perpetual, Worker
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from memory.counters import Counters
from memory.errors import StoreFault, StoreUnavailable
from memory.ingestion.scan import Queue
from memory.ingestion.telling import place_of
from memory.limits import (
    INGEST_CONCURRENCY,
    INGEST_REDELIVERY_S,
    INGEST_SCAN_S,
    INGEST_STOP_S,
    INGEST_TASK_S,
    STORE_TIMEOUT_S,
)
from memory.retrieval.tasks import end_all

logger = logging.getLogger(__name__)

NAME = "vm:{ingest}"  # every key of the engine begins with it: one slot of a cluster, and what an ACL of vm:* covers
_CANCELLED = f"{NAME}:cancel:*"  # a pattern that workers listen to: an ACL has to name it literally
_SCAN_AGAIN_S = 0.5  # where there was more to do than one look does
_POLL_S = 0.1  # how soon a task that has ended makes room for the next
_SCHEDULE_S = 0.5
_RECONNECT_S = 1.0
_END_S = 2.0  # for the engine's own farewell
_FOREIGN = ("docket", "docket.worker", "docket.dependencies", "docket.docket", "docket.strikelist")

_T = TypeVar("_T")


class Work(Protocol):
    """What the tasks do."""

    async def look(self, queue: Queue) -> bool:
        """Look for work; True: look again soon."""
        ...

    async def ingest(self, user: int) -> bool:
        """Ingest some of the user's chunks; True: there may be more."""
        ...

    async def interrupted(self, user: int) -> None:
        """The user's task ended without a word, by a killed worker or for taking too long: count it."""
        ...

    async def digest(self, user: int) -> None:
        """Make the digests of the user's sessions that lack one."""
        ...


class TaskEngine:
    """Runs ``work`` for as long as ``run`` runs. Belongs to one event loop.

    Counts ``tasks.<name>``, ``.unavailable``, ``.faults``, ``.cut_off`` (at the end or for taking too long) and
    ``.redelivered``. A task's error ends there: it is counted, and logged without content.
    """

    def __init__(
        self,
        url: str,
        work: Work,
        counters: Counters,
        *,
        concurrency: int = INGEST_CONCURRENCY,
        redelivery_s: float = INGEST_REDELIVERY_S,
        scan_s: float = INGEST_SCAN_S,
    ) -> None:
        self._url, self._work, self.counters = url, work, counters
        self._concurrency, self._redelivery_s, self._scan_s = concurrency, redelivery_s, scan_s
        self._stopping = asyncio.Event()
        self.under_way = 0

    async def check(self) -> None:
        """See that this Redis lets us do what the engine needs, which is more than the session store does.

        Raises:
            StoreFault: it does not; the message says what to allow.
            StoreUnavailable: it is away.
        """
        client = Redis.from_url(self._url, socket_timeout=STORE_TIMEOUT_S, socket_connect_timeout=STORE_TIMEOUT_S)
        try:
            async with asyncio.timeout(2 * STORE_TIMEOUT_S):
                await client.publish(f"{NAME}:state:nothing", "")
                async with client.pubsub() as listener:
                    await listener.psubscribe(_CANCELLED)
                    await listener.get_message(timeout=STORE_TIMEOUT_S)
        except NoPermissionError:
            raise StoreFault(
                "Redis does not let this user say and hear what tasks tell each other. Allow it these channels as well,"
                f" the pattern as it stands here (ACL: ~vm:* &vm:* &{_CANCELLED})."
            ) from None
        except (RedisError, OSError):
            raise _away() from None
        finally:
            await client.aclose()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then what is under way has ``INGEST_STOP_S`` to come to an end.

        What does not is given back: it is done again, by whoever comes first, without a second effect.
        """
        _quiet_logs()
        # No state of a task is kept after its end, and no result: there is nothing of a user anywhere in it.
        async with Docket(NAME, self._url, execution_ttl=timedelta(0)) as docket:
            queue = DocketQueue(docket, self)
            queue.register(timedelta(seconds=self._scan_s))
            async with self._worker(docket) as worker:
                running = asyncio.create_task(worker.run_forever())
                stopped = asyncio.create_task(stop.wait())
                try:
                    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    self._stopping.set()
                    if running.done():
                        running.result()
                    running.cancel()
                    await asyncio.wait({running}, timeout=INGEST_STOP_S + _END_S)
                finally:
                    await end_all((running, stopped))

    def _worker(self, docket: Docket) -> Worker:
        return Worker(
            docket,
            concurrency=self._concurrency,
            redelivery_timeout=timedelta(seconds=self._redelivery_s),
            reconnection_delay=timedelta(seconds=_RECONNECT_S),
            minimum_check_interval=timedelta(seconds=_POLL_S),
            scheduling_resolution=timedelta(seconds=min(_SCHEDULE_S, self._scan_s)),
        )

    async def look(self, queue: Queue) -> bool:
        return bool(await self._bounded("scan", self._work.look(queue)))

    async def ingest(self, user: int, *, redelivered: bool) -> bool:
        """True: there may be more for this user."""
        if redelivered:
            # Whatever ended the worker may have been this very chunk: so it counts, and a poison chunk comes to an end.
            self.counters.add("tasks.ingest.redelivered")
            await self._bounded("interrupted", self._work.interrupted(user))
            return False
        ended, more = await self._told("ingest", self._work.ingest(user))
        if not ended and not self._stopping.is_set():
            await self._bounded("interrupted", self._work.interrupted(user))
        return bool(more)

    async def digest(self, user: int) -> None:
        await self._bounded("digest", self._work.digest(user))

    async def _bounded(self, name: str, work: Coroutine[Any, Any, _T]) -> _T | None:
        return (await self._told(name, work))[1]

    async def _told(self, name: str, work: Coroutine[Any, Any, _T]) -> tuple[bool, _T | None]:
        """Whether ``work`` came to its end, in time, and what it returned; ``None`` for an error."""
        self.counters.add(f"tasks.{name}")
        self.under_way += 1
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopped}, timeout=INGEST_TASK_S, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and stopped.done():
                await asyncio.wait({task}, timeout=INGEST_STOP_S)
            if not task.done():
                self.counters.add(f"tasks.{name}.cut_off")
                return False, None
            return True, task.result()
        except StoreUnavailable as error:
            self.counters.add(f"tasks.{name}.unavailable")
            logger.info("The %s task ends early, and is done again later: %s", name, error)
        except StoreFault as error:
            self.counters.add(f"tasks.{name}.faults")
            logger.error("The %s task failed: %s", name, error)
        except Exception as error:  # a task that raises would be told of with its arguments and a traceback
            self.counters.add(f"tasks.{name}.faults")
            logger.error("The %s task failed: %s", name, place_of(error))
        finally:
            self.under_way -= 1
            await end_all((task, stopped))
        return True, None


class DocketQueue:
    """scan's ``Queue``, and the tasks as docket knows them."""

    def __init__(self, docket: Docket, engine: TaskEngine) -> None:
        self._docket, self._engine = docket, engine

    def register(self, every: timedelta) -> None:
        engine, docket = self._engine, self._docket
        again, this = Perpetual(every=every, automatic=True), CurrentExecution()

        async def scan(perpetual: Perpetual = again) -> None:
            if await engine.look(self):
                perpetual.after(timedelta(seconds=min(_SCAN_AGAIN_S, every.total_seconds())))

        async def ingest(user: int, execution: Execution = this) -> None:
            if await engine.ingest(user, redelivered=execution.redelivered):
                # At the end of the queue, so that others get their turn. Replaced: this one is still running.
                with contextlib.suppress(RedisError, OSError):
                    await docket.replace(ingest, datetime.now(UTC), execution.key)(user)

        async def digest(user: int) -> None:
            await engine.digest(user)

        self._ingest, self._digest = ingest, digest
        for task in (scan, ingest, digest):
            docket.register(task)

    async def waiting(self) -> int:
        try:
            async with self._docket.redis() as redis, redis.pipeline() as pipeline:
                pipeline.xlen(self._docket.stream_key)
                pipeline.zcard(self._docket.queue_key)
                return int(sum(await pipeline.execute()))
        except (RedisError, OSError):
            raise _away() from None

    async def add_ingestion(self, users: Sequence[int]) -> None:
        await self._add([self._docket.call(self._ingest, key=f"i{user}")(user) for user in users])

    async def add_digests(self, users: Sequence[int]) -> None:
        await self._add([self._docket.call(self._digest, key=f"d{user}")(user) for user in users])

    async def _add(self, calls: Sequence[Any]) -> None:
        try:
            await self._docket.add_many(calls)
        except (RedisError, OSError):
            raise _away() from None


def _away() -> StoreUnavailable:
    return StoreUnavailable("Redis can't be reached by the task engine. Check REDIS_URL (or REDIS_HOST).")


class _NotOfRedis(logging.Filter):
    """Without what the engine says, over and over and with tracebacks, of a Redis that is away: the worker tells it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, RedisError | OSError | BaseExceptionGroup)


def _quiet_logs() -> None:
    for name in _FOREIGN:
        foreign = logging.getLogger(name)
        foreign.setLevel(logging.ERROR)
        if not any(isinstance(each, _NotOfRedis) for each in foreign.filters):
            foreign.addFilter(_NotOfRedis())
