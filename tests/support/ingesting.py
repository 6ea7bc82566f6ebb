"""Ingestion in one process for tests: real SQL, an LLM that answers by the test grammar, a graph in memory.

Each of them can be away, refuse, or fail as a test says. Above: unit tests of pipeline, scan and worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.counters import Counters
from memory.errors import GraphStale
from memory.ingestion.applying import apply
from memory.ingestion.asked import LanguageModels
from memory.ingestion.chunking import cutter
from memory.ingestion.confidential import Confidential
from memory.ingestion.pipeline import Ingestor
from memory.ingestion.scan import Scanner
from memory.ingestion.tools import Outcome, Tools
from memory.knowledge import Knowledge, Patch
from memory.knowledge_ports import Answer, EntityProbe, FactProbe, GraphMatches, GraphState, Usage
from memory.limits import CHUNK_TURNS_MAX
from memory.models import Record, Scope
from tests.support.graph_answers import answer
from tests.support.graph_llm import vector
from tests.support.knowing import Stores

DIMENSION = 64

Fault = Callable[[], Exception | None]


def never() -> Exception | None:
    return None


class GrammarLLM:
    """``LanguageModel``: the test LLM's grammar, without HTTP. ``fault()`` is raised instead, if it gives something."""

    def __init__(self) -> None:
        self.fault: Fault = never
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.on_asked: Callable[[str], Awaitable[None]] | None = None
        self._usage = Usage()

    @property
    def name(self) -> str:
        return "grammar"

    @property
    def usage(self) -> Usage:
        return self._usage

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        self.asked.append(task)
        self._usage = Usage(self._usage.calls + 1, self._usage.input_tokens + len(data), self._usage.output_tokens + 1)
        if self.on_asked is not None:
            await self.on_asked(task)
        await asyncio.sleep(0)
        if error := self.fault():
            raise error
        self.answered.append(task)
        return shape.model_validate(answer(shape.__name__, data, ""))


class HashEmbedder:
    """``Embedder`` of the test LLM's vectors."""

    model = "hashed"
    dimension = DIMENSION

    def __init__(self) -> None:
        self.fault: Fault = never
        self.length = DIMENSION
        self.calls = 0

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        await asyncio.sleep(0)
        if error := self.fault():
            raise error
        return np.array([vector(text, self.length) for text in texts], np.float32).reshape(len(texts), self.length)


class MemoryGraph:
    """``GraphStore`` in a dictionary: the reference of what a graph holds after saves and restores."""

    def __init__(self) -> None:
        self.graphs: dict[Scope, tuple[int, Knowledge]] = {}
        self.fault: Fault = never
        self.save_fault: Fault = never
        self.after_save: Fault = never  # it was saved, and the answer is lost
        self.calls: list[str] = []

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if error := self.fault():
            raise error

    async def state(self, scope: Scope) -> GraphState | None:
        self._called("state")
        found = self.graphs.get(scope)
        return None if found is None else GraphState(found[0], "hashed", DIMENSION)

    async def matches(
        self, scope: Scope, *, entities: Sequence[EntityProbe], facts: Sequence[FactProbe], limit: int
    ) -> GraphMatches:
        self._called("matches")
        known = self.graphs.get(scope, (0, Knowledge()))[1]

        def near(probe: bytes, candidates: Sequence[tuple[str, bytes]]) -> tuple[str, ...]:
            wanted = np.frombuffer(probe, np.float32)
            scored = [(float(wanted @ np.frombuffer(one, np.float32)), id_) for id_, one in candidates if one]
            return tuple(id_ for score, id_ in sorted(scored, reverse=True)[:limit] if score > 0.4)

        named = [(entity.id, entity.vector) for entity in known.entities]
        told = [(fact.id, fact.statement.vector) for fact in known.facts]
        return GraphMatches(
            tuple(near(probe.vector, named) for probe in entities), tuple(near(probe.vector, told) for probe in facts)
        )

    async def save(self, scope: Scope, patch: Patch, *, version: int, expected: int) -> None:
        self._called("save")
        if error := self.save_fault():
            raise error
        at, known = self.graphs.get(scope, (0, Knowledge()))
        if at not in (expected, version):
            raise GraphStale("The graph is of another version.")
        self.graphs[scope] = (version, apply(known, patch))
        if error := self.after_save():
            raise error

    async def restore(self, scope: Scope, knowledge: Knowledge, *, version: int) -> None:
        self._called("restore")
        self.graphs[scope] = (version, knowledge)

    async def delete(self, scope: Scope) -> bool:
        return self.graphs.pop(scope, None) is not None


class Notices:
    """``FactNotices``."""

    def __init__(self) -> None:
        self.versions: list[tuple[Scope, int]] = []
        self.fault: Fault = never

    async def announce(self, scope: Scope, *, version: int) -> None:
        if error := self.fault():
            raise error
        self.versions.append((scope, version))


@dataclass
class Plant:
    """An ingestor with all it works with."""

    stores: Stores
    llm: GrammarLLM = field(default_factory=GrammarLLM)
    embedder: HashEmbedder = field(default_factory=HashEmbedder)
    graph: MemoryGraph = field(default_factory=MemoryGraph)
    notices: Notices = field(default_factory=Notices)
    confidential: Confidential = field(default_factory=Confidential)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.ingestor = self.another()

    def another(self, **changes: Any) -> Ingestor:
        """Another worker's ingestor over the same stores, with breakers of its own."""
        tools = Tools(
            chunks=self.stores.chunks,
            knowledge=changes.get("knowledge", self.stores.knowledge),
            digests=self.stores.digests,
            graph=self.graph,
            llms=LanguageModels(lambda: self.llm),
            embedder=self.embedder,
            notices=self.notices,
            confidential=self.confidential,
            cost_usd=lambda usage: usage.input_tokens / 1e6,
        )
        return Ingestor(tools, self.stores.clock, self.counters, uniform=lambda low, _: low)

    def scanner(self, **changes: Any) -> Scanner:
        stores = self.stores
        options: dict[str, Any] = {"idle_s": 60.0, "ready": lambda: True, "tells": lambda: True, **changes}
        return Scanner(stores.chunks, stores.digests, stores.clock, self.counters, cutter=cutter(), **options)

    async def said(self, scope: Scope, records: Sequence[Record], *, start: int = 1, tokens: int = 2_400) -> int:
        """Archive and cut; returns the user's number."""
        ref = await self.stores.store(scope, records, start=start)
        while await self.stores.chunks.cut(ref, cutter(tokens), limit=CHUNK_TURNS_MAX):
            pass
        return ref.user

    async def ingest_all(self, user: int, *, at_most: int = 200) -> list[Outcome]:
        """Until no chunk is due."""
        outcomes: list[Outcome] = []
        while len(outcomes) < at_most:
            outcome = await self.ingestor.ingest_next(user)
            if outcome is Outcome.NOTHING:
                break
            outcomes.append(outcome)
            if not outcome.goes_on:
                break
        return outcomes

    async def facts(self, scope: Scope) -> list[str]:
        """The live facts' texts, sorted."""
        changes = await self.stores.knowledge.changes(scope, after=0, limit=10_000)
        now = self.stores.clock.now()
        return sorted(fact.text for fact in changes.facts if fact.invalid_at is None or fact.invalid_at > now)

    async def assert_projected(self, scope: Scope) -> None:
        """The graph is what SQL knows."""
        version, known = await self.stores.knowledge.read(scope)
        assert self.graph.graphs.get(scope, (0, Knowledge())) == (version, known)
