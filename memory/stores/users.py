"""Whose rows: a user's row by scope or number, its lock, and the keyed digests that name people without saying who.

Whoever writes for a user locks the user's row first: so stores, cuts, commits and erasures of one user happen one after
the other, in any number of processes. Above: sql, chunks_sql, knowledge_sql, digests_sql. Below: schema, identity.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.identity import group_id
from memory.models import Scope
from memory.stores.schema import users


class LockedUser(NamedTuple):
    """A user's row, nobody else's to change until the transaction ends. ``scope`` is ``None`` once it is forgotten."""

    id: int
    cursor: int
    position: str
    version: int
    vectors: str | None
    scope: Scope | None


_WHO = ("org_id", "agent_id", "user_id", "kind")
_ROW = sa.select(
    users.c.id,
    users.c.cursor,
    users.c.position,
    users.c.knowledge_version,
    users.c.vectors,
    *(users.c[name] for name in _WHO),
)


class Users:
    """The rows of ``users``, found by digests under the archive's ``key``."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def digest(self, kind: str, name: str) -> str:
        """Stands for ``name`` where it must not be told."""
        return hmac.new(self._key, f"{kind}:{name}".encode(), hashlib.sha256).hexdigest()

    def subject(self, scope: Scope) -> str:
        return self.digest("user", group_id(scope))

    async def number(self, connection: AsyncConnection, scope: Scope) -> int | None:
        """The user's number, without a lock; ``None``: never seen."""
        query = sa.select(users.c.id).where(users.c.subject == self.subject(scope))
        found: int | None = (await connection.execute(query)).scalar()
        return found

    async def lock(self, connection: AsyncConnection, scope: Scope) -> LockedUser:
        """Lock the user's row until the transaction ends; made if need be, without a name."""
        subject = self.subject(scope)
        query = _ROW.where(users.c.subject == subject).with_for_update()
        found = (await connection.execute(query)).one_or_none()
        if found is None:
            await connection.execute(insert_new(connection, users).values(subject=subject, cursor=0, position=""))
            found = (await connection.execute(query)).one()
        return _locked(found)


async def lock_number(connection: AsyncConnection, number: int) -> LockedUser | None:
    """Lock the row of the user with this number; ``None``: there is none."""
    found = (await connection.execute(_ROW.where(users.c.id == number).with_for_update())).one_or_none()
    return None if found is None else _locked(found)


async def lock_numbers(connection: AsyncConnection, numbers: Collection[int]) -> None:
    """Lock several users' rows, in an order in which nobody waits for each other."""
    query = sa.select(users.c.id).where(users.c.id.in_(numbers)).order_by(users.c.id)
    (await connection.execute(query.with_for_update())).all()


def who(scope: Scope) -> dict[str, Any]:
    """The columns that say who a user is."""
    return {"group_id": group_id(scope), **{name: getattr(scope, name) for name in _WHO}}


def scope_of(row: Any) -> Scope | None:
    """Whose row of ``users`` it is; ``None`` once the user is forgotten."""
    if row.org_id is None:
        return None
    return Scope(**{name: getattr(row, name) for name in _WHO})


def _locked(row: Any) -> LockedUser:
    return LockedUser(row.id, row.cursor, row.position, row.knowledge_version, row.vectors, scope_of(row))


def insert_new(connection: AsyncConnection, table: sa.Table) -> Any:
    """An insert that leaves a row alone that is there already."""
    return insert(connection.dialect.name, table).on_conflict_do_nothing()


def insert(dialect: str, table: sa.Table) -> Any:
    """The dialect's insert, which knows conflicts."""
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return make(table)
