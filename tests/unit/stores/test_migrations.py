"""From one revision of the archive's tables to the next and back, with data in them, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from memory.errors import StoreUnavailable
from memory.stores.database import Database
from memory.stores.migrate import migrate
from memory.stores.schema import REVISION
from tests.support import archives
from tests.support.archives import entry, event, new_scope, sqlite_url, turns
from tests.support.knowing import Stores, learnt, opened, unprojected


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(data_dir)
        return
    with archives.fresh_database(archives.postgres_server_url(request)) as fresh:
        yield fresh


async def query(url: str, statement: str) -> list[Any]:
    database = Database(url, pooled=False)
    async with database.reading() as connection:
        found = (await connection.execute(sa.text(statement))).all()
    await database.aclose()
    return list(found)


async def columns(url: str, table: str) -> set[str]:
    database = Database(url, pooled=False)
    async with database.reading() as connection:
        found = await connection.run_sync(lambda sync: sa.inspect(sync).get_columns(table))
    await database.aclose()
    return {column["name"] for column in found}


async def known(stores: Stores) -> None:
    """A user with an ingested session, a waiting one, and one of events alone."""
    scope = new_scope()
    chunk = await stores.chunk(scope, turns(2))
    assert await stores.knowledge.commit(chunk, learnt(chunk, "tea"), unprojected)
    await stores.chunk(scope, [entry("hello", session="s2", minute=7)], start=5)
    await stores.store(scope, [event(session="s3")], start=9)


async def test_down_to_0001_and_up_again_the_turns_stay_and_are_due_anew(url: str) -> None:
    async with opened(url) as stores:
        await known(stores)
        assert await stores.rows("conversation_entries") == 3
    await asyncio.to_thread(migrate, url, "0001")
    assert "chunked" not in await columns(url, "conversations")
    assert not {"knowledge_version", "vectors"} & await columns(url, "users")
    assert await query(url, "SELECT count(*) FROM conversation_entries") == [(3,)]
    with pytest.raises(StoreUnavailable, match="NoSuchTable"):
        await columns(url, "chunks")
    await asyncio.to_thread(migrate, url, REVISION)
    found = await query(
        url,
        "SELECT session_id, newest, chunked, digested, cuts, stored_at = updated_at FROM conversations ORDER BY id",
    )
    newest = {"s1": 2, "s2": 3, "s3": 0}
    assert [tuple(row) for row in found] == [(session, cursor, 0, 0, 0, True) for session, cursor in newest.items()]
    async with opened(url) as stores:
        stores.clock.seconds = 3_600
        refs = await stores.chunks.quiet(before=stores.clock.now(), limit=10)
        assert [ref.session_id for ref in refs] == ["s1", "s2"]
        assert [await stores.cut(ref) for ref in refs] == [1, 1]


async def test_an_archive_of_0001_is_brought_up_when_it_is_opened(url: str) -> None:
    async with opened(url) as stores:
        await known(stores)
    await asyncio.to_thread(migrate, url, "0001")
    async with opened(url) as stores:
        counts = await stores.chunks.counts()
    assert (counts["uncut"], counts["waiting"], counts["done"]) == (2, 0, 0)
