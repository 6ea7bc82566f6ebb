"""The tables of what is known beyond the turns: chunks, knowledge, digests. They share the archive's metadata.

Everything of a user's knowledge is found by ``user_id``. A fact's ``version`` is the one of the user's versions that
changed it last, an episode's the one that made it. Lists are JSON, vectors bytes as ``knowledge`` has them.
Above: chunks_sql, knowledge_sql, knowledge_rows, digests_sql, forgetting. Below: schema.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    or_,
)

from memory.models import clean_text
from memory.stores.schema import Bytewise, Key, UtcDateTime, metadata, of_user


class SaidText(TypeDecorator[str]):
    """Text that an LLM has written: without what PostgreSQL refuses to hold, so that it poisons nothing."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean_text(value)


def _of_conversation(**kind: Any) -> Column[int]:
    return Column("conversation_id", Key, ForeignKey("conversations.id"), nullable=False, **kind)


chunks = Table(
    "chunks",
    metadata,
    Column("id", String(36), primary_key=True),
    of_user(),
    _of_conversation(),
    Column("ordinal", Integer, nullable=False),
    Column("first_cursor", BigInteger, nullable=False),
    Column("last_cursor", BigInteger, nullable=False),
    Column("start_offset", Integer, nullable=False),
    Column("end_offset", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("not_before", UtcDateTime, nullable=True),
    Column("reason", Text, nullable=False, default=""),
    Column("answers", SaidText, nullable=False, default=""),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("conversation_id", "ordinal"),
    Index(None, "state", "created_at", "id"),
)
WAITS = chunks.c.state == "waiting"
BEGUN = or_(chunks.c.attempts > 0, chunks.c.answers != "", chunks.c.state != "waiting")  # may have reached the graph
Index(
    "ix_chunks_waiting",
    chunks.c.user_id,
    chunks.c.first_cursor,
    chunks.c.ordinal,
    sqlite_where=WAITS,
    postgresql_where=WAITS,
)


def _id() -> Column[str]:
    return Column("id", Text, nullable=False)


def _per_user() -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint("user_id", "id")


# key is found by its digest: normalised, it may be longer than an index takes.
entities = Table(
    "entities",
    metadata,
    of_user(),
    _id(),
    Column("key", SaidText, nullable=False),
    Column("key_digest", String(64), nullable=False),
    Column("name", SaidText, nullable=False),
    Column("kind", SaidText, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    _per_user(),
    Index(None, "user_id", "key_digest"),
)


def _statement() -> list[Column[Any]]:
    return [
        Column("text", SaidText, nullable=False),
        Column("relation", SaidText, nullable=False),
        Column("category", SaidText, nullable=False),
        Column("speaker", String(16), nullable=False),
        Column("valid_at", UtcDateTime, nullable=False),
        Column("said_invalid_at", UtcDateTime, nullable=True),
        Column("reference_time", UtcDateTime, nullable=False),
        Column("turns", JSON, nullable=False),
        Column("vector", LargeBinary, nullable=False),
    ]


facts = Table(
    "facts",
    metadata,
    of_user(),
    _id(),
    Column("version", BigInteger, nullable=False),
    Column("subject_id", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    *_statement(),
    Column("origin", Text, nullable=False),
    Column("episodes", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("invalid_at", UtcDateTime, nullable=True),
    Column("expired_at", UtcDateTime, nullable=True),
    Column("conflicts", JSON, nullable=False),
    _per_user(),
    Index(None, "user_id", "version"),
    Index(None, "user_id", "subject_id", "created_at"),
    Index(None, "user_id", "object_id", "created_at"),
)

wordings = Table(
    "wordings",
    metadata,
    of_user(),
    _id(),
    Column("fact_id", Text, nullable=False),
    Column("episode", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    *_statement(),
    _per_user(),
    Index(None, "user_id", "fact_id"),
)

mentions = Table(
    "mentions",
    metadata,
    of_user(),
    _id(),
    Column("episode", Text, nullable=False),
    Column("entity_id", Text, nullable=False),
    Column("name", SaidText, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    _per_user(),
)

episodes = Table(
    "episodes",
    metadata,
    of_user(),
    _id(),
    Column("version", BigInteger, nullable=False),
    Column("session_id", Bytewise, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("name", SaidText, nullable=False),
    Column("body", SaidText, nullable=False),
    Column("source_description", Text, nullable=False),
    Column("reference_time", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("fact_ids", JSON, nullable=False),
    _per_user(),
    Index(None, "user_id", "version"),
)

session_digests = Table(
    "session_digests",
    metadata,
    _of_conversation(primary_key=True, autoincrement=False),
    of_user(),
    Column("summary", SaidText, nullable=False),
    Column("key_moments", JSON, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("through_cursor", BigInteger, nullable=False),
    Column("first_at", UtcDateTime, nullable=False),
    Column("last_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Index(None, "user_id", "last_at"),
)

# Graphs that may not be what SQL knows: an erasure, or a restore, has still to reach them. scope names the graph, also
# where users no longer does, until it is done; facts: how many an erasure took.
graph_todo = Table(
    "graph_todo",
    metadata,
    Column("id", Key, primary_key=True),
    of_user(),
    Column("scope", JSON, nullable=False),
    Column("facts", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index(None, "user_id"),
)
