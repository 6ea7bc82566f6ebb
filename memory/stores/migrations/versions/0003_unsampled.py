"""PostgreSQL samples nothing of what users say, or are called: its statistics would keep it beyond an erasure.

A migration is history: it spells its columns out and never imports the schema, which moves on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels = None
depends_on = None

_TEXT, _BYTEWISE, _BYTES = "TEXT", 'TEXT COLLATE "C"', "BYTEA"
_STATEMENT = {"text": _TEXT, "relation": _TEXT, "category": _TEXT, "vector": _BYTES}
_TYPES = {
    "users": dict.fromkeys(("group_id", "org_id", "agent_id", "user_id"), _TEXT),
    "conversations": {"session_id": _BYTEWISE},
    "conversation_entries": {"content": _TEXT, "language": _TEXT},
    "conversation_events": {"event_type": _TEXT},
    "dead_letters": {"raw": _TEXT, "reason": _TEXT, "session_id": _BYTEWISE},
    "chunks": {"answers": _TEXT, "reason": _TEXT},
    "entities": {"key": _TEXT, "key_digest": "VARCHAR(64)", "name": _TEXT, "kind": _TEXT, "vector": _BYTES},
    "facts": _STATEMENT,
    "wordings": _STATEMENT,
    "mentions": {"name": _TEXT, "vector": _BYTES},
    "episodes": {"session_id": _BYTEWISE, "name": _TEXT, "body": _TEXT, "source_description": _TEXT},
    "session_digests": {"summary": _TEXT},
}


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    sampled = _sampled()
    for table, types in _TYPES.items():
        for column, kind in types.items():
            _alter(table, column, "SET STATISTICS 0")
            if (table, column) in sampled:
                # The type that it has: nothing is written anew, and what was sampled goes.
                _alter(table, column, f"TYPE {kind}")


def _sampled() -> set[tuple[str, str]]:
    found = sa.text("SELECT tablename, attname FROM pg_stats WHERE schemaname = current_schema()")
    return {(row.tablename, row.attname) for row in op.get_bind().execute(found)}


def _alter(table: str, column: str, change: str) -> None:
    op.execute(f'ALTER TABLE {table} ALTER COLUMN "{column}" {change}')


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, types in _TYPES.items():
        for column in types:
            _alter(table, column, "SET STATISTICS -1")
