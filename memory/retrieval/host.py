"""The recall host: one process per data directory that owns the embedder and the indexes of the users now talking.

It answers ``protocol`` on the data directory's socket until nobody uses it any more, and moves the log into the
archive meanwhile. Opened parts are handed in. Above: cli. Below: engine, protocol, hosting.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Protocol

from memory.errors import EmbedderUnavailable, VoiceMemoryError
from memory.hosting import HostRole, serving
from memory.limits import (
    ARCHIVE_POLL_IDLE_S,
    ARCHIVE_PROBE_S,
    HOST_CROWD_PER_CORE,
    HOST_QUEUE_MAX,
    RECALL_QUIET_S,
    RECALL_WARM_S,
    SHUTDOWN_FLUSH_S,
)
from memory.models import clean_text
from memory.ports import Embedder
from memory.retrieval.engine import RecallEngine
from memory.retrieval.protocol import Malformed, Reply, Request, read_frame
from memory.retrieval.tasks import end_all, within
from memory.scheduling import Precedence, hand_over

logger = logging.getLogger(__name__)


class LogConsumer(Protocol):
    """Moves the log into the archive (``ingestion.Archiver``)."""

    async def run(self) -> None:
        """Until cancelled."""
        ...

    async def drain(self) -> int:
        """Move what is there now; returns how many records that were."""
        ...

    @property
    def pending_users(self) -> int: ...

    @property
    def oldest_age_s(self) -> float: ...


class SpoolReplayer(Protocol):
    """Stores what dead processes have left in the spool (``replay.Replayer``)."""

    @property
    def files(self) -> int:
        """Files that were there when last looked at, those of living writers included."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...


class RecallHost:
    """Serves one engine, made with ``embedder_ready=False``; until the embedder is loaded, recall goes by keywords.

    ``consumer`` is ``None`` where another process moves the log. ``archive_problem`` says why the archive can't be
    used now ("" if it can), within so many seconds. ``precedence`` is taken while a recall is under way, where
    there are more than ``HOST_CROWD_PER_CORE`` clients a core: it takes the cores from the jobs, whose turn with few
    calls would wait for that (typed turns 2.6 ms longer), and with many waits for the recall.
    """

    def __init__(
        self,
        role: HostRole,
        engine: RecallEngine,
        *,
        embedder: Embedder | None,
        consumer: LogConsumer | None,
        replayer: SpoolReplayer | None = None,
        archive_problem: Callable[[float], Awaitable[str]] | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        self._role, self._engine = role, engine
        self._embedder, self._consumer, self._replayer = embedder, consumer, replayer
        self._archive_problem = archive_problem
        self._precedence = precedence or Precedence(0)
        self._giving: asyncio.TimerHandle | None = None
        self._clients, self._crowd = 0, HOST_CROWD_PER_CORE * (os.cpu_count() or 1)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until nobody has used the host for its idle time, or ``stop`` is set.

        At the end the log is moved on and snapshots are written, ``SHUTDOWN_FLUSH_S`` at most for each. The engine
        is closed; the role is the caller's to release.
        """
        unused = asyncio.create_task(self._role.unused())
        owned = [unused, asyncio.create_task(self._load())]
        if self._consumer is not None:
            owned.append(asyncio.create_task(self._consume(self._consumer)))
        if self._replayer is not None:
            owned.append(asyncio.create_task(self._replayer.run()))
        stopped = asyncio.create_task(stop.wait())
        try:
            async with serving(self._role.spec, self.talk):
                await self._engine.start()
                await asyncio.wait((unused, stopped), return_when=asyncio.FIRST_COMPLETED)
                if unused.done() and unused.exception() is not None:
                    logger.error("The data directory is gone or can't be read any more; this host ends.")
        finally:
            await end_all((*owned, stopped))
            if self._giving is not None:
                self._giving.cancel()
            self._precedence.give()
            await self._drain()
            await self._engine.aclose()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client's requests, several at a time, until it goes away. Its requests end with it."""
        answering: set[asyncio.Task[None]] = set()
        self._clients += 1
        try:
            while (body := await read_frame(reader)) is not None:
                request = Request.parse(body)
                if request.op == "recall" and self._clients > self._crowd:
                    self._take_precedence()
                if len(answering) >= HOST_QUEUE_MAX:
                    writer.write(Reply(id=request.id, error="too many requests at once").frame())
                    continue
                task = asyncio.create_task(self._reply(request, writer))
                answering.add(task)
                task.add_done_callback(answering.discard)
        except Malformed as error:
            logger.warning("A client's connection is closed: %s", error)
        finally:
            self._clients -= 1
            await end_all(answering)

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            frame = (await self._answer(request)).frame()
        except VoiceMemoryError as error:
            frame = Reply(id=request.id, error=clean_text(str(error)) or type(error).__name__).frame()
        except Exception as error:  # one request's fault must not be another's
            logger.error("A %s request failed: %s", request.op, type(error).__name__)
            frame = Reply(id=request.id, error=type(error).__name__).frame()
        writer.write(frame)
        hand_over()
        await writer.drain()

    def _take_precedence(self) -> None:
        self._precedence.take()
        if self._giving is None:
            self._give_later()

    def _give_later(self) -> None:
        self._giving = asyncio.get_running_loop().call_later(RECALL_QUIET_S, self._give_precedence)

    def _give_precedence(self) -> None:
        """Once no recall is under way, and none is likely to come: what else there is to do here has no hurry."""
        self._giving = None
        if self._engine.busy():
            self._take_precedence()
        elif not self._precedence.give():
            self._give_later()

    async def _answer(self, request: Request) -> Reply:
        scope, engine = request.scope, self._engine
        if request.op == "recall" and scope is not None:
            recall = await engine.recall(
                scope,
                request.query,
                limit=request.limit,
                budget_ms=request.budget_ms,
                exclude_ids=request.exclude_ids,
            )
            return Reply(id=request.id, recall=recall)
        if request.op == "profile" and scope is not None:
            profile = await engine.profile(scope, name=request.query, limit=request.limit, budget_ms=request.budget_ms)
            return Reply(id=request.id, recall=profile)
        if request.op == "warm" and scope is not None:
            async with asyncio.timeout(RECALL_WARM_S):
                await engine.warm(scope)
        elif request.op == "erase" and scope is not None and request.selection is not None:
            return Reply(id=request.id, erased=await engine.erase(scope, request.selection))
        elif request.op == "stats":
            stats = {"pid": os.getpid(), **self._backlog(), **await self._archive(), **engine.stats()}
            return Reply(id=request.id, stats=stats)
        return Reply(id=request.id)

    def _backlog(self) -> dict[str, float]:
        """What waits to be stored, and for how long: users whose log the archive has not, files of the spool."""
        backlog: dict[str, float] = {}
        if self._consumer is not None:
            backlog |= {"pending_users": self._consumer.pending_users}
            backlog |= {"oldest_age_s": round(self._consumer.oldest_age_s, 1)}
        if self._replayer is not None:
            backlog |= {"spool_files": self._replayer.files}
        return backlog

    async def _archive(self) -> dict[str, str]:
        if self._archive_problem is None:
            return {}
        return {"archive_problem": clean_text(await self._archive_problem(ARCHIVE_PROBE_S))}

    async def _load(self) -> None:
        if self._embedder is not None:
            try:
                await self._embedder.embed(["How can I help you today?"])
            except EmbedderUnavailable as error:
                logger.warning("Recall goes by keywords alone: %s", error)
            else:
                self._engine.embedder_is_ready()
        # What was loaded stays for good: later collections need not look through it each time.
        gc.collect()
        gc.freeze()

    async def _consume(self, consumer: LogConsumer) -> None:
        while True:
            try:
                await consumer.run()
            except Exception as error:  # what is in the log must not stay there for good
                logger.error("Moving the log into the archive stopped: %s; it goes on.", type(error).__name__)
            await asyncio.sleep(ARCHIVE_POLL_IDLE_S)

    async def _drain(self) -> None:
        if self._consumer is None:
            return
        try:
            await within(SHUTDOWN_FLUSH_S, self._consumer.drain())
        except Exception as error:  # whatever it is, the engine still has to be closed
            logger.warning(
                "The log was not moved to its end (%s); it is kept, and moved next time.", type(error).__name__
            )
