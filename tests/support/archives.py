"""Archives for tests: databases made for one test, and records to put into them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from memory.models import MemoryEntry, MemoryEvent, Record, Scope
from memory.ports import LogRecord
from memory.stores.sql import SqlArchive
from tests.support import postgres

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sqlite_url(data_dir: Path) -> str:
    return f"sqlite+aiosqlite:///{data_dir / 'memory.db'}"


def postgres_server_url(request: pytest.FixtureRequest) -> str:
    """The URL of a server: the one that TEST_POSTGRES_URL names, or this run's own; skips where neither is."""
    if url := os.environ.get("TEST_POSTGRES_URL"):
        return url
    own: postgres.Postgres = request.getfixturevalue("postgres_server")
    return own.url()


@contextlib.contextmanager
def fresh_database(server_url: str, *, encoding: str = "UTF8") -> Iterator[str]:
    """The URL of an empty database on the server, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    _administer(server_url, f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        yield sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        _administer(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _administer(url: str, statement: str) -> None:
    async def run() -> None:
        engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            await connection.exec_driver_sql(statement)
        await engine.dispose()

    # On a thread: a fixture may be set up while the test's event loop runs.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlArchive]:
    archive = await SqlArchive.open(url)
    try:
        yield archive
    finally:
        await archive.aclose()


def new_scope(**changes: Any) -> Scope:
    """A scope that no other test has."""
    return Scope(**{"org_id": uuid.uuid4().hex, "agent_id": "a", "user_id": "u", **changes})


def entry(content: str = "hello", *, session: str = "s1", minute: float = 0, **fields: Any) -> MemoryEntry:
    said = fields.pop("timestamp", NOON + timedelta(minutes=minute))
    given = {"role": "user", "mode": "voice", "language": "en", **fields}
    return MemoryEntry(content=content, session_id=session, timestamp=said, **given)


def event(kind: str = "language_switch", *, session: str = "s1", minute: float = 0, **data: Any) -> MemoryEvent:
    return MemoryEvent(event_type=kind, session_id=session, timestamp=NOON + timedelta(minutes=minute), data=data)


def position(number: int) -> str:
    return f"{number:016d}-000000" if number else ""


def logged(records: Iterable[Record], *, start: int = 1) -> list[LogRecord]:
    """``records`` as a log gives them, at positions ``start``, ``start`` + 1, …"""
    return [LogRecord(position(n), position(n - 1), record) for n, record in enumerate(records, start=start)]


def turns(count: int, say: Callable[[int], str] = "turn {}".format, *, session: str = "s1") -> list[Record]:
    return [entry(say(number), session=session, minute=number) for number in range(count)]
