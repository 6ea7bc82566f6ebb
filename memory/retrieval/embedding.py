"""The one way to the embedder: recalls in batches, older turns when nobody waits, nobody waiting for a broken one.

Above: engine. Below: ports (Embedder), deadlines, limits. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import EmbedderUnavailable
from memory.limits import EMBED_BATCH_MAX, EMBED_PATIENCE_S, EMBED_RETRY_S_MAX, EMBED_WAITING_MAX
from memory.ports import Embedder
from memory.retrieval.deadlines import Deadline
from memory.retrieval.tasks import end_all

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
Begun = asyncio.Future[Vectors | None]
_RETRY_S_MIN = 0.5


@dataclass(frozen=True, slots=True)
class _Job:
    texts: tuple[str, ...]
    done: asyncio.Future[Vectors | None]
    urgent: bool


class EmbedDesk:
    """Turns texts into vectors, or says at once that it can't.

    ``embedder`` is ``None`` where recall is to go by keywords alone. ``ready``: False while it is being loaded.
    """

    def __init__(self, embedder: Embedder | None, clock: Clock, counters: Counters, *, ready: bool = True) -> None:
        self._embedder, self._clock, self._counters = embedder, clock, counters
        self.ready = ready
        self._queue: deque[_Job] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._batch_began_s: float | None = None
        self._retry_at_s = 0.0
        self._pause_s = _RETRY_S_MIN

    @property
    def model(self) -> str:
        """Of the vectors; "" where there are none."""
        return "" if self._embedder is None else self._embedder.model

    @property
    def dimension(self) -> int | None:
        return None if self._embedder is None else self._embedder.dimension

    def begin(self, texts: Sequence[str]) -> Begun:
        """Have ``texts`` made into vectors, shape (n, dimension), before all idle work.

        ``None`` at once if there is no use in waiting: broken, stuck, or ``EMBED_WAITING_MAX`` recalls wait. Cancel it
        when it is not wanted any more: what has not been begun by then never is.
        """
        if not self._works() or self._stuck():
            return _nothing()
        # With no batch running, the first of those who wait is about to be served.
        ahead = sum(job.urgent for job in self._queue) - (self._batch_began_s is None)
        if ahead >= EMBED_WAITING_MAX:
            self._counters.add("embed.shed")
            return _nothing()
        return self._enqueue(texts, urgent=True).done

    async def for_recall(
        self, texts: Sequence[str], deadline: Deadline, *, reserve_s: float, begun: Begun | None = None
    ) -> Vectors | None:
        """Vectors of ``texts``, shape (n, dimension), until ``reserve_s`` before the deadline.

        ``begun``: what ``begin`` gave for the first of the texts alone; the others are queued behind it. ``None``: not
        all in time, or there is no use in waiting, see ``begin``.
        """
        if begun is None or len(texts) == 1 or (begun.done() and begun.result() is None):
            return await _in_time(begun or self.begin(texts), deadline, reserve_s)
        if not self._works():
            return None
        # Not urgent: this recall was counted when it began.
        others = self._enqueue(texts[1:], urgent=False).done
        try:
            first = await _in_time(begun, deadline, reserve_s)
            rest = None if first is None else await _in_time(others, deadline, reserve_s)
            return None if first is None or rest is None else np.concatenate((first, rest))
        finally:
            others.cancel()

    async def when_idle(self, texts: Sequence[str]) -> Vectors | None:
        """Vectors of ``texts`` once nobody else wants any; ``None`` where the embedder is broken."""
        while self._runner is not None and not self._runner.done():
            await asyncio.wait((self._runner,))
        if not self._works():
            return None
        job = self._enqueue(texts, urgent=False)
        try:
            return await job.done
        finally:
            job.done.cancel()

    async def aclose(self) -> None:
        """Stop; whoever waits gets ``None``. Idempotent."""
        self.ready = False
        await end_all((self._runner,))
        for job in self._queue:
            _give(job, None)
        self._queue.clear()

    def _works(self) -> bool:
        return self.ready and self._embedder is not None and self._clock.monotonic() >= self._retry_at_s

    def _stuck(self) -> bool:
        began_s = self._batch_began_s
        return began_s is not None and self._clock.monotonic() - began_s > EMBED_PATIENCE_S

    def _enqueue(self, texts: Sequence[str], *, urgent: bool) -> _Job:
        job = _Job(tuple(texts), asyncio.get_running_loop().create_future(), urgent)
        self._queue.append(job)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return job

    async def _run(self) -> None:
        while jobs := self._next_batch():
            vectors = None
            try:
                vectors = await self._embed([text for job in jobs for text in job.texts])
            finally:
                start = 0
                for job in jobs:
                    end = start + len(job.texts)
                    _give(job, None if vectors is None else vectors[start:end])
                    start = end

    def _next_batch(self) -> list[_Job]:
        jobs: list[_Job] = []
        size = 0
        while self._queue and (not jobs or size + len(self._queue[0].texts) <= EMBED_BATCH_MAX):
            job = self._queue.popleft()
            if not job.done.done():  # else its recall has gone on without
                jobs.append(job)
                size += len(job.texts)
        return jobs

    async def _embed(self, texts: list[str]) -> Vectors | None:
        embedder = self._embedder
        if embedder is None:
            return None
        self._batch_began_s = self._clock.monotonic()
        try:
            vectors = await embedder.embed(texts)
            if vectors.shape != (len(texts), embedder.dimension) or not np.isfinite(vectors).all():
                raise ValueError("the embedder returned no vectors of its dimension")
        except Exception as error:  # a model may fail in any way; recall goes on by keywords
            self._broke(error)
            return None
        finally:
            self._batch_began_s = None
        self._counters.add("embed.batches")
        self._counters.add("embed.texts", len(texts))
        self._pause_s = _RETRY_S_MIN
        return vectors

    def _broke(self, error: Exception) -> None:
        # The message may quote a text, but for our own error.
        reason = str(error) if isinstance(error, EmbedderUnavailable) else type(error).__name__
        logger.warning("The embedder failed, recall goes on by keywords: %s", reason)
        self._counters.add("embed.failed")
        self._retry_at_s = self._clock.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, EMBED_RETRY_S_MAX)


async def _in_time(begun: Begun, deadline: Deadline, reserve_s: float) -> Vectors | None:
    try:
        return begun.result() if await deadline.met_by(begun, reserve_s=reserve_s) else None
    finally:
        begun.cancel()


def _nothing() -> Begun:
    nothing: Begun = asyncio.get_running_loop().create_future()
    nothing.set_result(None)
    return nothing


def _give(job: _Job, vectors: Vectors | None) -> None:
    if not job.done.done():
        job.done.set_result(vectors)
