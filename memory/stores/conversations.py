"""A user's conversations as rows: made and widened by what is stored, narrowed by what is erased.

``newest`` is the cursor of the conversation's newest turn and ``stored_at`` when it arrived; what lies behind
``chunked`` is in chunks, ``digested`` is how far its digest reaches. Above: sql, erasing. Below: schema, rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.models import MemoryEvent
from memory.ports import LogRecord
from memory.stores.rows import row_of
from memory.stores.schema import conversation_entries, conversation_events, conversations

AT_ONCE = 100  # rows made or written before others get the loop: two milliseconds


async def insert_records(
    connection: AsyncConnection, user: int, cursor: int, records: Sequence[LogRecord], now: datetime
) -> None:
    """Store new records under the cursors after ``cursor``."""
    numbered = list(enumerate(records, start=cursor + 1))
    sessions = await _touch(connection, user, numbered, now)
    rows: dict[sa.Table, list[dict[str, Any]]] = {conversation_entries: [], conversation_events: []}
    for number, item in numbered:
        table = conversation_events if isinstance(item.record, MemoryEvent) else conversation_entries
        place = {"conversation_id": sessions[item.record.session_id], "position": item.position, "cursor": number}
        rows[table].append({"user_id": user, **place, **row_of(item.record)})
    for table, values in rows.items():
        for start in range(0, len(values), AT_ONCE):
            await connection.execute(sa.insert(table), values[start : start + AT_ONCE])


async def _touch(
    connection: AsyncConnection, user: int, numbered: Sequence[tuple[int, LogRecord]], now: datetime
) -> dict[str, int]:
    """Make or widen the records' conversations; returns their ids by session id."""
    at = conversations.c
    times: dict[str, list[datetime]] = {}
    turns: dict[str, int] = {}
    for number, item in numbered:
        times.setdefault(item.record.session_id, []).append(item.record.timestamp)
        if not isinstance(item.record, MemoryEvent):
            turns[item.record.session_id] = number
    these = (at.user_id == user, at.session_id.in_(list(times)))
    query = sa.select(at.session_id, at.id, at.created_at, at.updated_at).where(*these)
    known = {row.session_id: row for row in await connection.execute(query)}
    for session_id, said in times.items():
        row = known.get(session_id)
        first, last = min(said), max(said)
        changes: dict[str, Any] = {}
        if session_id in turns:
            changes |= {"newest": turns[session_id], "stored_at": now}
        if row is None:
            new = {"user_id": user, "session_id": session_id, "created_at": first, "updated_at": last}
            await connection.execute(sa.insert(conversations).values(**new, **changes))
            continue
        if first < row.created_at or last > row.updated_at:
            changes |= {"created_at": min(first, row.created_at), "updated_at": max(last, row.updated_at)}
        if changes:
            await connection.execute(sa.update(conversations).where(at.id == row.id).values(**changes))
    ids = await connection.execute(sa.select(at.session_id, at.id).where(*these))
    return {row.session_id: row.id for row in ids}


async def tidy(connection: AsyncConnection, user: int) -> None:
    """Drop the conversations that have no records any more; the others begin and end with those they have."""
    mine = conversations.c.user_id == user
    used = [
        sa.select(table.c.conversation_id).where(table.c.conversation_id == conversations.c.id).exists()
        for table in (conversation_entries, conversation_events)
    ]
    await connection.execute(sa.delete(conversations).where(mine, ~sa.or_(*used)))
    entry, event = conversation_entries.c, conversation_events.c
    records = sa.union_all(
        sa.select(entry.conversation_id, entry.timestamp, entry.cursor).where(entry.user_id == user),
        sa.select(event.conversation_id, event.timestamp, sa.literal(0).label("cursor")).where(event.user_id == user),
    ).subquery()
    span = (
        sa.select(
            records.c.conversation_id,
            sa.func.min(records.c.timestamp).label("first"),
            sa.func.max(records.c.timestamp).label("last"),
            sa.func.max(records.c.cursor).label("newest"),
        )
        .group_by(records.c.conversation_id)
        .subquery()
    )
    spanned = sa.update(conversations).where(conversations.c.id == span.c.conversation_id)
    await connection.execute(spanned.values(created_at=span.c.first, updated_at=span.c.last, newest=span.c.newest))
