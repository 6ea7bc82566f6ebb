"""Between records and rows: what of an entry or event has a column of its own, and what goes along as JSON.

Above: sql. Below: schema, models.
"""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import RowMapping

from memory.models import MemoryEntry, MemoryEvent, Record
from memory.ports import ArchivedRecord, DamagedRecord
from memory.stores.schema import conversation_entries, conversation_events, conversations

_ENTRY_COLUMNS = ("id", "session_id", "timestamp", "role", "content", "mode", "language")
_EVENT_COLUMNS = ("id", "session_id", "timestamp", "event_type", "data")


def row_of(record: Record) -> dict[str, Any]:
    """The record's own columns; whose it is, its conversation, cursor and position are the caller's to add."""
    names = _EVENT_COLUMNS if isinstance(record, MemoryEvent) else _ENTRY_COLUMNS
    # What was not given has its default again when it is read.
    extra = record.model_dump(mode="json", exclude=set(names), exclude_defaults=True)
    return {"extra": extra, **{name: getattr(record, name) for name in names if name != "session_id"}}


def record_of(row: RowMapping) -> Record:
    """The record of a row of ``records_query``."""
    if row["event_type"] is None:
        return entry_of(row)
    return MemoryEvent.from_dict({**row["extra"], **{name: row[name] for name in _EVENT_COLUMNS}})


def entry_of(row: RowMapping) -> MemoryEntry:
    """The entry of a row of ``entries_query`` or ``records_query``."""
    return MemoryEntry.from_dict({**row["extra"], **{name: row[name] for name in _ENTRY_COLUMNS}})


def archived_of(row: RowMapping) -> ArchivedRecord:
    return ArchivedRecord(cursor=row["cursor"], position=row["position"], record=record_of(row))


def entries_query() -> sa.Select[Any]:
    """Every column an entry is made of; the caller says which rows."""
    table = conversation_entries
    return sa.select(table, conversations.c.session_id).join(conversations)


def records_query(user: int, after: int, limit: int) -> sa.Select[Any]:
    """A user's entries and events after a cursor, in its order: one statement, so that both are of one moment."""
    entry, event = conversation_entries.c, conversation_events.c
    null = sa.null()
    shared = ("cursor", "position", "id", "timestamp", "extra")
    entries = sa.select(
        *(entry[name] for name in shared),
        conversations.c.session_id,
        *(entry[name] for name in ("role", "content", "mode", "language")),
        sa.cast(null, sa.Text).label("event_type"),
        sa.cast(null, sa.JSON).label("data"),
    ).join_from(conversation_entries, conversations)
    events = sa.select(
        *(event[name] for name in shared),
        conversations.c.session_id,
        *(sa.cast(null, sa.Text).label(name) for name in ("role", "content", "mode", "language")),
        event.event_type,
        event.data,
    ).join_from(conversation_events, conversations)
    halves = [
        query.where(columns.user_id == user, columns.cursor > after).order_by(columns.cursor).limit(limit).subquery()
        for query, columns in ((entries, entry), (events, event))
    ]
    both = sa.union_all(*(sa.select(half) for half in halves)).subquery()
    return sa.select(both).order_by(both.c.cursor).limit(limit)


def letter_of(damaged: DamagedRecord) -> dict[str, Any]:
    """The columns of a dead letter; session and time as far as it can be read."""
    session_id, timestamp = _told(damaged.raw)
    return {
        "position": damaged.position,
        "reason": _storable(damaged.reason),
        "raw": _storable(damaged.raw),
        "session_id": session_id,
        "timestamp": timestamp,
    }


def _told(raw: str) -> tuple[str | None, datetime | None]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(found, dict):
        return None, None
    session_id, timestamp = found.get("session_id"), None
    with contextlib.suppress(TypeError, ValueError):
        timestamp = datetime.fromisoformat(found["timestamp"]) if "timestamp" in found else None
    if timestamp is not None and timestamp.tzinfo is None:
        timestamp = None
    known = isinstance(session_id, str) and _storable(session_id) == session_id
    return session_id if known else None, timestamp


def _storable(text: str) -> str:
    # PostgreSQL's text takes neither NUL nor lone surrogates
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
