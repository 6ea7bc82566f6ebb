"""Stores of knowledge for tests: one database with everything over it, and made-up patches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from memory.ingestion.forgetting import forgotten
from memory.knowledge import (
    Chunk,
    ChunkSpan,
    Entity,
    Episode,
    KnownFact,
    Mention,
    Patch,
    Statement,
    Wording,
    derived_id,
)
from memory.knowledge_ports import ArchivedEntry, SessionRef
from memory.models import Record, Scope
from memory.stores.chunks_sql import SqlChunkStore
from memory.stores.digests_sql import SqlDigestStore
from memory.stores.knowledge_schema import chunks
from memory.stores.knowledge_sql import SqlKnowledgeStore
from memory.stores.schema import conversations, metadata, users
from memory.stores.sql import SqlArchive
from tests.support.archives import entry, logged, new_scope
from tests.support.ingestion import START, SteppingClock

LATER = START + timedelta(days=365)


@dataclass
class Stores:
    """Everything over one database, and the clock of all of it."""

    archive: SqlArchive
    chunks: SqlChunkStore
    knowledge: SqlKnowledgeStore
    digests: SqlDigestStore
    clock: SteppingClock

    async def store(self, scope: Scope, records: Sequence[Record], *, start: int = 1) -> SessionRef:
        """Store ``records`` as a log would give them; returns the first one's session."""
        await self.archive.store(scope, logged(records, start=start))
        return SessionRef(await self.user(scope), records[0].session_id)

    async def user(self, scope: Scope) -> int:
        async with self.archive.database.reading() as connection:
            number = await self.archive.users.number(connection, scope)
        assert number is not None
        return number

    async def cut(self, ref: SessionRef, size: int = 10, *, limit: int = 400) -> int:
        """Cut all there is, ``size`` turns a chunk."""
        total = 0
        while cut := await self.chunks.cut(ref, by_turns(size), limit=limit):
            total += cut
        return total

    async def chunk(self, scope: Scope, records: Sequence[Record], *, start: int = 1, size: int = 1_000) -> Chunk:
        """Store, cut, and take the user's first waiting chunk."""
        ref = await self.store(scope, records, start=start)
        assert await self.cut(ref, size)
        found = await self.chunks.next(ref.user, now=LATER)
        assert found is not None
        return found

    async def waiting(self, scope: Scope) -> list[Chunk]:
        """The user's waiting chunks, oldest first."""
        found = await self.chunks.statuses(state=None, limit=10_000)
        number = await self.user(scope)
        mine = [one.chunk for one in found if one.chunk.user == number and one.chunk.state == "waiting"]
        return sorted(mine, key=lambda chunk: (chunk.span.first_cursor, chunk.ordinal))

    async def rows(self, table: str) -> int:
        async with self.archive.database.reading() as connection:
            count: int = (await connection.execute(sa.text(f"SELECT count(*) FROM {table}"))).scalar_one()
        return count

    async def user_of_many(self, sessions: int) -> int:
        """A user with so many sessions of a turn each, as far as their rows go: named by number, stored in order."""
        scope = new_scope()
        await self.store(scope, [entry("hello", session="first")])
        user = await self.user(scope)
        rows = [
            {
                "user_id": user,
                "session_id": f"{number:05}",
                "created_at": START,
                "updated_at": START,
                "stored_at": START - timedelta(days=1) + timedelta(seconds=number),
                "newest": 1,
            }
            for number in range(sessions)
        ]
        async with self.archive.database.writing(60) as connection:
            await connection.execute(sa.insert(conversations), rows)
            await connection.exec_driver_sql("ANALYZE")
        return user

    async def many_waiting(self, count: int) -> list[int]:
        """So many users with a chunk each that waits, as far as their rows go; returns their numbers, longest waiting
        first."""
        numbers = range(1_000_000, 1_000_000 + count)
        at = {number: START - timedelta(days=1) + timedelta(seconds=number - numbers[0]) for number in numbers}
        of_user = [{"user_id": number} for number in numbers]
        span = {"ordinal": 0, "first_cursor": 1, "last_cursor": 1, "start_offset": 0, "end_offset": -1, "tokens": 1}
        rows: dict[sa.Table, list[dict[str, object]]] = {
            users: [{"id": number, "subject": f"{number}"} for number in numbers],
            conversations: [
                {**row, "id": row["user_id"], "session_id": "s", "created_at": START, "updated_at": START}
                for row in of_user
            ],
            chunks: [
                {**row, **span, "id": f"{number}", "conversation_id": number, "state": "waiting"}
                | {"created_at": at[number], "updated_at": at[number]}
                for number, row in zip(numbers, of_user, strict=True)
            ],
        }
        async with self.archive.database.writing(60) as connection:
            for table, values in rows.items():
                await connection.execute(sa.insert(table), values)
            await connection.exec_driver_sql("ANALYZE")
        return list(numbers)


@contextlib.asynccontextmanager
async def opened(url: str, *, vectors: str = "") -> AsyncIterator[Stores]:
    clock = SteppingClock()
    archive = await SqlArchive.open(url, clock=clock, forgotten=forgotten)
    try:
        database, users = archive.database, archive.users
        yield Stores(
            archive,
            SqlChunkStore(database, clock),
            SqlKnowledgeStore(database, users, clock, vectors=vectors),
            SqlDigestStore(database, users, clock),
            clock,
        )
    finally:
        await archive.aclose()


async def emptied(archive: SqlArchive) -> None:
    """Delete every row but the key."""
    async with archive.database.writing(30) as connection:
        for table in reversed(metadata.sorted_tables):
            if table.name != "archive_key":
                await connection.execute(sa.delete(table))


class by_turns:  # noqa: N801 - reads as a function
    """A cutter: so many turns in each chunk."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        parts = [entries[start : start + self._size] for start in range(0, len(entries), self._size)]
        return [ChunkSpan(part[0].cursor, part[-1].cursor, tokens=len(part)) for part in parts]


async def unprojected(version: int) -> None:
    """A graph that takes everything."""


# -- made-up knowledge


def statement(text: str, *, minute: int = 0, turns: Sequence[str] = ("t1",)) -> Statement:
    said = START + timedelta(minutes=minute)
    return Statement(
        text=text,
        relation="LIKES",
        category="preferences",
        speaker="user",
        valid_at=said,
        said_invalid_at=None,
        reference_time=said,
        turns=tuple(turns),
        vector=text.encode()[:4].ljust(4, b"\0"),
    )


def episode(chunk: Chunk, *, facts: Sequence[str] = (), minute: int = 0) -> Episode:
    said = START + timedelta(minutes=minute)
    return Episode(
        id=chunk.id,
        session_id=chunk.session_id,
        ordinal=chunk.ordinal,
        name=f"session_{chunk.session_id}_{said.isoformat()}",
        body="User: hello",
        source_description="Voice conversation",
        reference_time=said,
        created_at=said,
        fact_ids=tuple(facts),
    )


def entity(name: str, key: str = "") -> Entity:
    return Entity(derived_id("entity", key or name), key or name, name, "Thing", START, b"\1\2\3\4")


USER = entity("Sam", "user")


def known_fact(text: str, chunk: Chunk, *, minute: int = 0, subject: Entity = USER) -> KnownFact:
    """A fact of ``chunk``, from ``subject`` to an entity that is called as the text."""
    return KnownFact(
        id=derived_id("fact", chunk.id, text),
        subject_id=subject.id,
        object_id=entity(text).id,
        statement=statement(text, minute=minute),
        origin=chunk.id,
        episodes=(chunk.id,),
        created_at=START + timedelta(minutes=minute),
    )


def learnt(chunk: Chunk, *texts: str, minute: int = 0) -> Patch:
    """A patch that makes a fact of each text."""
    facts = tuple(known_fact(text, chunk, minute=minute) for text in texts)
    things = (USER, *(entity(text) for text in texts))
    return Patch(
        episode=episode(chunk, facts=[fact.id for fact in facts], minute=minute),
        entities=things,
        facts=facts,
        mentions=tuple(
            Mention(derived_id("mention", chunk.id, thing.id), chunk.id, thing.id, thing.name, START)
            for thing in things
        ),
        touched=tuple(sorted(thing.id for thing in things)),
    )


def worded(fact: KnownFact, text: str, chunk: Chunk, *, minute: int = 0, turns: Sequence[str] = ("t1",)) -> Wording:
    id_ = derived_id("wording", chunk.id, fact.id, text)
    return Wording(id_, fact.id, chunk.id, START, statement(text, minute=minute, turns=turns))


def utc(year: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC)
