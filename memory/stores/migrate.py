"""Bringing a database to this version's schema, whoever else does so at the same time.

Runs Alembic, which is blocking code, on a thread with an event loop and a connection of its own; a database that is at
``schema.REVISION`` already never imports Alembic. Above: sql. Below: database, migrations, schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from memory.errors import DataTooNew, StoreUnavailable
from memory.limits import MIGRATE_TIMEOUT_S
from memory.stores.database import Database, translated
from memory.stores.schema import REVISION

MIGRATIONS = Path(__file__).parent / "migrations"
_RETRY_S = 0.05
_ADVISORY_LOCK = 5_207_316_049_001_137  # any number that nobody else uses; it marks "migrating this database"


async def ensure_current(url: str, database: Database) -> None:
    """Bring the database to ``REVISION`` if it isn't there. Any number of processes may do so at once.

    Raises:
        DataTooNew: a newer version of this project made the tables.
        StoreUnavailable, StoreFault: the database is away, or refused.
    """
    with translated(MIGRATE_TIMEOUT_S):
        async with asyncio.timeout(MIGRATE_TIMEOUT_S):
            while not await _try_current(url, database):  # noqa: ASYNC110 - SQLite has no event for its lock
                await asyncio.sleep(_RETRY_S)


async def _try_current(url: str, database: Database) -> bool:
    try:
        if await _revision(database) != REVISION:
            await asyncio.to_thread(migrate, url, REVISION)
    except StoreUnavailable as error:
        # A file that is just being made is locked in ways that SQLite does not wait for.
        if database.is_sqlite and "BUSY" in str(error):
            return False
        raise
    return True


async def _revision(database: Database) -> str | None:
    def look(connection: sa.Connection) -> str | None:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        return found

    async with database.reading() as connection:
        return await connection.run_sync(look)


def migrate(url: str, revision: str) -> None:
    """Upgrade or downgrade to ``revision`` ("base": no tables), in one transaction. Blocking: call it on a thread.

    Raises:
        DataTooNew, StoreUnavailable, StoreFault
    """
    asyncio.run(_migrate(url, lambda connection: _run_alembic(connection, revision)))


async def _migrate(url: str, step: Callable[[sa.Connection], None]) -> None:
    database = Database(url, pooled=False, busy_s=MIGRATE_TIMEOUT_S)
    try:
        async with database.writing(MIGRATE_TIMEOUT_S) as connection:
            if not database.is_sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            await connection.run_sync(step)
    finally:
        await database.aclose()


def _run_alembic(connection: sa.Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise DataTooNew(
            "A newer version of this project made the archive's tables. Upgrade livekit-unified-memory, "
            "or set DATABASE_URL (or VOICEASSIST_DATA_DIR) to another database."
        )
    if revision == "base" or (current is not None and current in known[: known.index(revision)]):
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)
