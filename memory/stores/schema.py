"""The archive's tables: one schema for SQLite and PostgreSQL. ``migrations`` makes them, ``sql`` uses them.

``users`` is the anchor: one row per Scope, found by ``subject`` (a keyed digest), so that after an erasure it can stay
without saying who it was. Its row is locked by whoever writes for that user; under the lock ``cursor`` numbers the
user's entries and events in one sequence, so that cursors become visible in their order and are never used again.
``position`` is the latest log position that arrived. Everything else hangs on ``users.id``. What is known of users
beyond their turns is in ``knowledge_schema``, of the same metadata.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

REVISION = "0003"  # the newest of migrations/versions; a test compares them


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, to the microsecond, in both dialects. SQLite keeps it as text that sorts."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def dump_json(value: Any) -> str:
    """JSON that both databases take: ASCII only, and no NaN or infinity (they become null)."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# SQLite numbers rows by itself only under the exact type INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")
# Bytewise order, as Python compares: positions are compared in SQL, and a locale would order them otherwise.
Bytewise: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

archive_key = Table(
    "archive_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key", String(64), nullable=False),
)


def counter(name: str) -> Column[int]:
    """A number that begins with 0."""
    return Column(name, BigInteger, nullable=False, default=0, server_default=text("0"))


# knowledge_version counts the changes of what is known; vectors: the model and dimension its vectors are of.
users = Table(
    "users",
    metadata,
    Column("id", Key, primary_key=True),
    Column("subject", String(64), nullable=False, unique=True),
    Column("group_id", Text, nullable=True, unique=True),
    Column("org_id", Text, nullable=True),
    Column("agent_id", Text, nullable=True),
    Column("user_id", Text, nullable=True),
    Column("kind", String(16), nullable=True),
    Column("cursor", BigInteger, nullable=False, default=0),
    Column("position", Bytewise, nullable=False, default=""),
    counter("knowledge_version"),
    Column("vectors", Text, nullable=True),
)


def of_user() -> Column[int]:
    """Whose row it is."""
    return Column("user_id", Key, ForeignKey("users.id"), nullable=False)


# created_at and updated_at are when the first and the last record of the conversation were made. newest: the cursor of
# its newest turn, which arrived at stored_at; chunked and digested: how far its turns are in chunks and in its digest;
# cuts: how many chunks were ever cut of it, so that no ordinal is used again.
conversations = Table(
    "conversations",
    metadata,
    Column("id", Key, primary_key=True),
    of_user(),
    Column("session_id", Bytewise, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("stored_at", UtcDateTime, nullable=True),
    counter("newest"),
    counter("chunked"),
    counter("digested"),
    counter("cuts"),
    UniqueConstraint("user_id", "session_id"),
    Index(None, "user_id", "updated_at", "session_id"),
)
UNCUT = conversations.c.newest > conversations.c.chunked
UNDIGESTED = conversations.c.newest > conversations.c.digested
Index("ix_conversations_uncut", conversations.c.stored_at, sqlite_where=UNCUT, postgresql_where=UNCUT)
Index("ix_conversations_undigested", conversations.c.stored_at, sqlite_where=UNDIGESTED, postgresql_where=UNDIGESTED)

conversation_entries = Table(
    "conversation_entries",
    metadata,
    of_user(),
    Column("cursor", BigInteger, nullable=False),
    Column("position", Bytewise, nullable=False),
    Column("conversation_id", Key, ForeignKey("conversations.id"), nullable=False),
    Column("id", Text, nullable=False),
    Column("timestamp", UtcDateTime, nullable=False),
    Column("role", String(16), nullable=False),
    Column("content", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("language", Text, nullable=False),
    Column("extra", JSON, nullable=False),
    PrimaryKeyConstraint("user_id", "cursor"),
    UniqueConstraint("user_id", "id"),
    Index(None, "user_id", "timestamp", "cursor"),
    Index(None, "conversation_id", "timestamp", "cursor"),
)

conversation_events = Table(
    "conversation_events",
    metadata,
    of_user(),
    Column("cursor", BigInteger, nullable=False),
    Column("position", Bytewise, nullable=False),
    Column("conversation_id", Key, ForeignKey("conversations.id"), nullable=False),
    Column("id", Text, nullable=False),
    Column("timestamp", UtcDateTime, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Column("extra", JSON, nullable=False),
    PrimaryKeyConstraint("user_id", "cursor"),
    UniqueConstraint("user_id", "id"),
    Index(None, "conversation_id", "timestamp", "cursor"),
)

# Which records must never be stored (again). session: a keyed digest, as the user's is.
erasures = Table(
    "erasures",
    metadata,
    Column("id", Key, primary_key=True),
    of_user(),
    Column("what", String(16), nullable=False),
    Column("session", String(64), nullable=True),
    Column("since", UtcDateTime, nullable=True),
    Column("through", Bytewise, nullable=False),
    Column("erased_at", UtcDateTime, nullable=False),
    Index(None, "user_id"),
)

user_settings = Table(
    "user_settings",
    metadata,
    Column("user_id", Key, ForeignKey("users.id"), primary_key=True, autoincrement=False),
    Column("settings", JSON, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

# What lay in a log and could not be stored as a record: kept as it was found.
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Key, primary_key=True),
    of_user(),
    Column("position", Bytewise, nullable=False),
    Column("reason", Text, nullable=False),
    Column("raw", Text, nullable=False),
    Column("session_id", Bytewise, nullable=True),
    Column("timestamp", UtcDateTime, nullable=True),
    Column("set_aside_at", UtcDateTime, nullable=False),
    UniqueConstraint("user_id", "position"),
)
