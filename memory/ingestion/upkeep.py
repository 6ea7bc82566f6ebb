"""Looking after what is known: chunks that wait or were given up on, graphs that are lost, vectors of another model.

``python -m memory ingestion``, ``rebuild`` and ``reindex``. None of it asks an LLM, and none of it prints content.
Above: wiring_upkeep, cli. Below: graph_upkeep, knowledge_ports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memory.errors import EmbedderUnavailable, ProviderAnswerInvalid, StoreFault, StoreUnavailable
from memory.identity import group_digest
from memory.ingestion.graph_upkeep import Graphs, is_current, restore_graph, settle_pending
from memory.knowledge import ChunkState, Knowledge, Statement
from memory.knowledge_ports import ChunkProgress, ChunkStatus, GraphNotes, KnownUser, KnownUsers
from memory.limits import EMBED_REMOTE_TIMEOUT_S
from memory.models import Scope
from memory.ports import Embedder

logger = logging.getLogger(__name__)

PAGE = 200  # users or chunks at a time
_EMBED_AT_ONCE = 64
_TRIES = 3  # a user who is being ingested while the vectors are made

Told = Callable[[int], None]
"""Called with how many more users are done."""


# -- chunks


async def chunks_in(progress: ChunkProgress, states: Sequence[ChunkState], *, limit: int) -> list[ChunkStatus]:
    """Chunks in these states, oldest first, ``limit`` at most."""
    found: list[ChunkStatus] = []
    for state in states:
        after = ""
        while page := await progress.statuses(state=state, limit=min(PAGE, limit), after=after):
            found += page
            after = page[-1].chunk.id
            if len(found) >= limit:
                break
    return sorted(found, key=lambda status: (status.chunk.created_at, status.chunk.id))[:limit]


async def move_all(progress: ChunkProgress, states: Sequence[ChunkState], *, to: ChunkState) -> int:
    """Move every chunk in these states; returns how many."""
    moved = 0
    for state in states:
        # What is moved is no longer listed, so the first page is always another one.
        while page := await progress.statuses(state=state, limit=PAGE):
            here = await progress.move([status.chunk.id for status in page], to=to, from_=[state])
            if not here:
                break
            moved += here
    return moved


# -- users


async def each_user(users: KnownUsers, *, org_id: str | None, agent_id: str | None) -> AsyncIterator[KnownUser]:
    """Users of whom something is known, in the order of their numbers."""
    after = 0
    while page := await users.known(after=after, limit=PAGE, org_id=org_id, agent_id=agent_id):
        for user in page:
            yield user
        after = page[-1].number


async def one_user(users: KnownUsers, scope: Scope) -> AsyncIterator[KnownUser]:
    """The user, if something is known of them."""
    user = await users.of(scope)
    if user is not None:
        yield user


@dataclass(slots=True)
class Report:
    """``users`` were brought up; ``current`` needed nothing; ``failed`` could not be; ``erased`` graphs of nobody went;
    of ``lost`` chunks SQL has no facts, ``again`` are those that are extracted again."""

    users: int = 0
    current: int = 0
    failed: int = 0
    erased: int = 0
    lost: int = 0
    again: int = 0
    texts: int = 0

    def count(self, done: bool) -> None:
        self.users += done
        self.failed += not done


class Upkeep:
    """Restores graphs from SQL, and makes vectors anew. Belongs to one event loop.

    A graph that is away costs its users the graph alone: they are noted, and an ingestion worker restores them.
    """

    def __init__(self, users: KnownUsers, notes: GraphNotes, graphs: Graphs) -> None:
        self._users, self._notes, self._graphs = users, notes, graphs
        self._away = False

    async def rebuild(
        self, users: AsyncIterator[KnownUser], on_user: Told, *, again: ChunkProgress | None = None
    ) -> Report:
        """Make these users' graphs what SQL knows, whatever they were. With ``again``, chunks whose facts are not in
        SQL wait there for extraction anew.

        Raises:
            StoreUnavailable: SQL is away.
        """
        report = Report()
        async for user in users:
            report.lost += user.lost
            if again is not None and user.lost:
                lost = await self._users.lost_chunks(user.number, limit=user.lost)
                report.again += await again.move(lost, to=ChunkState.WAITING, from_=[ChunkState.DONE])
            report.count(await self._restored(user.scope))
            on_user(1)
        return report

    async def reindex(self, users: AsyncIterator[KnownUser], embedder: Embedder, vectors: str, on_user: Told) -> Report:
        """Make the vectors of these users with ``embedder``, named ``vectors``, where they are of another one, and
        restore their graphs. A user is done as a whole or not at all, so that it can be cut off and begun again.

        Raises:
            StoreUnavailable: SQL is away.
            ProviderFault: the embedder's.
        """
        report = Report()
        async for user in users:
            if user.vectors == vectors and await self._is_current(user):
                report.current += 1
            else:
                report.texts += await self._reembed(user, embedder, vectors)
                report.count(await self._restored(user.scope))
            on_user(1)
        return report

    async def settle(self) -> int:
        """Delete or restore the graphs that an erasure could not reach; returns how many.

        Raises:
            StoreUnavailable: SQL or the graph is away.
        """
        return await settle_pending(self._notes, self._graphs)

    async def _is_current(self, user: KnownUser) -> bool:
        if self._away:
            return False
        try:
            return await is_current(user.scope, self._notes, self._graphs)
        except (StoreUnavailable, StoreFault):
            return False

    async def _restored(self, scope: Scope) -> bool:
        if self._away:
            await self._notes.note_graph(scope)
            return False
        try:
            await restore_graph(scope, self._notes, self._graphs)
        except (StoreUnavailable, StoreFault) as error:
            self._away = isinstance(error, StoreUnavailable)
            logger.warning("The graph of user %s was not restored: %s", group_digest(scope), error)
            return False
        return True

    async def _reembed(self, user: KnownUser, embedder: Embedder, vectors: str) -> int:
        if user.vectors == vectors:
            return 0
        for _ in range(_TRIES):
            version, known = await self._notes.read(user.scope)
            made = await _embedded(texts_of(known), embedder)
            if await self._users.reembedded(user.scope, with_vectors(known, made), version=version, vectors=vectors):
                return len(made)
        raise StoreUnavailable("A user's facts change while their vectors are made; run it again.")


def texts_of(knowledge: Knowledge) -> list[str]:
    """What has a vector, each text once."""
    said = [*(fact.statement.text for fact in knowledge.facts), *(one.statement.text for one in knowledge.wordings)]
    named = [*(one.name for one in knowledge.entities), *(one.name for one in knowledge.mentions if one.vector)]
    return list(dict.fromkeys([*said, *named]))


def with_vectors(knowledge: Knowledge, vectors: dict[str, bytes]) -> Knowledge:
    """``knowledge`` with these vectors, by text."""

    def said(statement: Statement) -> Statement:
        return replace(statement, vector=vectors[statement.text])

    return replace(
        knowledge,
        entities=tuple(replace(one, vector=vectors[one.name]) for one in knowledge.entities),
        facts=tuple(replace(one, statement=said(one.statement)) for one in knowledge.facts),
        wordings=tuple(replace(one, statement=said(one.statement)) for one in knowledge.wordings),
        mentions=tuple(replace(one, vector=vectors[one.name]) if one.vector else one for one in knowledge.mentions),
    )


async def _embedded(texts: Sequence[str], embedder: Embedder) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for part in _parts(texts):
        try:
            async with asyncio.timeout(2 * EMBED_REMOTE_TIMEOUT_S):
                array = await embedder.embed(part)
        except TimeoutError:
            raise EmbedderUnavailable("The embeddings did not come in time; run it again.") from None
        if array.shape != (len(part), embedder.dimension):
            raise ProviderAnswerInvalid(f"The embeddings are not {len(part)} vectors of {embedder.dimension} numbers.")
        found |= {text: row.astype("<f4").tobytes() for text, row in zip(part, array, strict=True)}
    return found


def _parts(texts: Sequence[str]) -> Iterable[Sequence[str]]:
    return (texts[start : start + _EMBED_AT_ONCE] for start in range(0, len(texts), _EMBED_AT_ONCE))
