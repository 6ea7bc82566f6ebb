"""Between records and rows: what of an entry or event has a column of its own, and what goes along as JSON.

Above: sql. Below: schema, models.
"""

from __future__ import annotations

import contextlib
import functools
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


_ENTRY, _EVENT = conversation_entries.c, conversation_events.c
_SAID_CHARS = sa.func.length(_ENTRY.content)
ENTRY_CHARS = _SAID_CHARS + sa.func.length(sa.cast(_ENTRY.extra, sa.Text))

_CHARS_MAX = sa.bindparam("chars_max", type_=sa.BigInteger)


def within_chars(cursors: sa.Select[Any], *order: str) -> sa.Select[Any]:
    """Of ``cursors``, which has the columns ``cursor``, ``chars`` and those of ``order``, the cursors of the first rows
    that are ``chars_max`` together; of one row at least. ``order``: descending by these, else by cursor."""
    rows = cursors.subquery()
    by: list[sa.ColumnElement[Any]] = [rows.c[name].desc() for name in order] or [rows.c.cursor]
    so_far = sa.func.sum(rows.c.chars).over(order_by=by)
    sized = sa.select(rows.c.cursor, rows.c.chars, so_far.label("so_far")).subquery()
    fits = sa.or_(sized.c.so_far <= _CHARS_MAX, sized.c.so_far == sized.c.chars)  # the first one in any case
    return sa.select(sized.c.cursor).where(fits)


def newest_entries(*these: sa.ColumnElement[bool], limit: int) -> sa.Select[Any]:
    """The newest of these entries by when they were said, newest first: ``limit`` at most, ``chars_max`` together."""
    newest = sa.select(_ENTRY.cursor, _ENTRY.timestamp, ENTRY_CHARS.label("chars")).where(*these)
    newest = newest.order_by(_ENTRY.timestamp.desc(), _ENTRY.cursor.desc()).limit(limit)
    query = entries_query().where(*these, _ENTRY.cursor.in_(within_chars(newest, "timestamp", "cursor")))
    return query.order_by(_ENTRY.timestamp.desc(), _ENTRY.cursor.desc())


@functools.cache
def records_query() -> sa.Select[Any]:
    """Entries and events of ``user`` after the cursor ``after``, in its order, ``limit`` at most, and as many as are
    read at once: one statement, so that both are of one moment."""
    null, last = sa.null(), _last_of_read()
    shared = ("cursor", "position", "id", "timestamp", "extra")
    entries = sa.select(
        *(_ENTRY[name] for name in shared),
        conversations.c.session_id,
        *(_ENTRY[name] for name in ("role", "content", "mode", "language")),
        sa.cast(null, sa.Text).label("event_type"),
        sa.cast(null, sa.JSON).label("data"),
    ).join_from(conversation_entries, conversations)
    events = sa.select(
        *(_EVENT[name] for name in shared),
        conversations.c.session_id,
        *(sa.cast(null, sa.Text).label(name) for name in ("role", "content", "mode", "language")),
        _EVENT.event_type,
        _EVENT.data,
    ).join_from(conversation_events, conversations)
    halves = [
        query.where(columns.user_id == _OF, columns.cursor > _AFTER, columns.cursor <= last).subquery()
        for query, columns in ((entries, _ENTRY), (events, _EVENT))
    ]
    both = sa.union_all(*(sa.select(half) for half in halves)).subquery()
    return sa.select(both).order_by(both.c.cursor)


_OF, _AFTER = sa.bindparam("of", type_=sa.BigInteger), sa.bindparam("after", type_=sa.BigInteger)
_LIMIT = sa.bindparam("limit", type_=sa.Integer)


def _last_of_read() -> sa.ScalarSelect[Any]:
    """The cursor of the last record that is read at once."""
    halves = [
        sa.select(table.c.cursor, chars.label("chars"))
        .where(table.c.user_id == _OF, table.c.cursor > _AFTER)
        .order_by(table.c.cursor)
        .limit(_LIMIT)
        .subquery()
        for table, chars in ((conversation_entries, _SAID_CHARS), (conversation_events, sa.literal(0)))
    ]
    both = sa.union_all(*(sa.select(half) for half in halves)).subquery()
    fitting = within_chars(sa.select(both).order_by(both.c.cursor).limit(_LIMIT)).subquery()
    last = sa.select(sa.func.max(fitting.c.cursor).label("cursor")).cte("last")
    return sa.select(last.c.cursor).scalar_subquery()


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
