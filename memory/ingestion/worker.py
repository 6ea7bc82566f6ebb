"""An ingestion worker: what its tasks do, and how it is.

Chunks are cut and digests are made whatever is configured. Facts need an LLM and a graph: where they are skipped, or
can't be opened yet, chunks wait in SQL, and are ingested once they can be. Session close waits for none of this.
Above: wiring_ingestion. Below: tasks, scan, pipeline, digesting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import (
    NoGraphServer,
    ProviderFault,
    ProviderUnavailable,
    StoreFault,
    StoreUnavailable,
    VoiceMemoryError,
)
from memory.ingestion.asked import LanguageModels
from memory.ingestion.breaker import Breaker
from memory.ingestion.digesting import Teller
from memory.ingestion.pipeline import Ingestor
from memory.ingestion.scan import Queue
from memory.ingestion.telling import reason_of
from memory.ingestion.tools import Outcome
from memory.knowledge_ports import Usage
from memory.limits import INGEST_CHUNKS_MAX, INGEST_OPEN_PATIENCE_S, INGEST_OPEN_RETRY_S

logger = logging.getLogger(__name__)

PartStatus = Literal["healthy", "skipped", "unhealthy"]


@dataclass(frozen=True, slots=True)
class Part:
    """How a part of ingestion is: ``details`` are figures."""

    status: PartStatus
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


class Scan(Protocol):
    async def look(self, queue: Queue) -> bool: ...


class Digests(Protocol):
    async def digest(self, user: int) -> None:
        """Make the digests of the user's sessions that lack one."""
        ...


@dataclass(slots=True)
class Knowledge:
    """The opened half that facts need. ``check`` asks the graph whether it answers."""

    ingestor: Ingestor
    llms: LanguageModels
    cost_usd: Callable[[Usage], float | None]
    check: Callable[[], Awaitable[str]]  # what answers; raises NoGraphServer, StoreUnavailable, StoreFault


class FactsPart:
    """What facts need, opened when it can be. ``skipped``: why this configuration has none ("" if it has), as told, or
    as the last attempt to open it has found: a server without graphs may be replaced by one that has them."""

    def __init__(self, clock: Clock, open_knowledge: Callable[[], Awaitable[Knowledge]] | None, skipped: str) -> None:
        self._clock, self._open, self.skipped = clock, open_knowledge, skipped
        self._opened: Knowledge | None = None
        self._opening = asyncio.Lock()
        self._next_try_s = 0.0
        self._patient_until_s = clock.monotonic() + INGEST_OPEN_PATIENCE_S
        self.problem = "not opened yet"

    @property
    def opened(self) -> Knowledge | None:
        return self._opened

    def teller(self) -> Teller | None:
        """The LLM that tells sessions in short, or ``None`` where there is none.

        Raises:
            ProviderUnavailable: it can't be opened yet; after ``INGEST_OPEN_PATIENCE_S`` nobody waits for it any more.
        """
        if self._opened is not None:
            return Teller(self._opened.llms, self._opened.ingestor.llm_breaker)
        if not self.skipped and self._clock.monotonic() < self._patient_until_s:
            raise ProviderUnavailable(self.problem)
        return None

    def tells(self) -> bool:
        """Whether digests can be made now, by the LLM or without one."""
        try:
            teller = self.teller()
        except ProviderUnavailable:
            return False
        return teller is None or not teller.breaker.wait_s

    @property
    def ready(self) -> bool:
        """Whether a chunk can be ingested now, as far as this process knows."""
        return self._opened is not None and not self._opened.ingestor.wait_s

    async def get(self) -> Knowledge | None:
        """The opened half; ``None`` while it can't be opened, which is tried every ``INGEST_OPEN_RETRY_S``."""
        async with self._opening:
            if self._opened is None and self._open is not None and self._clock.monotonic() >= self._next_try_s:
                try:
                    self._opened = await self._open()
                    self.problem = self.skipped = ""
                except (VoiceMemoryError, OSError) as error:
                    self._told(str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__)
                    self.skipped = self.problem if isinstance(error, NoGraphServer) else ""
                    self._next_try_s = self._clock.monotonic() + INGEST_OPEN_RETRY_S
        return self._opened

    def _told(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("Facts can't be extracted yet; chunks wait: %s", problem)
        self.problem = problem

    async def parts(self) -> dict[str, Part]:
        """How the graph, the LLM and the embeddings are, by the names that users of the format know."""
        if self.skipped:
            return dict.fromkeys(("graphiti", "llm", "embeddings"), Part("skipped", self.skipped))
        if self._opened is None:
            return dict.fromkeys(("graphiti", "llm", "embeddings"), Part("unhealthy", self.problem))
        ingestor = self._opened.ingestor
        return {
            "graphiti": await self._graph(self._opened),
            "llm": _provider(ingestor.llm_breaker, self._spent(self._opened)),
            "embeddings": _provider(ingestor.embedder_breaker, {}),
        }

    async def _graph(self, knowledge: Knowledge) -> Part:
        try:
            told = await knowledge.check()
        except NoGraphServer as error:
            return Part("skipped", str(error))
        except (StoreUnavailable, StoreFault) as error:
            return Part("unhealthy", str(error))
        problem = knowledge.ingestor.problem
        return Part("unhealthy", problem) if problem else Part("healthy", told)

    def _spent(self, knowledge: Knowledge) -> dict[str, object]:
        usage = knowledge.llms.usage
        cost = knowledge.cost_usd(usage)
        spent: dict[str, object] = {
            "calls": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        }
        return spent if cost is None else {**spent, "cost_usd": round(cost, 6)}


def _provider(breaker: Breaker, figures: Mapping[str, object]) -> Part:
    state = breaker.state
    details = {**figures, "breaker": state.status}
    if state.status == "closed":
        return Part("healthy", f"{breaker.name}: no fault since its last answer", details)
    kind = "the operator has to act: " if state.refused else ""
    return Part("unhealthy", f"{kind}{state.reason}", {**details, "asked_again_in_s": round(state.wait_s, 1)})


class IngestWork:
    """What the tasks do (``tasks.Work``)."""

    def __init__(
        self,
        scanner: Scan,
        facts: FactsPart,
        digests: Digests,
        counters: Counters,
        *,
        drain: Callable[[], Awaitable[object]],
        settle: Callable[[], Awaitable[int]],
    ) -> None:
        self._scanner, self._facts, self._digests = scanner, facts, digests
        self._drain, self._settle = drain, settle
        self.counters = counters

    async def look(self, queue: Queue) -> bool:
        """Move on what still lies in logs, have erasures reach their graphs, then look.

        Raises:
            StoreUnavailable: a store is away.
        """
        await self._besides("scan.logs", self._drain)  # of recall hosts that are no more: others do it within a second
        await self._besides("scan.graphs", self._settle)  # which erasures have still to reach
        await self._facts.get()
        return await self._scanner.look(queue)

    async def _besides(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        """What a look does besides; a failure of it is counted, and holds up nothing."""
        try:
            await call()
        except StoreUnavailable as error:
            self.counters.add(f"{name}_failed")
            logger.info("%s: %s", name, error)
        except Exception as error:
            self.counters.add(f"{name}_failed")
            logger.error("%s: %s", name, reason_of(error))

    async def ingest(self, user: int) -> bool:
        knowledge = await self._facts.get()
        if knowledge is None:
            return False
        for _ in range(INGEST_CHUNKS_MAX):
            outcome = await knowledge.ingestor.ingest_next(user)
            if not outcome.goes_on:
                return False
        return True

    async def interrupted(self, user: int) -> None:
        knowledge = await self._facts.get()
        if knowledge is not None and await knowledge.ingestor.interrupted(user) is not Outcome.NOTHING:
            self.counters.add("ingest.interrupted")

    async def digest(self, user: int) -> None:
        try:
            await self._digests.digest(user)
        except ProviderFault as error:
            self.counters.add("digests.waiting")
            logger.info("Digests of user %d wait: %s", user, error)
