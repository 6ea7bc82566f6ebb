"""The archive in SQL: every user's records, verbatim, in SQLite or PostgreSQL.

Above: wiring. Below: database (transactions, errors), migrate, schema, rows, erasing.

Whoever writes for a user locks the user's row first. So stores and erasures of one user happen one after the other,
in any number of processes; cursors become visible in their order; and an erasure is seen by every store after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.clock import Clock, SystemClock
from memory.errors import StoreFault
from memory.limits import ARCHIVE_READ_CHARS_MAX, ARCHIVE_STORE_TIMEOUT_S, ERASE_TIMEOUT_S, STORE_TIMEOUT_S
from memory.models import MemoryEntry, MemorySettings, Scope
from memory.ports import ArchivedRecord, DamagedRecord, LogRecord, Selection, SessionSummary
from memory.stores import erasing, forgetting
from memory.stores.conversations import AT_ONCE, insert_records
from memory.stores.database import Database
from memory.stores.forgetting import Forgotten
from memory.stores.migrate import ensure_current
from memory.stores.rows import archived_of, entry_of, letter_of, newest_entries, records_query
from memory.stores.schema import (
    archive_key,
    conversation_entries,
    conversation_events,
    conversations,
    dead_letters,
    user_settings,
    users,
)
from memory.stores.users import Users, who

_T = TypeVar("_T")


class SqlArchive:
    """ArchiveStore, Erasable, DeadLetters, SessionList and SettingsStore over one database.

    ``open`` it, and close it with ``aclose``, on the same event loop.
    """

    def __init__(self, database: Database, users: Users, clock: Clock, forgotten: Forgotten | None = None) -> None:
        self.database, self.users, self.clock = database, users, clock
        self._forgotten = forgotten

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None, forgotten: Forgotten | None = None) -> Self:
        """Open the database of a SQLAlchemy URL with an async driver; makes or upgrades its tables if need be.

        ``forgotten`` is how knowledge is left without some episodes; without it a user of whom facts are known can only
        be erased whole.

        Raises:
            DataTooNew: a newer version of this project made the tables.
            DataDirectoryUnusable: SQLite's file can't be made.
            StoreUnavailable, StoreFault: the database is away, or refused; the message says what to do.
        """
        database = Database(url)
        try:
            await database.prepare()
            await ensure_current(url, database)
            await database.scrub_leftovers()
            return cls(database, Users(await _key(database)), clock or SystemClock(), forgotten)
        except BaseException:
            await database.aclose()
            raise

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self.database.aclose()

    # -- ArchiveStore

    async def store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        if not records:
            return 0
        async with self.database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user, cursor, position, *_ = await self.users.lock(connection, scope)
            wanted = await self._wanted(connection, user, records)
            changes: dict[str, Any] = {"position": max(position, *(record.position for record in records))}
            if wanted:
                changes |= {"cursor": cursor + len(wanted), **who(scope)}
                await insert_records(connection, user, cursor, wanted, self.clock.now())
            await connection.execute(sa.update(users).where(users.c.id == user).values(**changes))
        return len(wanted)

    async def read(self, scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        async with self.database.reading() as connection:
            user = await self.users.number(connection, scope)
            if user is None:
                return []
            asked = {"of": user, "after": after, "limit": limit, "chars_max": ARCHIVE_READ_CHARS_MAX}
            rows = (await connection.execute(records_query(), asked)).mappings().all()
        return await _made(archived_of, rows)

    async def history(
        self, scope: Scope, *, session_id: str | None, before: datetime | None, limit: int
    ) -> list[MemoryEntry]:
        entry = conversation_entries.c
        async with self.database.reading() as connection:
            user = await self.users.number(connection, scope)
            these = [entry.user_id == user]
            if session_id is not None:
                these.append(entry.conversation_id == _conversation(user, session_id))
            if before is not None:
                these.append(entry.timestamp < before)
            newest = newest_entries(*these, limit=limit)
            rows = (await connection.execute(newest, {"chars_max": ARCHIVE_READ_CHARS_MAX})).mappings().all()
        return await _made(entry_of, rows[::-1])

    async def position(self, scope: Scope) -> str:
        async with self.database.reading() as connection:
            query = sa.select(users.c.position).where(users.c.subject == self.users.subject(scope))
            return (await connection.execute(query)).scalar() or ""

    # -- Erasable

    async def erase(self, scope: Scope, selection: Selection) -> int:
        erasing.check(selection)
        session = None if selection.session_id is None else self.users.digest("session", selection.session_id)
        stone, now = erasing.Tombstone(selection.what, session, selection.since, selection.through), self.clock.now()
        foreseen = await self._foreseen(scope, selection, now)
        async with self.database.writing(ERASE_TIMEOUT_S) as connection:
            user = await self.users.lock(connection, scope)
            await forgetting.forget(connection, user, scope, selection, self._forgotten, now, foreseen)
            gone = await erasing.delete_rows(connection, user.id, selection)
            await erasing.bury(connection, user.id, stone, now)
            await erasing.forget_who(connection, user.id)
        await self.database.scrub()
        return gone

    async def _foreseen(self, scope: Scope, selection: Selection, now: datetime) -> forgetting.Foreseen | None:
        """Of many facts those that stay take a second to tell: nobody's writing waits for that."""
        if self._forgotten is None or selection.what == "all":
            return None
        async with self.database.reading_one_moment(ERASE_TIMEOUT_S) as connection:
            user = await self.users.number(connection, scope)
            if user is None:
                return None
            return await forgetting.foresee(connection, user, selection, self._forgotten, now)

    async def beyond_reach(self) -> list[str]:
        """Where in the database's files erased text stays until they are used again; a sentence each."""
        return await self.database.beyond_reach()

    # -- DeadLetters

    async def set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> int:
        if not damaged:
            return 0
        letters = [letter_of(one) | {"set_aside_at": self.clock.now()} for one in damaged]
        async with self.database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            user, _, position, *_ = await self.users.lock(connection, scope)
            there = await _present(connection, dead_letters.c.position, user, [row["position"] for row in letters])
            stones = await erasing.tombstones(connection, user, min(row["position"] for row in letters))
            new = {
                row["position"]: row | {"user_id": user}
                for row in letters
                if row["position"] not in there and not self._erased(stones, **_told(row))
            }
            changes: dict[str, Any] = {"position": max(position, *(row["position"] for row in letters))}
            if new:
                changes |= who(scope)
                await connection.execute(sa.insert(dead_letters), list(new.values()))
            await connection.execute(sa.update(users).where(users.c.id == user).values(**changes))
        return len(new)

    # -- SessionList

    async def sessions(self, scope: Scope, *, limit: int, before: SessionSummary | None = None) -> list[SessionSummary]:
        at = conversations.c
        count = sa.select(sa.func.count()).where(conversation_entries.c.conversation_id == at.id).scalar_subquery()
        async with self.database.reading() as connection:
            user = await self.users.number(connection, scope)
            query = sa.select(at.session_id, at.created_at, at.updated_at, count).where(at.user_id == user)
            if before is not None:
                query = query.where(
                    sa.or_(
                        at.updated_at < before.last_at,
                        sa.and_(at.updated_at == before.last_at, at.session_id < before.session_id),
                    )
                )
            newest = query.order_by(at.updated_at.desc(), at.session_id.desc()).limit(limit)
            return [SessionSummary(*row) for row in await connection.execute(newest)]

    # -- SettingsStore

    async def get_settings(self, scope: Scope) -> MemorySettings | None:
        query = sa.select(user_settings.c.settings).join(users).where(users.c.subject == self.users.subject(scope))
        async with self.database.reading() as connection:
            found = (await connection.execute(query)).scalar()
        return None if found is None else MemorySettings.from_dict(found)

    async def put_settings(self, scope: Scope, settings: MemorySettings) -> None:
        row = {"settings": settings.to_dict(), "updated_at": self.clock.now()}
        async with self.database.writing(STORE_TIMEOUT_S) as connection:
            user = (await self.users.lock(connection, scope)).id
            changed = await connection.execute(
                sa.update(user_settings).where(user_settings.c.user_id == user).values(**row)
            )
            if changed.rowcount == 0:
                await connection.execute(sa.insert(user_settings).values(user_id=user, **row))

    # -- which

    async def _wanted(
        self, connection: AsyncConnection, user: int, records: Sequence[LogRecord]
    ) -> Sequence[LogRecord]:
        """The records that are neither there already nor erased, each id once."""
        ids = [item.record.id for item in records]
        there: set[str] = set()
        for table in (conversation_entries, conversation_events):
            there |= await _present(connection, table.c.id, user, ids)
        stones = await erasing.tombstones(connection, user, min(item.position for item in records))
        wanted: dict[str, LogRecord] = {}
        for item in records:
            told = (item.position, item.record.session_id, item.record.timestamp)
            if item.record.id not in there and not self._erased(stones, *told):
                wanted.setdefault(item.record.id, item)
        return list(wanted.values())

    def _erased(
        self,
        stones: Sequence[erasing.Tombstone],
        position: str,
        session_id: str | None,
        timestamp: datetime | None,
    ) -> bool:
        session = self.users.digest("session", session_id) if stones and session_id is not None else None
        return any(stone.covers(position, session, timestamp) for stone in stones)


async def _made(make: Callable[[RowMapping], _T], rows: Sequence[RowMapping]) -> list[_T]:
    made: list[_T] = []
    for start in range(0, len(rows), AT_ONCE):
        made += map(make, rows[start : start + AT_ONCE])
        await asyncio.sleep(0)
    return made


async def _key(database: Database) -> bytes:
    async with database.reading() as connection:
        found: str | None = (await connection.execute(sa.select(archive_key.c.key))).scalar()
        encoding = "UTF8" if database.is_sqlite else await connection.scalar(sa.text("SHOW server_encoding"))
    if found is None:
        raise StoreFault("The archive has lost its key (table archive_key): restore the database from a backup.")
    if encoding != "UTF8":
        raise StoreFault("The archive's database must hold UTF-8: create it with ENCODING 'UTF8'.")
    return bytes.fromhex(found)


def _told(letter: dict[str, Any]) -> dict[str, Any]:
    return {name: letter[name] for name in ("position", "session_id", "timestamp")}


def _conversation(user: int | None, session_id: str) -> sa.ScalarSelect[Any]:
    mine = (conversations.c.user_id == user, conversations.c.session_id == session_id)
    return sa.select(conversations.c.id).where(*mine).scalar_subquery()


async def _present(connection: AsyncConnection, column: sa.Column[Any], user: int, values: Sequence[str]) -> set[str]:
    query = sa.select(column).where(column.table.c.user_id == user, column.in_(values))
    return set((await connection.execute(query)).scalars())
