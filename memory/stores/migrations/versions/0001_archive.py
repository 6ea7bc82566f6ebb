"""The archive's first tables.

A migration is history: it spells its columns out and never imports the schema, which moves on.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

_Key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Bytewise: TypeEngine[str] = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    _users()
    _conversations()
    _records()
    _rest()


def _of_user(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("user_id", _Key, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=f"fk_{table}_user_id"),
    ]


def _numbered(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("id", _Key, nullable=False, autoincrement=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
    ]


def _users() -> None:
    key = op.create_table(
        "archive_key",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_archive_key"),
    )
    op.bulk_insert(key, [{"id": 1, "key": os.urandom(32).hex()}])
    op.create_table(
        "users",
        *_numbered("users"),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("group_id", sa.Text, nullable=True),
        sa.Column("org_id", sa.Text, nullable=True),
        sa.Column("agent_id", sa.Text, nullable=True),
        sa.Column("user_id", sa.Text, nullable=True),
        sa.Column("kind", sa.String(16), nullable=True),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("position", _Bytewise, nullable=False),
        sa.UniqueConstraint("subject", name="uq_users_subject"),
        sa.UniqueConstraint("group_id", name="uq_users_group_id"),
    )


def _conversations() -> None:
    op.create_table(
        "conversations",
        *_numbered("conversations"),
        *_of_user("conversations"),
        sa.Column("session_id", _Bytewise, nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("updated_at", _Time, nullable=False),
        sa.UniqueConstraint("user_id", "session_id", name="uq_conversations_user_id_session_id"),
    )
    _index("conversations", "user_id", "updated_at", "session_id")


def _records() -> None:
    _record_table(
        "conversation_entries",
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("language", sa.Text, nullable=False),
    )
    _index("conversation_entries", "user_id", "timestamp", "cursor")
    _record_table(
        "conversation_events",
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )


def _record_table(table: str, *columns: sa.Column[object]) -> None:
    op.create_table(
        table,
        *_of_user(table),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("position", _Bytewise, nullable=False),
        sa.Column("conversation_id", _Key, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("timestamp", _Time, nullable=False),
        *columns,
        sa.Column("extra", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("user_id", "cursor", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversations.id"], name=f"fk_{table}_conversation_id"),
        sa.UniqueConstraint("user_id", "id", name=f"uq_{table}_user_id_id"),
    )
    _index(table, "conversation_id", "timestamp", "cursor")


def _rest() -> None:
    op.create_table(
        "erasures",
        *_numbered("erasures"),
        *_of_user("erasures"),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("session", sa.String(64), nullable=True),
        sa.Column("since", _Time, nullable=True),
        sa.Column("through", _Bytewise, nullable=False),
        sa.Column("erased_at", _Time, nullable=False),
    )
    _index("erasures", "user_id")
    op.create_table(
        "user_settings",
        *_of_user("user_settings"),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("updated_at", _Time, nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_user_settings"),
    )
    op.create_table(
        "dead_letters",
        *_numbered("dead_letters"),
        *_of_user("dead_letters"),
        sa.Column("position", _Bytewise, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("raw", sa.Text, nullable=False),
        sa.Column("session_id", _Bytewise, nullable=True),
        sa.Column("timestamp", _Time, nullable=True),
        sa.Column("set_aside_at", _Time, nullable=False),
        sa.UniqueConstraint("user_id", "position", name="uq_dead_letters_user_id_position"),
    )


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def downgrade() -> None:
    for table in (
        "dead_letters",
        "user_settings",
        "erasures",
        "conversation_events",
        "conversation_entries",
        "conversations",
        "users",
        "archive_key",
    ):
        op.drop_table(table)
