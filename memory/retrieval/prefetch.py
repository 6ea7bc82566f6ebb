"""Recall that starts while the user still speaks, and is taken when the LLM is called. One of these a session.

One recall by prefetch at a time; the newest text wins; one that runs is awaited rather than thrown away. Nothing here
raises or outlasts its budget: what is late or fails is counted, and the turn goes on without (P-silent).

Above: plugin, service. Below: ports, deadlines, limits. Imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import logging
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from memory.clock import Clock
from memory.counters import Counters
from memory.limits import PREFETCH_INTERVAL_S
from memory.models import Recall, Scope
from memory.ports import Retriever
from memory.retrieval.deadlines import Deadline
from memory.retrieval.right_of_way import RightOfWay
from memory.retrieval.tasks import end_all

logger = logging.getLogger(__name__)

_SPARE_PASSAGES = 4  # asked for beyond the limit: some may be in the context by the time they are taken
_STAND_IN_SHARE = 0.5  # of the query's words, which a prefetched text must have to be used in its place
_NOT_WORDS = re.compile(r"[\W_]+")


def plain(text: str) -> str:
    """``text`` as prefetched texts are compared: what changes between an interim and a final transcript is gone."""
    return _NOT_WORDS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def stands_in(prefetched: str, query: str) -> bool:
    """Whether a plain prefetched text has so much of a plain query that its result is better than none."""
    words = query.split()
    known = set(prefetched.split())
    return sum(word in known for word in words) >= _STAND_IN_SHARE * max(1, len(words))


@dataclass(frozen=True, slots=True)
class _Started:
    """A recall, and the plain text it is for."""

    text: str
    task: asyncio.Task[Recall]


class Prefetcher:
    """Recall for one session of one user. Use from one event loop; close with ``aclose``."""

    def __init__(
        self,
        retriever: Retriever,
        scope: Scope,
        *,
        clock: Clock,
        budget_ms: float,
        limit: int,
        counters: Counters,
        interval_s: float = PREFETCH_INTERVAL_S,
        way: RightOfWay | None = None,
    ) -> None:
        self._retriever, self._scope, self._clock = retriever, scope, clock
        self._budget_ms, self._limit, self._interval_s = budget_ms, limit, interval_s
        self._counters = counters
        self._way = way or RightOfWay(clock)
        self._in_context: frozenset[str] = frozenset()
        self._wanted: str | None = None
        self._running: _Started | None = None
        self._ready: _Started | None = None
        self._following: asyncio.Task[None] | None = None
        self._failing = self._closed = False

    def hint(self, query: str, in_context: frozenset[str] | None = None) -> None:
        """The user has said ``query`` so far: have a recall for it running, or following the one that runs.

        ``in_context``: ids of entries that the LLM is given anyhow; ``None``: those of the latest ``take``.
        """
        text = plain(query)
        newest = self._running or self._ready
        if self._closed or not text:
            return
        if newest is not None and newest.text == text:
            self._wanted = None  # an older text in between must not come after it
            return
        self._in_context = self._in_context if in_context is None else in_context
        self._wanted = query
        if self._following is None or self._following.done():
            # Begun here rather than in the task: livekit's own steps of the turn would come before it.
            began_s, started = self._begin_wanted(query)
            self._following = asyncio.create_task(self._follow(started, began_s))

    async def take(self, query: str, remaining_ms: float, exclude_ids: frozenset[str] = frozenset()) -> Recall | None:
        """What is remembered that bears on ``query``, entries ``exclude_ids`` left out, within ``remaining_ms``.

        The prefetched result if it is for this text, else one of its own. When that is late or fails, a result for
        most of the text (the last interim, as a rule) is used rather than none. ``None``: there is nothing in time.
        Never raises; counted as ``recall.ok``, ``recall.empty``, ``recall.late`` or ``recall.failed``, the last
        interim's use as ``recall.stand_in`` besides. What was prefetched for this turn is not used for a later one.
        """
        deadline = Deadline(self._clock, remaining_ms)
        interims = [started for started in (self._running, self._ready) if started is not None]
        self._running = self._ready = self._wanted = None
        self._in_context = exclude_ids
        try:
            result = await self._taken(query, interims, deadline)
        finally:
            for started in interims:
                started.task.cancel()
        return self._counted(result, exclude_ids)

    async def aclose(self) -> None:
        """Cancel what runs. Idempotent."""
        self._closed = True
        running = None if self._running is None else self._running.task  # which may have nobody to follow it yet
        self._wanted = self._running = self._ready = None
        await end_all((self._following, running))

    def _begin_wanted(self, query: str) -> tuple[float, _Started]:
        self._wanted = None
        self._running = self._start(query, self._budget_ms)
        return self._clock.monotonic(), self._running

    async def _taken(
        self, query: str, interims: list[_Started], deadline: Deadline
    ) -> Recall | Literal["late", "failed"]:
        text = plain(query)
        result: Recall | Literal["late", "failed"] = "failed"
        for started in interims:
            if started.text == text and not isinstance(result, Recall):
                result = await self._outcome(started, deadline)
        if result == "failed" and not self._closed:
            result = await self._own(query, deadline)
        if not isinstance(result, Recall):
            result = self._stand_in(text, interims) or result
        return result

    async def _follow(self, started: _Started, began_s: float) -> None:
        while True:
            try:
                await asyncio.wait((started.task,))
            finally:
                started.task.cancel()
            if self._running is started:  # else a turn has ended meanwhile, and this was for it
                self._running = None
                self._ready = started
            await self._clock.sleep(max(0.0, began_s + self._interval_s - self._clock.monotonic()))
            if self._wanted is None:
                return
            began_s, started = self._begin_wanted(self._wanted)

    def _start(self, query: str, budget_ms: float) -> _Started:
        self._way.take()  # at once: who stores is woken before the task begins
        task = asyncio.create_task(
            self._retriever.recall(
                self._scope,
                query,
                limit=self._limit + _SPARE_PASSAGES,
                budget_ms=budget_ms,
                exclude_ids=self._in_context,
            )
        )
        task.add_done_callback(self._ended)
        return _Started(plain(query), task)

    def _ended(self, task: asyncio.Task[Recall]) -> None:
        self._way.give()
        # A prefetch that fails with nobody waiting for it is no news; asyncio would print its traceback.
        if not task.cancelled():
            task.exception()

    async def _own(self, query: str, deadline: Deadline) -> Recall | Literal["late", "failed"]:
        if not deadline.remaining_s():
            return "late"
        started = self._start(query, deadline.remaining_s() * 1_000)
        try:
            return await self._outcome(started, deadline)
        finally:
            started.task.cancel()

    async def _outcome(self, started: _Started, deadline: Deadline) -> Recall | Literal["late", "failed"]:
        if not await deadline.met_by(started.task):
            return "late"
        recall = _result(started)
        if recall is not None:
            return recall
        return "failed" if deadline.remaining_s() else "late"

    def _stand_in(self, text: str, interims: list[_Started]) -> Recall | None:
        for started in interims:
            recall = _result(started) if started.task.done() and stands_in(started.text, text) else None
            if recall is not None:
                self._counters.add("recall.stand_in")
                return recall
        return None

    def _counted(self, result: Recall | Literal["late", "failed"], exclude_ids: frozenset[str]) -> Recall | None:
        if not isinstance(result, Recall):
            self._counters.add(f"recall.{result}")
            if not self._failing:
                logger.warning("Recall is %s; turns go on without memory until it is back.", result)
            self._failing = True
            return None
        self._failing = False
        passages = tuple(passage for passage in result.passages if passage.id not in exclude_ids)
        result = result.model_copy(update={"passages": passages[: self._limit]})
        self._counters.add("recall.ok" if result.passages or result.facts else "recall.empty")
        return result


def _result(started: _Started) -> Recall | None:
    task = started.task
    return None if task.cancelled() or task.exception() is not None else task.result()
