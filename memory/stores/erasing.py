"""What an erasure means in SQL: which rows it takes, and which records it keeps from being stored afterwards.

Above: sql. Below: schema, ports. A row is meant when the selection matches and its log position is not later than the
selection's ``through``; without a ``through`` every matching row that is there is meant, and nothing that is to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.ports import Selection
from memory.stores.conversations import tidy
from memory.stores.schema import (
    conversation_entries,
    conversation_events,
    conversations,
    dead_letters,
    erasures,
    users,
)

Digest = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A remembered erasure. ``session`` is a digest."""

    what: str
    session: str | None
    since: datetime | None
    through: str

    def covers(self, position: str, session: str | None, said_at: datetime | None) -> bool:
        """Whether this erasure meant what arrives now. ``None``: it doesn't tell, and is taken to be meant."""
        if position > self.through:
            return False
        if self.what == "session":
            return session is None or session == self.session
        if self.what == "since":
            return said_at is None or self.since is None or said_at >= self.since
        return True


async def tombstones(connection: AsyncConnection, user: int, from_position: str) -> list[Tombstone]:
    """The user's erasures that may cover a record at ``from_position`` or later."""
    columns = (erasures.c.what, erasures.c.session, erasures.c.since, erasures.c.through)
    query = sa.select(*columns).where(erasures.c.user_id == user, erasures.c.through >= from_position)
    return [Tombstone(*row) for row in await connection.execute(query)]


async def bury(connection: AsyncConnection, user: int, stone: Tombstone, now: datetime) -> None:
    """Remember the erasure, in place of the ones that it includes."""
    included = [erasures.c.user_id == user, erasures.c.through <= stone.through]
    if stone.what != "all":
        included += [
            erasures.c.what == stone.what,
            erasures.c.session.is_not_distinct_from(stone.session),
            erasures.c.since.is_not_distinct_from(stone.since),
        ]
    await connection.execute(sa.delete(erasures).where(*included))
    row = {"what": stone.what, "session": stone.session, "since": stone.since, "through": stone.through}
    await connection.execute(sa.insert(erasures).values(user_id=user, erased_at=now, **row))


async def delete_rows(connection: AsyncConnection, user: int, selection: Selection) -> int:
    """Delete what the selection means; returns how many records that were."""
    gone = 0
    for table in (conversation_entries, conversation_events, dead_letters):
        statement = sa.delete(table).where(table.c.user_id == user, *meant(table, user, selection))
        gone += (await connection.execute(statement)).rowcount
    await tidy(connection, user)
    return gone


def check(selection: Selection) -> None:
    """Refuse a selection that leaves open what is meant.

    Raises:
        ValueError: ``session`` without a session id, ``since`` without a time.
    """
    needed = {"session": selection.session_id, "since": selection.since}.get(selection.what, "")
    if needed is None:
        raise ValueError(f"Selection(what={selection.what!r}) has to say which: session_id or since is missing.")


def meant(table: sa.Table, user: int, selection: Selection) -> Iterable[sa.ColumnElement[bool]]:
    if selection.through:
        yield table.c.position <= selection.through
    untold = table is dead_letters
    if selection.what == "session":
        yield _or_null(_in_session(table, user, selection.session_id), table.c.session_id if untold else None)
    elif selection.what == "since":
        yield _or_null(table.c.timestamp >= selection.since, table.c.timestamp if untold else None)


def _or_null(condition: sa.ColumnElement[bool], column: sa.Column[Any] | None) -> sa.ColumnElement[bool]:
    return condition if column is None else sa.or_(condition, column.is_(None))


def _in_session(table: sa.Table, user: int, session_id: str | None) -> sa.ColumnElement[bool]:
    if table is dead_letters:
        return table.c.session_id == session_id
    conversation = sa.select(conversations.c.id).where(
        conversations.c.user_id == user, conversations.c.session_id == session_id
    )
    return table.c.conversation_id == conversation.scalar_subquery()


async def forget_who(connection: AsyncConnection, user: int) -> None:
    """Let the user's row say no longer who it is, unless something of the user is still there."""
    left = sa.select(conversations.c.id).where(conversations.c.user_id == user).exists()
    letters = sa.select(dead_letters.c.id).where(dead_letters.c.user_id == user).exists()
    blank = dict.fromkeys(("group_id", "org_id", "agent_id", "user_id", "kind"))
    await connection.execute(sa.update(users).where(users.c.id == user, ~left, ~letters).values(**blank))
