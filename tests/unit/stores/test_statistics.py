"""PostgreSQL's own statistics, which outlive what they were sampled from, hold nothing that was said, nor of whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from memory.identity import group_id
from memory.knowledge import Chunk, Patch, SessionDigest
from memory.knowledge_ports import SessionRef
from memory.models import Scope
from memory.ports import DamagedRecord
from memory.stores.database import Database
from memory.stores.migrate import migrate
from memory.stores.schema import REVISION
from tests.support import archives
from tests.support.archives import entry, event, new_scope, position
from tests.support.ingestion import START
from tests.support.knowing import Stores, learnt, opened, unprojected, worded

CANARY = "canary"
USERS = 12

# Text and bytes that are sampled: ids, positions, keyed digests, and words of ours.
SAMPLED = {
    ("alembic_version", "version_num"),
    ("archive_key", "key"),
    ("users", "subject"),
    ("users", "kind"),
    ("users", "position"),
    ("users", "vectors"),
    *((table, column) for table in ("conversation_entries", "conversation_events") for column in ("id", "position")),
    ("conversation_entries", "role"),
    ("conversation_entries", "mode"),
    *(("erasures", column) for column in ("what", "session", "through")),
    ("dead_letters", "position"),
    ("chunks", "id"),
    ("chunks", "state"),
    *((table, "id") for table in ("entities", "facts", "wordings", "mentions", "episodes")),
    *(("facts", column) for column in ("subject_id", "object_id", "speaker", "origin")),
    *(("wordings", column) for column in ("fact_id", "episode", "speaker")),
    *(("mentions", column) for column in ("episode", "entity_id")),
    ("session_digests", "made_by"),
}
_TEXTS = """
    SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND a.attnum > 0
    AND t.typname IN ('text', 'varchar', 'bytea') AND coalesce(a.attstattarget, -1) <> 0
"""
_TOLD = "SELECT tablename, attname FROM pg_stats s WHERE schemaname = current_schema() AND s::text ILIKE '%canary%'"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with archives.fresh_database(archives.postgres_server_url(request)) as fresh:
        yield fresh


async def query(url: str, statement: str) -> set[tuple[str, str]]:
    database = Database(url, pooled=False)
    async with database.reading() as connection:
        found = (await connection.execute(sa.text(statement))).all()
    await database.aclose()
    return {(row[0], row[1]) for row in found}


async def analyze(url: str) -> None:
    database = Database(url, pooled=False)
    async with database.writing(60) as connection:
        await connection.execute(sa.text("ANALYZE"))
    await database.aclose()


def _patch(chunk: Chunk, number: int) -> Patch:
    learned = learnt(chunk, *(f"{CANARY} {number} {at}" for at in range(5)))
    again = worded(learned.facts[0], f"{CANARY} again {number}", chunk)
    return replace(learned, wordings=(again,))


async def live(stores: Stores, number: int) -> Scope:
    """A user with something in every table; as often as not the same as others have."""
    scope = new_scope(org_id=f"{CANARY}-org", agent_id=f"{CANARY}-agent", user_id=f"{CANARY}-{number}")
    session = f"{CANARY}-session-{number % 4}"
    said = [entry(f"{CANARY} {number % 3}", session=session, minute=at, language=f"x-{CANARY}") for at in range(5)]
    chunk = await stores.chunk(scope, [*said, event(f"{CANARY}_event", session=session)])
    assert await stores.chunks.keep_answers(chunk, f"{CANARY} {number % 2}")
    await stores.chunks.failed(chunk, reason=f"{CANARY} reason", not_before=START)
    await stores.archive.set_aside(scope, [DamagedRecord(position(99), "", f"{CANARY} cut", f"{CANARY} {number}")])
    digest = SessionDigest(session, f"{CANARY} {number % 2}", (), "extractive", 5, START, START)
    assert await stores.digests.put(SessionRef(await stores.user(scope), session), digest)
    if number % 2:
        assert await stores.knowledge.commit(chunk, _patch(chunk, number), unprojected)
    return scope


@pytest.mark.promise("P-erased")
async def test_P_erased_postgresql_samples_nothing_of_users_and_what_was_sampled_goes(url: str) -> None:
    async with opened(url) as stores:
        scopes = [await live(stores, number) for number in range(USERS)]
    assert len({group_id(scope) for scope in scopes}) == USERS
    await analyze(url)
    assert await query(url, _TOLD) == set()
    await asyncio.to_thread(migrate, url, "0002")
    await analyze(url)
    told = await query(url, _TOLD)
    assert len(told) >= 15, "else this test would see nothing"
    assert not told & SAMPLED
    await asyncio.to_thread(migrate, url, REVISION)
    assert await query(url, _TOLD) == set()
    await analyze(url)
    assert await query(url, _TOLD) == set()


async def test_of_every_column_of_text_it_is_said_whether_it_may_be_sampled(url: str) -> None:
    async with opened(url):
        pass
    assert await query(url, _TEXTS) == SAMPLED
