"""Alembic's entry: runs migrations on the connection that ``memory.stores.migrate`` has opened and locked."""

from __future__ import annotations

from alembic import context

from memory.stores.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
