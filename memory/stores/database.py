"""Connections to one SQL database: opening, transactions with a deadline, and driver errors as the memory's own.

Above: sql, migrate. Below: SQLAlchemy with aiosqlite or asyncpg. A ``Database`` belongs to one event loop. On SQLite
each connection has a thread, which ends with ``aclose`` and never holds up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from memory.errors import DataDirectoryUnusable, StoreFault, StoreUnavailable, VoiceMemoryError
from memory.extras import install
from memory.limits import STORE_TIMEOUT_S
from memory.stores.schema import dump_json, metadata
from memory.stores.vacuum import Vacuum

_CONNECTIONS_MAX = 4
_BUSY_S = 1.5  # SQLite waits this long for another writer; below STORE_TIMEOUT_S, so that its own answer arrives
_SCRUB_RETRY_S = 1.0
_BEGIN = "sqlite_begin"  # execution option: how a transaction begins, "" for not at all

# journal_size_limit: a log that is begun anew is cut, so that no old page stays behind its end.
# synchronous=FULL: the log of turns is trimmed on our word, so a commit has to be on the disk.
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",
    "temp_store=MEMORY",
    "journal_size_limit=0",
)

_SQLITE_PASSING = {"BUSY", "LOCKED", "FULL", "IOERR", "READONLY", "CANTOPEN", "INTERRUPT", "NOMEM", "PROTOCOL"}
# Classes of SQLSTATE: connection, rollback (deadlock), resources, operator, system, lock not available.
_POSTGRES_PASSING = ("08", "40", "53", "57", "58", "55P03", "25006")
_POSTGRES_HELP = {
    "28": "check the user and the password in DATABASE_URL",
    "3D": "create the database that DATABASE_URL names",
    "42501": "grant this user the right to create and use tables in the database",
}


class Database:
    """One database. ``reading`` and ``writing`` give a transaction: the block's end commits it, an error rolls back."""

    def __init__(self, url: str, *, pooled: bool = True, busy_s: float = _BUSY_S) -> None:
        self._url = _parse(url)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = _sqlite(self._url, pooled, busy_s) if self.is_sqlite else _postgres(self._url, pooled)
        self._writer = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._write_lock = asyncio.Lock()
        self._scrubber: asyncio.Task[None] | None = None
        self._vacuum = None if self.is_sqlite else Vacuum(_postgres(self._url, pooled=False), _user_tables)

    async def prepare(self) -> None:
        """Make a SQLite database's file, for its owner alone, if it isn't there.

        Raises:
            DataDirectoryUnusable: it can't be made.
        """
        if self.is_sqlite:
            await asyncio.to_thread(_make_private, Path(self._url.database or ""))

    @contextlib.asynccontextmanager
    async def reading(self, timeout_s: float = STORE_TIMEOUT_S) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads.

        Raises:
            StoreUnavailable, StoreFault: also what the block's statements raise, as these.
        """
        async with _bounded(timeout_s), self._engine.connect() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def reading_one_moment(self, timeout_s: float) -> AsyncIterator[AsyncConnection]:
        """``reading``, whose statements all see the database as it is at the first of them."""
        async with self.reading(timeout_s) as connection:
            if not self.is_sqlite:  # whose transactions are of one moment anyway
                await connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self, timeout_s: float) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes; on SQLite it has the write lock from its start. Raises what ``reading`` does."""
        # Within a process writers queue here, in order; SQLite's own waiting is a poll without order.
        turn = self._write_lock if self.is_sqlite else contextlib.nullcontext()
        async with _bounded(timeout_s), turn, self._writer.begin() as connection:
            yield connection

    async def scrub(self) -> None:
        """Have no file hold what was deleted: on SQLite, write the log back and cut it to nothing; on PostgreSQL, write
        the tables anew, in the background.

        While somebody's transaction is in the way, it is tried again in the background, and at ``aclose``.
        """
        if self._vacuum is not None:
            self._vacuum.soon()
        elif not await self._scrubbed() and self._scrubber is None:
            self._scrubber = asyncio.create_task(self._keep_scrubbing())

    async def scrub_leftovers(self) -> None:
        """``scrub`` what a process may have left that was killed after it had deleted something."""
        if self._vacuum is None:
            await self.scrub()
            return
        with translated(STORE_TIMEOUT_S):
            if await self._vacuum.was_left_undone():
                self._vacuum.soon()

    async def beyond_reach(self) -> list[str]:
        """Where deleted text stays in files, whatever ``scrub`` does; a sentence each.

        Raises:
            StoreUnavailable, StoreFault: the database does not tell.
        """
        if self._vacuum is None:
            return []
        with translated(STORE_TIMEOUT_S):
            return await self._vacuum.beyond_reach()

    async def _keep_scrubbing(self) -> None:
        while not await self._scrubbed():  # noqa: ASYNC110 - others' transactions end without telling us
            await asyncio.sleep(_SCRUB_RETRY_S)
        self._scrubber = None

    async def _scrubbed(self) -> bool:
        with contextlib.suppress(StoreUnavailable, StoreFault):
            async with _bounded(STORE_TIMEOUT_S), self._write_lock, self._engine.connect() as connection:
                await connection.execution_options(**{_BEGIN: ""})
                result = await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                return bool(result.scalar_one() == 0)
        return False

    async def aclose(self) -> None:
        """Close every connection; no thread is left. Idempotent."""
        if self._scrubber is not None:
            self._scrubber.cancel()
            await asyncio.gather(self._scrubber, return_exceptions=True)
            self._scrubber = None
            await self._scrubbed()
        if self._vacuum is not None:
            await self._vacuum.aclose()
        await self._engine.dispose()


def _user_tables() -> list[str]:
    return [table.name for table in metadata.sorted_tables]


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise StoreFault("DATABASE_URL is not a URL; it looks like postgresql://user:password@host/name.") from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreFault("An archive needs a file: set DATABASE_URL to sqlite:///path/to/memory.db, or leave it unset.")
    return parsed


def _make_private(path: Path) -> None:
    # The log and the index beside the database take over its permissions.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if path.stat().st_mode & 0o077 and path.stat().st_uid == os.getuid():
            path.chmod(0o600)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"The archive's file can't be opened for writing: {error.strerror or error}. "
            "Set VOICEASSIST_DATA_DIR (or DATABASE_URL) to a place that this user can write."
        ) from error


class _Connection(sqlite3.Connection):
    """Ends its transaction before it closes: a cursor that lives on, in a traceback, would otherwise keep the lock."""

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # a connection that is closed already has nothing to end
            self.rollback()
        super().close()


def _sqlite(url: sa.URL, pooled: bool, busy_s: float) -> AsyncEngine:
    arguments = {"timeout": busy_s, "factory": _Connection}
    engine = create_async_engine(
        url, json_serializer=dump_json, connect_args=arguments, hide_parameters=True, **_pool(pooled)
    )

    def connected(connection: Any, _record: object) -> None:
        # Without a level of its own the driver begins nothing behind our back: `begun` does.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begun(connection: sa.Connection) -> None:
        if statement := connection.get_execution_options().get(_BEGIN, "BEGIN"):
            connection.exec_driver_sql(statement)

    sa.event.listen(engine.sync_engine, "connect", connected)
    sa.event.listen(engine.sync_engine, "begin", begun)
    return engine


def _postgres(url: sa.URL, pooled: bool) -> AsyncEngine:
    # sslmode is libpq's name for what asyncpg calls ssl; providers' URLs have it
    url = url.set(query={"ssl" if key == "sslmode" else key: value for key, value in url.query.items()})
    options: dict[str, Any] = {"pool_pre_ping": True} if pooled else {}
    try:
        engine = create_async_engine(
            url,
            json_serializer=dump_json,
            connect_args={"timeout": STORE_TIMEOUT_S},
            hide_parameters=True,
            **options,
            **_pool(pooled),
        )
    except ModuleNotFoundError:
        raise StoreFault(f"PostgreSQL needs a driver: {install('postgres')}.") from None
    _check_parameters(url)
    return engine


def _check_parameters(url: sa.URL) -> None:
    import asyncpg

    known = {*inspect.signature(asyncpg.connect).parameters, "prepared_statement_cache_size"}
    if unknown := sorted(set(url.query) - known):
        raise StoreFault(f"DATABASE_URL has parameters that asyncpg does not know: {', '.join(unknown)}. Remove them.")


def _pool(pooled: bool) -> dict[str, Any]:
    if not pooled:
        return {"poolclass": NullPool}
    return {"pool_size": _CONNECTIONS_MAX, "max_overflow": 0, "pool_timeout": STORE_TIMEOUT_S}


@contextlib.asynccontextmanager
async def _bounded(timeout_s: float) -> AsyncIterator[None]:
    with translated(timeout_s):
        async with asyncio.timeout(timeout_s):
            yield


@contextlib.contextmanager
def translated(timeout_s: float) -> Iterator[None]:
    """Raise driver errors as StoreUnavailable or StoreFault. Nothing of a statement's values is in their messages."""
    try:
        yield
    except VoiceMemoryError:
        raise
    except (TimeoutError, PoolTimeout):
        raise StoreUnavailable(f"The archive did not answer within {timeout_s:g} s.") from None
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise _own(error) from None


def _own(error: Exception) -> VoiceMemoryError:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    if isinstance(cause, OSError):
        reason = cause.strerror or type(cause).__name__
        return StoreUnavailable(f"The archive can't be reached: {reason}. Check DATABASE_URL, and that it runs.")
    state = getattr(cause, "sqlstate", None)
    if state:
        return _of_postgres(state)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return StoreUnavailable("The connection to the archive was lost.")
    if isinstance(error, InvalidRequestError) or "Interface" in type(error).__name__:
        return StoreUnavailable(f"The archive's connection can't be used ({type(cause).__name__}).")
    return StoreFault(f"The archive refused ({type(cause).__name__}); check DATABASE_URL and the database's log.")


def _of_sqlite(error: sqlite3.Error) -> VoiceMemoryError:
    name: str = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.removeprefix("SQLITE_").split("_")[0] in _SQLITE_PASSING:
        return StoreUnavailable(f"The archive's file is busy, full or not to be written ({name}).")
    if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return StoreFault(f"The archive's file is no database, or damaged ({name}): move it away or restore a backup.")
    return StoreFault(f"The archive refused ({name}).")


def _of_postgres(state: str) -> VoiceMemoryError:
    if state.startswith(_POSTGRES_PASSING):
        return StoreUnavailable(f"The archive is not available (SQLSTATE {state}).")
    advice = next((text for start, text in _POSTGRES_HELP.items() if state.startswith(start)), "see the server's log")
    return StoreFault(f"The archive refused (SQLSTATE {state}): {advice}.")
