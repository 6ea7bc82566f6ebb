"""What the pipeline works with, and how a chunk may end. Above: pipeline, worker. Below: asked, confidential, ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from memory.ingestion.asked import LanguageModels
from memory.ingestion.confidential import Confidential
from memory.knowledge_ports import (
    ChunkProgress,
    ChunkStore,
    DigestStore,
    FactNotices,
    GraphNotes,
    GraphStore,
    KnowledgeStore,
    Usage,
)
from memory.ports import Embedder


class Chunks(ChunkStore, ChunkProgress, Protocol):
    """Chunks, and what became of them."""


class Known(KnowledgeStore, GraphNotes, Protocol):
    """Knowledge, and what is remembered of its graphs."""


class Outcome(StrEnum):
    NOTHING = "nothing"  # no chunk of the user is due
    DONE = "done"
    GONE = "gone"  # erased, dropped, or done by another worker meanwhile
    WAITS = "waits"  # something it needs is away; tried again later, and counts for nothing
    FAILED = "failed"  # tried again later
    DEAD = "dead"  # given up on

    @property
    def goes_on(self) -> bool:
        """Whether the user's next chunk may be due."""
        return self in (Outcome.DONE, Outcome.GONE, Outcome.DEAD)


@dataclass(frozen=True, slots=True)
class Tools:
    """What ingestion works with. LLM, embedder and graph are asked through breakers of their own."""

    chunks: Chunks
    knowledge: Known
    digests: DigestStore
    graph: GraphStore
    llms: LanguageModels
    embedder: Embedder
    notices: FactNotices
    confidential: Confidential
    cost_usd: Callable[[Usage], float | None]
