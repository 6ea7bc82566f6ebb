"""Chunks, knowledge and digests, and how far each conversation has got into them.

A migration is history: it spells its columns out and never imports the schema, which moves on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision: str | None = "0001"
branch_labels = None
depends_on = None

_Key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Bytewise: TypeEngine[str] = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_Time = sa.DateTime(timezone=True)
_CURSORS = ("newest", "chunked", "digested", "cuts")
_UNCUT = sa.text("newest > chunked")
_UNDIGESTED = sa.text("newest > digested")
_WAITS = sa.text("state = 'waiting'")


def upgrade() -> None:
    op.add_column("users", _counter("knowledge_version"))
    op.add_column("users", sa.Column("vectors", sa.Text, nullable=True))
    _conversations()
    _chunks()
    _knowledge()
    _digests()


def _counter(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))


def _conversations() -> None:
    op.add_column("conversations", sa.Column("stored_at", _Time, nullable=True))
    for name in _CURSORS:
        op.add_column("conversations", _counter(name))
    op.execute(
        "UPDATE conversations SET stored_at = updated_at, newest = (SELECT coalesce(max(cursor), 0)"
        " FROM conversation_entries WHERE conversation_id = conversations.id)"
    )
    _partial("ix_conversations_uncut", "conversations", ["stored_at"], _UNCUT)
    _partial("ix_conversations_undigested", "conversations", ["stored_at"], _UNDIGESTED)


def _partial(name: str, table: str, columns: list[str], where: sa.TextClause) -> None:
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _of_user(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("user_id", _Key, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=f"fk_{table}_user_id"),
    ]


def _of_conversation(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("conversation_id", _Key, nullable=False, autoincrement=False),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversations.id"], name=f"fk_{table}_conversation_id"),
    ]


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str, kind: type[TypeEngine[int]] = sa.BigInteger) -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False)


def _at(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, _Time, nullable=nullable)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON, nullable=False)


def _vector() -> sa.Column[bytes]:
    return sa.Column("vector", sa.LargeBinary, nullable=False)


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _chunks() -> None:
    op.create_table(
        "chunks",
        sa.Column("id", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_chunks"),
        *_of_user("chunks"),
        *_of_conversation("chunks"),
        _number("ordinal", sa.Integer),
        _number("first_cursor"),
        _number("last_cursor"),
        _number("start_offset", sa.Integer),
        _number("end_offset", sa.Integer),
        _number("tokens", sa.Integer),
        sa.Column("state", sa.String(16), nullable=False),
        _number("attempts", sa.Integer),
        _at("not_before", nullable=True),
        _text("reason"),
        _text("answers"),
        _at("created_at"),
        _at("updated_at"),
        sa.UniqueConstraint("conversation_id", "ordinal", name="uq_chunks_conversation_id_ordinal"),
    )
    _index("chunks", "state", "created_at", "id")
    _partial("ix_chunks_waiting", "chunks", ["user_id", "first_cursor", "ordinal"], _WAITS)


def _per_user(table: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        table,
        *_of_user(table),
        _text("id"),
        *columns,
        sa.PrimaryKeyConstraint("user_id", "id", name=f"pk_{table}"),
    )


def _statement() -> list[sa.Column[Any]]:
    return [
        _text("text"),
        _text("relation"),
        _text("category"),
        sa.Column("speaker", sa.String(16), nullable=False),
        _at("valid_at"),
        _at("said_invalid_at", nullable=True),
        _at("reference_time"),
        _json("turns"),
        _vector(),
    ]


def _knowledge() -> None:
    digest = sa.Column("key_digest", sa.String(64), nullable=False)
    _per_user("entities", _text("key"), digest, _text("name"), _text("kind"), _at("created_at"), _vector())
    _index("entities", "user_id", "key_digest")
    _per_user(
        "facts",
        _number("version"),
        _text("subject_id"),
        _text("object_id"),
        *_statement(),
        _text("origin"),
        _json("episodes"),
        _at("created_at"),
        _at("invalid_at", nullable=True),
        _at("expired_at", nullable=True),
        _json("conflicts"),
    )
    _index("facts", "user_id", "version")
    _index("facts", "user_id", "subject_id", "created_at")
    _index("facts", "user_id", "object_id", "created_at")
    _per_user("wordings", _text("fact_id"), _text("episode"), _at("created_at"), *_statement())
    _index("wordings", "user_id", "fact_id")
    _per_user("mentions", _text("episode"), _text("entity_id"), _text("name"), _at("created_at"), _vector())
    _per_user(
        "episodes",
        _number("version"),
        sa.Column("session_id", _Bytewise, nullable=False),
        _number("ordinal", sa.Integer),
        _text("name"),
        _text("body"),
        _text("source_description"),
        _at("reference_time"),
        _at("created_at"),
        _json("fact_ids"),
    )
    _index("episodes", "user_id", "version")


def _digests() -> None:
    op.create_table(
        "session_digests",
        *_of_conversation("session_digests"),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_session_digests"),
        *_of_user("session_digests"),
        _text("summary"),
        _json("key_moments"),
        _text("made_by"),
        _number("through_cursor"),
        _at("first_at"),
        _at("last_at"),
        _at("updated_at"),
    )
    _index("session_digests", "user_id", "last_at")
    op.create_table(
        "graph_todo",
        sa.Column("id", _Key, nullable=False, autoincrement=True),
        sa.PrimaryKeyConstraint("id", name="pk_graph_todo"),
        *_of_user("graph_todo"),
        _json("scope"),
        _number("facts", sa.Integer),
        _at("created_at"),
    )
    _index("graph_todo", "user_id")


def downgrade() -> None:
    tables = ("graph_todo", "session_digests", "episodes", "mentions", "wordings", "facts", "entities", "chunks")
    for table in tables:
        op.drop_table(table)
    op.drop_index("ix_conversations_undigested", "conversations")
    op.drop_index("ix_conversations_uncut", "conversations")
    for name in (*reversed(_CURSORS), "stored_at"):
        op.drop_column("conversations", name)
    op.drop_column("users", "vectors")
    op.drop_column("users", "knowledge_version")
