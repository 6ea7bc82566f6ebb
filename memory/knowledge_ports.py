"""The contracts of ingestion and the knowledge layers: chunks, knowledge in SQL, the graph, the LLM.

SQL is what counts. A chunk's patch is committed there and projected onto the graph within one transaction under the
user's row lock; a graph that is lost, or not of the same version, is restored from SQL without an LLM.
Above: ingestion, retrieval, stores, providers. Below: knowledge, models.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

from pydantic import BaseModel

from memory.knowledge import (
    Chunk,
    ChunkSpan,
    ChunkState,
    Entity,
    Knowledge,
    KnownFact,
    Patch,
    SessionDigest,
    TurnPart,
)
from memory.models import Fact, MemoryEntry, Scope

Answer = TypeVar("Answer", bound=BaseModel)


# -- chunks


@dataclass(frozen=True, slots=True)
class SessionRef:
    """A session by the archive's number of its user. Not an identity."""

    user: int
    session_id: str


@dataclass(frozen=True, slots=True)
class ArchivedEntry:
    cursor: int
    entry: MemoryEntry


Cutter = Callable[[Sequence[ArchivedEntry]], Sequence[ChunkSpan]]


class EarlierTurns(Protocol):
    """What was said before the part of a session at hand."""

    async def before(self, ref: SessionRef, cursor: int, *, holding: str, limit: int) -> list[ArchivedEntry]:
        """The session's newest ``limit`` turns before ``cursor`` that hold a word, in any case; newest first."""
        ...


class ChunkStore(EarlierTurns, Protocol):
    """Which turns are in which chunk. Cut once, in the order of the archive; what is cut is never cut otherwise."""

    async def quiet(self, *, before: datetime, limit: int) -> list[SessionRef]:
        """Sessions with turns in no chunk yet whose last turn was stored before ``before``; longest quiet first."""
        ...

    async def cut(self, ref: SessionRef, cutter: Cutter, *, limit: int) -> int:
        """Hand the session's first ``limit`` turns that are in no chunk to ``cutter`` and store its spans as chunks,
        in one transaction under the user's lock; returns how many. Turns behind the last span stay for the next time.

        ``cutter`` is pure and quick. 0: nothing was there to cut.
        """
        ...

    async def due(self, *, now: datetime, limit: int) -> list[int]:
        """Users whose first waiting chunk may be ingested now; longest waiting first."""
        ...

    async def next(self, user: int, *, now: datetime) -> Chunk | None:
        """The user's first waiting chunk in the archive's order, if its time has come; it holds up the later ones."""
        ...

    async def turns(self, chunk: Chunk) -> list[TurnPart]:
        """The chunk's turns, oldest first; empty if they were erased. Blank parts are left out."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkStatus:
    """A chunk in a list. ``position`` among the user's waiting ones isn't told; ``age_s`` since it was cut."""

    chunk: Chunk
    group_digest: str
    age_s: float


class ChunkProgress(Protocol):
    """What became of chunks."""

    async def keep_answers(self, chunk: Chunk, answers: str) -> bool:
        """Keep what the LLM has answered; False if the chunk is gone."""
        ...

    async def failed(self, chunk: Chunk, *, reason: str, not_before: datetime | None, counts: bool = True) -> None:
        """Count an attempt; tried again at ``not_before``, or given up on (``None``: DEAD).

        ``counts`` False: it only waits, for something that isn't the chunk's fault, such as a provider that is away.
        """
        ...

    async def statuses(self, *, state: ChunkState | None, limit: int, after: str = "") -> list[ChunkStatus]:
        """By age, oldest first; ``after``: the last id of the page before. Never creates anything."""
        ...

    async def move(self, ids: Sequence[str], *, to: ChunkState, from_: Sequence[ChunkState]) -> int:
        """Retry (to WAITING, attempts from 0) or drop (to DROPPED) by hand; returns how many moved."""
        ...

    async def counts(self) -> dict[str, int]:
        """Chunks by state, ``uncut`` sessions, and ``oldest_waiting_s``."""
        ...


# -- knowledge


@dataclass(frozen=True, slots=True)
class Related:
    """What SQL knows of the names and pairs of new facts: full states, for merging."""

    entities: dict[str, Entity] = field(default_factory=dict)  # by id
    facts: dict[str, KnownFact] = field(default_factory=dict)  # by id


@dataclass(frozen=True, slots=True)
class FactChanges:
    """Facts that changed after a version, up to ``version``. ``facts`` as callers see them; ended ones are among them
    with their ``invalid_at``. ``complete`` False: there are more; ask again after ``version``."""

    version: int
    facts: tuple[Fact, ...]
    complete: bool = True


class KnowledgeStore(Protocol):
    """One user's knowledge, in SQL, with a version that each commit counts up by one."""

    async def scope_of(self, user: int) -> Scope | None:
        """Whose number it is; ``None`` once the user is forgotten."""
        ...

    async def version(self, scope: Scope) -> int:
        """0: nothing is known. Never creates anything."""
        ...

    async def related(
        self, scope: Scope, *, keys: Sequence[str], entity_ids: Sequence[str], fact_ids: Sequence[str]
    ) -> Related:
        """Entities with these keys or ids, the facts with these ids, and every fact (ended ones too, newest first, at
        most ``RELATED_FACTS_MAX``) that touches one of those entities."""
        ...

    async def commit(self, chunk: Chunk, patch: Patch, project: Callable[[int], Awaitable[None]]) -> int | None:
        """Store the patch and mark the chunk done; returns the new version.

        One transaction, under the user's lock; ``project(new_version)`` is awaited in it before it commits, so that
        what the projection refuses is not stored either. ``None``, and nothing stored: the chunk is gone or no longer
        waits (erased, dropped, or done by another worker).

        Raises:
            StoreUnavailable: not known to be stored; a repetition has no second effect.
        """
        ...

    async def read(self, scope: Scope) -> tuple[int, Knowledge]:
        """Version and everything; for rebuilding."""
        ...


class FactSource(Protocol):
    """What the recall host needs of the facts."""

    async def changes(self, scope: Scope, *, after: int, limit: int) -> FactChanges:
        """Facts whose last change is later than version ``after`` (0 = all), in the order of versions."""
        ...


class FactNotices(Protocol):
    """Tells running recall hosts that a user's facts have changed, through what they read at each recall anyway
    (``LogSlice.facts``)."""

    async def announce(self, scope: Scope, *, version: int) -> None:
        """Idempotent; an older version than the one that is there changes nothing."""
        ...


class DigestStore(EarlierTurns, Protocol):
    """The episodic layer."""

    async def undigested(self, *, before: datetime, limit: int, ingested: bool = False) -> list[SessionRef]:
        """Sessions quiet since ``before`` whose newest turn no digest covers.

        ``ingested``: only those of which no turn waits to be cut or ingested, since that brings a digest along.
        """
        ...

    async def entries(self, ref: SessionRef, *, limit: int) -> list[ArchivedEntry]:
        """The session's newest ``limit`` turns, oldest first: ARCHIVE_READ_CHARS_MAX of text at most, but one turn."""
        ...

    async def put(self, ref: SessionRef, digest: SessionDigest) -> bool:
        """Keep, or replace an older one; False if the session is gone."""
        ...

    async def digest(self, ref: SessionRef) -> SessionDigest | None:
        """The session's own; ``None``: none was made yet."""
        ...

    async def digests(self, scope: Scope, *, limit: int) -> list[SessionDigest]:
        """Newest first."""
        ...


# -- graph


@dataclass(frozen=True, slots=True)
class EntityProbe:
    key: str
    name: str
    vector: bytes


@dataclass(frozen=True, slots=True)
class FactProbe:
    text: str
    vector: bytes


@dataclass(frozen=True, slots=True)
class GraphMatches:
    """Ids only: what they are, SQL knows. Best first; one tuple for each probe, in its order."""

    entities: tuple[tuple[str, ...], ...]  # near by name vector; exact names are SQL's to find
    facts: tuple[tuple[str, ...], ...]  # by vector, then by keyword, ended ones included


@dataclass(frozen=True, slots=True)
class GraphState:
    version: int
    model: str
    dimension: int


@dataclass(frozen=True, slots=True)
class GraphTodo:
    """A graph that may not be what SQL knows: an erasure, or a restore, has still to reach it.

    ``facts``: how many an erasure took, as long as nobody was told.
    """

    id: int
    scope: Scope
    facts: int


class GraphNotes(Protocol):
    """What SQL remembers of graphs, over the end of any process. ``SqlKnowledgeStore`` is one."""

    async def version(self, scope: Scope) -> int: ...

    async def read(self, scope: Scope) -> tuple[int, Knowledge]: ...

    async def vectors(self, scope: Scope) -> str:
        """The model and dimension that the user's vectors are of; "": there are none."""
        ...

    async def note_graph(self, scope: Scope) -> int:
        """The user's graph is about to be restored; returns the number to settle it with."""
        ...

    async def pending_graph_erasures(self, *, limit: int, scope: Scope | None = None) -> list[GraphTodo]:
        """Oldest first; of one scope, if given. Also those whose user is forgotten."""
        ...

    async def graph_told(self, ids: Sequence[int]) -> None:
        """Somebody was told how many facts these erasures took."""
        ...

    async def graph_settled(self, ids: Sequence[int]) -> None:
        """These graphs are what SQL knows."""
        ...


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user of whom something is known, or was. ``vectors``: as GraphNotes has it. ``lost``: how many of their chunks
    are done, but their episodes are not in SQL."""

    number: int
    scope: Scope
    vectors: str
    lost: int


class KnownUsers(Protocol):
    """Users by what is known of them, for upkeep."""

    async def known(
        self, *, after: int, limit: int, org_id: str | None = None, agent_id: str | None = None
    ) -> list[KnownUser]:
        """Users with numbers above ``after``, in their order; of one organisation or agent, if given."""
        ...

    async def of(self, scope: Scope) -> KnownUser | None:
        """``None``: nothing is known of them."""
        ...

    async def lost_chunks(self, number: int, *, limit: int) -> list[str]:
        """Ids of the user's chunks that are done, but whose episodes are not in SQL."""
        ...

    async def reembedded(self, scope: Scope, knowledge: Knowledge, *, version: int, vectors: str) -> bool:
        """Replace all of the user's vectors by those in ``knowledge``, which is what was known at ``version``, and
        count the version up; False, and nothing is replaced: something has changed since."""
        ...


class GraphStore(Protocol):
    """One graph per Scope on Graphiti's layout, made by the first write and never by a read.

    Raises (all): StoreUnavailable: away, or too busy (TIMEOUT, MAX_QUEUED_QUERIES): try again. StoreFault: refused.
    """

    async def state(self, scope: Scope) -> GraphState | None:
        """``None``: there is no graph. Never makes one."""
        ...

    async def matches(
        self, scope: Scope, *, entities: Sequence[EntityProbe], facts: Sequence[FactProbe], limit: int
    ) -> GraphMatches:
        """What may be the same or bear on it. Empty where there is no graph."""
        ...

    async def save(self, scope: Scope, patch: Patch, *, version: int, expected: int) -> None:
        """Apply one patch in one atomic query and set the graph's version.

        Raises:
            GraphStale: the graph is neither of version ``expected``, nor of ``version`` by this very patch; or its
                model is another one: ``restore`` it.
        """
        ...

    async def restore(self, scope: Scope, knowledge: Knowledge, *, version: int) -> None:
        """Make the graph what ``knowledge`` is, whatever it was; its version is set last, so a restore that was cut off
        is a stale graph."""
        ...

    async def delete(self, scope: Scope) -> bool:
        """The graph and its name are gone; False if there was none."""
        ...


# -- the LLM


@dataclass(frozen=True, slots=True)
class Usage:
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class LanguageModel(Protocol):
    """An LLM that answers in a given shape."""

    @property
    def name(self) -> str: ...

    @property
    def usage(self) -> Usage:
        """So far."""
        ...

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        """One call, bounded by ``LLM_TIMEOUT_S``; not repeated here. ``task`` names it, for counters.

        Raises:
            ProviderUnavailable: away, overloaded, limited (``retry_after_s`` if it said so): try again later.
            ProviderRefused: key, model or account: the operator has to act.
            ProviderAnswerInvalid: no JSON of this shape, cut off, or too long.
        """
        ...
