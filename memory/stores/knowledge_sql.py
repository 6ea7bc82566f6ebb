"""What is known of users, in SQL: entities, facts with their validity, the episodes they came from.

Above: wiring. Below: database, users, knowledge_rows, knowledge_schema. A commit locks the user's row, stores a patch,
has it projected onto the graph, and only then ends: what the graph has not taken isn't known here either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.clock import Clock
from memory.errors import EmbeddingChanged, StoreUnavailable
from memory.knowledge import Chunk, ChunkState, Knowledge, Patch
from memory.knowledge_ports import FactChanges, GraphTodo, Related
from memory.limits import ARCHIVE_STORE_TIMEOUT_S, ERASE_TIMEOUT_S, GRAPH_SAVE_TIMEOUT_S, RELATED_FACTS_MAX
from memory.models import Fact, Scope, Source
from memory.stores import knowledge_rows as rows
from memory.stores.database import Database
from memory.stores.knowledge_schema import WAITS, chunks, entities, episodes, facts, graph_todo, wordings
from memory.stores.schema import users
from memory.stores.users import Users, lock_number, scope_of

Project = Callable[[int], Awaitable[None]]
_Where = tuple[sa.ColumnElement[bool], ...]


class SqlKnowledgeStore:
    """KnowledgeStore, FactSource and GraphNotes over a database that SqlArchive has opened, and closes.

    ``vectors`` names the embedding model and dimension of what is committed here ("" = not checked). A user's vectors
    are all of one: where the ones that are there are others, ``related`` and ``commit`` raise EmbeddingChanged.
    """

    def __init__(self, database: Database, users: Users, clock: Clock, *, vectors: str = "") -> None:
        self._database, self._users, self._clock = database, users, clock
        self._vectors = vectors

    async def scope_of(self, user: int) -> Scope | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(*_WHO).where(users.c.id == user))).one_or_none()
        return None if row is None else scope_of(row)

    async def version(self, scope: Scope) -> int:
        async with self._database.reading() as connection:
            return (await self._state(connection, scope))[1]

    async def related(
        self, scope: Scope, *, keys: Sequence[str], entity_ids: Sequence[str], fact_ids: Sequence[str]
    ) -> Related:
        """See KnowledgeStore.

        Raises:
            EmbeddingChanged: what is known has vectors of another model; see the class.
        """
        found = Related()
        async with self._database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user, _, vectors = await self._state(connection, scope)
            self._check(vectors)
            by_key = [rows.key_digest(key) for key in keys]
            for column, values in ((entities.c.key_digest, by_key), (entities.c.id, entity_ids)):
                for row in await _those(connection, column, user, values):
                    found.entities[row.id] = rows.entity_of(row)
            for row in await _those(connection, facts.c.id, user, fact_ids):
                found.facts[row.id] = rows.fact_of(row)
            for query in _touching(user, list(found.entities)):
                async for row in rows.stream(connection, query):
                    found.facts[row.id] = rows.fact_of(row)
        return found

    async def commit(self, chunk: Chunk, patch: Patch, project: Project) -> int | None:
        """See KnowledgeStore. ``project`` has ``GRAPH_SAVE_TIMEOUT_S``, and must not write to this database.

        Raises:
            StoreUnavailable: as KnowledgeStore says.
            EmbeddingChanged: what is known has vectors of another model; see the class.
        """
        async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user = await lock_number(connection, chunk.user)
            if user is None or not await self._done(connection, chunk):
                return None
            self._check(user.vectors)
            version = user.version + 1
            await rows.put_patch(connection, user.id, patch, version)
            values = {"knowledge_version": version, "vectors": user.vectors or self._vectors or None}
            await connection.execute(sa.update(users).where(users.c.id == user.id).values(**values))
            await _projected(project, version)
        return version

    async def read(self, scope: Scope) -> tuple[int, Knowledge]:
        async with self._database.reading_one_moment(ERASE_TIMEOUT_S) as connection:
            user, version, _ = await self._state(connection, scope)
            return version, await rows.read_all(connection, user) if user else Knowledge()

    async def _state(self, connection: AsyncConnection, scope: Scope) -> tuple[int, int, str | None]:
        """Number (0: never seen), version, and what the vectors are of."""
        query = sa.select(users.c.id, users.c.knowledge_version, users.c.vectors)
        row = (await connection.execute(query.where(users.c.subject == self._users.subject(scope)))).one_or_none()
        return (0, 0, None) if row is None else (row.id, row.knowledge_version, row.vectors)

    def _check(self, vectors: str | None) -> None:
        if vectors and self._vectors and vectors != self._vectors:
            raise EmbeddingChanged(
                f"The facts' vectors are of {vectors}, and the configured embedder's of {self._vectors}: "
                "run python -m memory reindex, or set GRAPHITI_EMBEDDING_MODEL back."
            )

    async def _done(self, connection: AsyncConnection, chunk: Chunk) -> bool:
        done = {"state": ChunkState.DONE.value, "answers": "", "reason": "", "not_before": None}
        this = sa.update(chunks).where(chunks.c.id == chunk.id, chunks.c.user_id == chunk.user, WAITS)
        return (await connection.execute(this.values(updated_at=self._clock.now(), **done))).rowcount > 0

    # -- FactSource

    async def changes(self, scope: Scope, *, after: int, limit: int) -> FactChanges:
        """See FactSource. A version is told as a whole, also where that is more than ``limit``."""
        at = facts.c
        async with self._database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user, version, _ = await self._state(connection, scope)
            if version <= after:
                return FactChanges(version, ())
            these: _Where = (at.user_id == user, at.version > after, at.version <= version)
            beyond = sa.select(at.version).where(*these).order_by(at.version, at.id).offset(max(limit, 1)).limit(1)
            first_beyond: int | None = await connection.scalar(beyond)
            through = version
            if first_beyond is not None:
                through = await _last_whole(connection, these, first_beyond)
                these = (*these, at.version <= through)
            found = await _facts(connection, these)
        return FactChanges(through, tuple(found), complete=through == version)

    # -- the graph

    async def vectors(self, scope: Scope) -> str:
        async with self._database.reading() as connection:
            return (await self._state(connection, scope))[2] or ""

    async def note_graph(self, scope: Scope) -> int:
        async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user = await self._users.lock(connection, scope)
            row = {"user_id": user.id, "scope": scope.to_dict(), "facts": 0, "created_at": self._clock.now()}
            done = await connection.execute(sa.insert(graph_todo).values(**row))
            number: int = done.inserted_primary_key[0] if done.inserted_primary_key else 0
        return number

    async def pending_graph_erasures(self, *, limit: int, scope: Scope | None = None) -> list[GraphTodo]:
        at = graph_todo.c
        query = sa.select(at.id, at.scope, at.facts).order_by(at.id).limit(limit)
        async with self._database.reading() as connection:
            if scope is not None:
                query = query.where(at.user_id == await self._users.number(connection, scope))
            found = await connection.execute(query)
            return [GraphTodo(row.id, Scope.from_dict(row.scope), row.facts) for row in found]

    async def graph_told(self, ids: Sequence[int]) -> None:
        async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            await connection.execute(sa.update(graph_todo).where(graph_todo.c.id.in_(ids)).values(facts=0))

    async def graph_settled(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        these = graph_todo.c.id.in_(ids)
        forgotten = sa.select(users.c.id).join(graph_todo, graph_todo.c.user_id == users.c.id).where(these)
        async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            was_theirs = await connection.scalar(forgotten.where(users.c.org_id.is_(None)).limit(1))
            await connection.execute(sa.delete(graph_todo).where(these))
        if was_theirs is not None:  # the last that said who they were
            await self._database.scrub()


_WHO = (users.c.org_id, users.c.agent_id, users.c.user_id, users.c.kind)


async def _projected(project: Project, version: int) -> None:
    try:
        async with asyncio.timeout(GRAPH_SAVE_TIMEOUT_S):
            await project(version)
    except TimeoutError:
        raise StoreUnavailable(f"The graph did not take the facts within {GRAPH_SAVE_TIMEOUT_S:g} s.") from None


async def _those(connection: AsyncConnection, column: sa.Column[Any], user: int, values: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for part in rows.batches(list(dict.fromkeys(values))):
        query = sa.select(column.table).where(column.table.c.user_id == user, column.in_(part))
        found += await connection.execute(query)
    return found


def _touching(user: int, entity_ids: Sequence[str]) -> list[sa.Select[Any]]:
    """Queries for the newest facts that begin or end at one of the entities: an index for each end."""
    at = facts.c
    these = list(entity_ids[: rows.IDS_AT_ONCE])
    if not these:
        return []
    newest = sa.union(
        *(
            sa.select(at.id, at.created_at)
            .where(at.user_id == user, end.in_(these))
            .order_by(at.created_at.desc(), at.id)
            .limit(RELATED_FACTS_MAX)
            .subquery()
            .select()
            for end in (at.subject_id, at.object_id)
        )
    ).subquery()
    ids = sa.select(newest.c.id).order_by(newest.c.created_at.desc(), newest.c.id).limit(RELATED_FACTS_MAX)
    return [sa.select(facts).where(at.user_id == user, at.id.in_(ids))]


async def _last_whole(connection: AsyncConnection, these: _Where, first_beyond: int) -> int:
    """The last version that is within the limit as a whole; the first one, if that is too large by itself."""
    at = facts.c
    before = await connection.scalar(sa.select(sa.func.max(at.version)).where(*these, at.version < first_beyond))
    return first_beyond if before is None else int(before)


_SHOWN = (facts.c.id, facts.c.text, facts.c.category, facts.c.valid_at, facts.c.invalid_at)


async def _facts(connection: AsyncConnection, these: _Where) -> list[Fact]:
    """The facts as callers see them, in the order of versions, each with its sources, first said first."""
    at, wording, episode = facts.c, wordings.c, episodes.c
    of_fact = sa.and_(wording.user_id == at.user_id, wording.fact_id == at.id)
    others = sa.select(at.id, episode.session_id, wording.turns, wording.reference_time).join_from(
        facts, wordings, of_fact
    )
    others = others.join(episodes, sa.and_(episode.user_id == at.user_id, episode.id == wording.episode))
    sources: dict[str, list[Source]] = {}
    async for row in rows.stream(connection, others.where(*these)):
        sources.setdefault(row.id, []).append(_source(row))
    own = sa.select(*_SHOWN, episode.session_id, at.turns, at.reference_time).outerjoin_from(
        facts, episodes, sa.and_(episode.user_id == at.user_id, episode.id == at.origin)
    )
    found: list[Fact] = []
    async for row in rows.stream(connection, own.where(*these).order_by(at.version, at.id)):
        said = [_source(row)] if row.session_id is not None else []
        said = sorted([*said, *sources.get(row.id, ())], key=lambda source: source.said_at)
        if row.text.strip():
            found.append(_fact(row, said))
    return found


def _source(row: Any) -> Source:
    return Source(session_id=row.session_id, turns=tuple(row.turns), said_at=row.reference_time)


def _fact(row: Any, sources: Sequence[Source]) -> Fact:
    return Fact(
        id=row.id,
        text=row.text,
        category=row.category,
        valid_at=row.valid_at,
        invalid_at=row.invalid_at,
        sources=tuple(sources),
    )
