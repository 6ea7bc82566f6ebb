"""The episodic layer in SQL: a digest of each session. Above: wiring. Below: database, users, knowledge_schema."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.clock import Clock
from memory.knowledge import SessionDigest
from memory.knowledge_ports import ArchivedEntry, SessionRef
from memory.limits import ARCHIVE_READ_CHARS_MAX, ARCHIVE_STORE_TIMEOUT_S
from memory.models import Scope
from memory.stores.chunks_sql import said_before, sessions_behind
from memory.stores.database import Database
from memory.stores.knowledge_schema import WAITS, chunks, session_digests
from memory.stores.rows import ENTRY_CHARS, entries_query, entry_of, within_chars
from memory.stores.schema import UNCUT, UNDIGESTED, conversation_entries, conversations
from memory.stores.users import Users, insert, lock_number


class SqlDigestStore:
    """DigestStore over a database that SqlArchive has opened, and closes."""

    def __init__(self, database: Database, users: Users, clock: Clock) -> None:
        self._database, self._users, self._clock = database, users, clock

    async def undigested(self, *, before: datetime, limit: int, ingested: bool = False) -> list[SessionRef]:
        waits = sa.exists().where(WAITS, chunks.c.conversation_id == conversations.c.id)
        behind = sa.and_(UNDIGESTED, ~UNCUT, ~waits) if ingested else UNDIGESTED
        async with self._database.reading() as connection:
            return await sessions_behind(connection, behind, before, limit)

    async def entries(self, ref: SessionRef, *, limit: int) -> list[ArchivedEntry]:
        at, entry = conversations.c, conversation_entries.c
        this = sa.select(at.id).where(at.user_id == ref.user, at.session_id == ref.session_id).scalar_subquery()
        newest = sa.select(entry.cursor, ENTRY_CHARS.label("chars")).where(entry.conversation_id == this)
        fitting = within_chars(newest.order_by(entry.cursor.desc()).limit(limit), "cursor")
        query = entries_query().where(entry.user_id == ref.user, entry.cursor.in_(fitting)).order_by(entry.cursor)
        async with self._database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
            found = (await connection.execute(query, {"chars_max": ARCHIVE_READ_CHARS_MAX})).mappings().all()
        return [ArchivedEntry(row["cursor"], entry_of(row)) for row in found]

    async def before(self, ref: SessionRef, cursor: int, *, holding: str, limit: int) -> list[ArchivedEntry]:
        return await said_before(self._database, ref, cursor, holding=holding, limit=limit)

    async def put(self, ref: SessionRef, digest: SessionDigest) -> bool:
        """See DigestStore. A digest of turns some of which are erased is not kept either: the session is due again."""
        at = conversations.c
        async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
            await lock_number(connection, ref.user)
            query = sa.select(at.id, at.digested).where(at.user_id == ref.user, at.session_id == ref.session_id)
            conversation = (await connection.execute(query)).one_or_none()
            if conversation is None or not await _covered(connection, conversation.id, digest):
                return False
            if digest.through_cursor >= conversation.digested:
                await self._put(connection, conversation.id, ref.user, digest)
        return True

    async def _put(self, connection: AsyncConnection, conversation: int, user: int, digest: SessionDigest) -> None:
        row = {name: getattr(digest, name) for name in _COLUMNS}
        row |= {"key_moments": list(digest.key_moments), "user_id": user, "updated_at": self._clock.now()}
        put = insert(connection.dialect.name, session_digests).values(conversation_id=conversation, **row)
        await connection.execute(put.on_conflict_do_update(index_elements=["conversation_id"], set_=row))
        through = {"digested": digest.through_cursor}
        await connection.execute(sa.update(conversations).where(conversations.c.id == conversation).values(**through))

    async def digest(self, ref: SessionRef) -> SessionDigest | None:
        this = (session_digests.c.user_id == ref.user, conversations.c.session_id == ref.session_id)
        async with self._database.reading() as connection:
            row = (await connection.execute(_DIGESTS.where(*this))).one_or_none()
        return None if row is None else _digest_of(row)

    async def digests(self, scope: Scope, *, limit: int) -> list[SessionDigest]:
        at = session_digests.c
        async with self._database.reading() as connection:
            user = await self._users.number(connection, scope)
            newest = _DIGESTS.where(at.user_id == user).order_by(at.last_at.desc(), at.conversation_id.desc())
            return [_digest_of(row) for row in await connection.execute(newest.limit(limit))]


_DIGESTS = sa.select(session_digests, conversations.c.session_id).join(conversations)
_COLUMNS = ("summary", "made_by", "through_cursor", "first_at", "last_at")


async def _covered(connection: AsyncConnection, conversation: int, digest: SessionDigest) -> bool:
    """Whether what the digest begins and ends with is still there: an erasure takes either the session's older turns,
    or all since a time, or the whole session."""
    entry = conversation_entries.c
    query = sa.select(sa.func.max(entry.cursor), sa.func.min(entry.timestamp), sa.func.max(entry.timestamp))
    these = (entry.conversation_id == conversation, entry.cursor <= digest.through_cursor)
    newest, first, last = (await connection.execute(query.where(*these))).one()
    return bool(newest == digest.through_cursor and first <= digest.first_at and digest.last_at <= last)


def _digest_of(row: Any) -> SessionDigest:
    fields = {name: getattr(row, name) for name in _COLUMNS}
    return SessionDigest(session_id=row.session_id, key_moments=tuple(row.key_moments), **fields)
