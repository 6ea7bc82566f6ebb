"""What is known of all users, for who looks after it: whose graph can be rebuilt, whose vectors are of another model.

Above: wiring. Below: database, users, knowledge_schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.knowledge import Knowledge
from memory.knowledge_ports import KnownUser
from memory.limits import ERASE_TIMEOUT_S
from memory.models import Scope
from memory.stores.database import Database
from memory.stores.knowledge_schema import chunks, entities, episodes, facts, mentions, wordings
from memory.stores.schema import users
from memory.stores.users import Users, scope_of

_AT_ONCE = 100  # vectors in one statement


class SqlKnownUsers:
    """KnownUsers over a database that SqlArchive has opened, and closes."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database, self._users = database, users

    async def known(
        self, *, after: int, limit: int, org_id: str | None = None, agent_id: str | None = None
    ) -> list[KnownUser]:
        query = _KNOWN.where(users.c.id > after)
        if org_id is not None:
            query = query.where(users.c.org_id == org_id)
        if agent_id is not None:
            query = query.where(users.c.agent_id == agent_id)
        return await self._found(query.order_by(users.c.id).limit(limit))

    async def of(self, scope: Scope) -> KnownUser | None:
        found = await self._found(_KNOWN.where(users.c.subject == self._users.subject(scope)))
        return found[0] if found else None

    async def _found(self, query: sa.Select[Any]) -> list[KnownUser]:
        async with self._database.reading(ERASE_TIMEOUT_S) as connection:
            found = (await connection.execute(query)).all()
            counted = sa.select(chunks.c.user_id, sa.func.count()).group_by(chunks.c.user_id)
            lost_of = await connection.execute(counted.where(chunks.c.user_id.in_([row.id for row in found]), _LOST))
            lost = {row[0]: row[1] for row in lost_of}
        scopes = ((row, scope_of(row)) for row in found)
        return [KnownUser(row.id, scope, row.vectors or "", lost.get(row.id, 0)) for row, scope in scopes if scope]

    async def lost_chunks(self, number: int, *, limit: int) -> list[str]:
        query = (
            sa.select(chunks.c.id).where(chunks.c.user_id == number, _LOST).order_by(chunks.c.created_at, chunks.c.id)
        )
        async with self._database.reading(ERASE_TIMEOUT_S) as connection:
            return list((await connection.execute(query.limit(limit))).scalars())

    async def reembedded(self, scope: Scope, knowledge: Knowledge, *, version: int, vectors: str) -> bool:
        tables = (
            (entities, ((one.id, one.vector) for one in knowledge.entities)),
            (facts, ((one.id, one.statement.vector) for one in knowledge.facts)),
            (wordings, ((one.id, one.statement.vector) for one in knowledge.wordings)),
            (mentions, ((one.id, one.vector) for one in knowledge.mentions)),
        )
        async with self._database.writing(ERASE_TIMEOUT_S) as connection:
            user = await self._users.lock(connection, scope)
            if user.version != version:
                return False
            for table, vectors_of in tables:
                await _put_vectors(connection, table, user.id, vectors_of)
            values = {"knowledge_version": version + 1, "vectors": vectors}
            await connection.execute(sa.update(users).where(users.c.id == user.id).values(**values))
        return True


_WHO = (users.c.org_id, users.c.agent_id, users.c.user_id, users.c.kind)
_DONE = chunks.c.state == "done"
_KNOWN = sa.select(users.c.id, users.c.vectors, *_WHO).where(
    users.c.org_id.is_not(None),
    sa.or_(users.c.knowledge_version > 0, sa.exists().where(chunks.c.user_id == users.c.id, _DONE)),
)
_LOST = sa.and_(_DONE, ~sa.exists().where(episodes.c.user_id == chunks.c.user_id, episodes.c.id == chunks.c.id))


async def _put_vectors(
    connection: AsyncConnection, table: sa.Table, user: int, vectors: Iterable[tuple[str, bytes]]
) -> None:
    this = sa.update(table).where(table.c.user_id == user, table.c.id == sa.bindparam("this"))
    rows: list[dict[str, Any]] = [{"this": id_, "vector": vector} for id_, vector in vectors]
    for start in range(0, len(rows), _AT_ONCE):
        await connection.execute(this.values(vector=sa.bindparam("vector")), rows[start : start + _AT_ONCE])
