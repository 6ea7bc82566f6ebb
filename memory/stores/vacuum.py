"""Has PostgreSQL's table files forget what was deleted: a plain VACUUM leaves the bytes in the pages it frees.

Above: database. Below: SQLAlchemy, limits. One table after the other is written anew (VACUUM FULL), in the background;
it can't be used meanwhile, so a large one is left to a plain VACUUM, and named (``beyond_reach``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from memory.limits import (
    STORE_TIMEOUT_S,
    VACUUM_CLOSE_S,
    VACUUM_FULL_BYTES_MAX,
    VACUUM_LOCK_S,
    VACUUM_PAUSE_S,
    VACUUM_TABLE_S,
    VACUUM_TRIES,
)

logger = logging.getLogger(__name__)

_LOCK = 0x766D5F7661  # PostgreSQL's advisory lock of whoever is at it: two at once would wait for each other's tables
_TABLES = sa.text(
    "SELECT c.relname AS name, pg_total_relation_size(c.oid) AS size, pg_has_role(c.relowner, 'USAGE') AS ours"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind = 'r' AND c.relname = ANY(:names) AND n.nspname = current_schema() ORDER BY c.relname"
)
_ANY_ERASED = sa.text("SELECT EXISTS (SELECT 1 FROM erasures WHERE erased_at > now() - interval '10 minutes')")


class Vacuum:
    """Cleans the tables of one database. ``soon`` after a deletion; close with ``aclose``. Belongs to one event loop.

    ``engine`` makes its connections anew each time (NullPool). ``tables``: the names of those that hold user data.
    """

    def __init__(self, engine: AsyncEngine, tables: Callable[[], Sequence[str]]) -> None:
        self._engine, self._tables = engine.execution_options(isolation_level="AUTOCOMMIT"), tables
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def soon(self) -> None:
        """What is deleted by now goes from the files within a minute, unless somebody keeps a table locked."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="memory.vacuum")

    async def beyond_reach(self) -> list[str]:
        """Tables from whose files nothing is taken: a sentence each."""
        async with asyncio.timeout(STORE_TIMEOUT_S), self._engine.connect() as connection:
            tables = await self._found(connection)
        told = [
            f"unused space in the archive's table {table.name}, until PostgreSQL uses it again: DATABASE_URL's user"
            " doesn't own it; its owner can run VACUUM FULL"
            for table in tables
            if not table.ours
        ]
        return told + [
            f"unused space in the archive's table {table.name}, which is large, until PostgreSQL uses it again or"
            " somebody runs VACUUM FULL"
            for table in tables
            if table.ours and table.size > VACUUM_FULL_BYTES_MAX
        ]

    async def was_left_undone(self) -> bool:
        """Whether something was deleted so lately that a process which was killed may not have come to clean up."""
        async with asyncio.timeout(STORE_TIMEOUT_S), self._engine.connect() as connection:
            return bool(await connection.scalar(_ANY_ERASED))

    async def aclose(self) -> None:
        """End what was begun, ``VACUUM_CLOSE_S`` at most. Idempotent."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=VACUUM_CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._engine.dispose()

    async def _run(self) -> None:
        for _ in range(VACUUM_TRIES):
            self._wanted = False
            try:
                done = await self._clean()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                logger.info("Deleted text is still in PostgreSQL's files; tried again (%s)", type(error).__name__)
                done = False
            if done and not self._wanted:
                return
            await asyncio.sleep(VACUUM_PAUSE_S)
        logger.error("Deleted text may still be in PostgreSQL's files: run VACUUM FULL on the archive's tables.")

    async def _clean(self) -> bool:
        """Whether every table was cleaned that can be."""
        async with self._engine.connect() as connection:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                # The connection is its own and ends with this.
                await connection.exec_driver_sql(f"SET lock_timeout = {int(VACUUM_LOCK_S * 1_000)}")
                if not await connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_LOCK))):
                    return False
                tables = [table for table in await self._found(connection) if table.ours]
            return all([await self._cleaned(connection, table.name, table.size) for table in tables])

    async def _cleaned(self, connection: AsyncConnection, name: str, size: int) -> bool:
        how = "(FULL, ANALYZE)" if size <= VACUUM_FULL_BYTES_MAX else "(ANALYZE)"
        table = connection.dialect.identifier_preparer.quote(name)
        try:
            async with asyncio.timeout(VACUUM_TABLE_S):
                await connection.exec_driver_sql(f"VACUUM {how} {table}")
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == "55P03":  # somebody is reading it; the others can be cleaned
                return False
            raise
        return True

    async def _found(self, connection: AsyncConnection) -> Iterable[sa.Row[tuple[str, int, bool]]]:
        return (await connection.execute(_TABLES, {"names": list(self._tables())})).all()
