"""Chunks in SQL: which of a session's turns are in which, and what became of them.

Above: wiring. Below: database, users, knowledge_schema. The turns of a chunk stay where they are, in the archive; a
chunk holds cursors. What changes a user's chunks does so under the lock of the user's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.clock import Clock
from memory.identity import group_digest, group_id
from memory.knowledge import Chunk, ChunkSpan, ChunkState, Speaker, TurnPart, derived_id
from memory.knowledge_ports import ArchivedEntry, ChunkStatus, Cutter, SessionRef
from memory.limits import ARCHIVE_STORE_TIMEOUT_S, CHUNK_ANSWERS_BYTES_MAX, STORE_TIMEOUT_S
from memory.models import MemoryEntry, Scope
from memory.stores.database import Database
from memory.stores.knowledge_rows import batches
from memory.stores.knowledge_schema import WAITS, chunks
from memory.stores.rows import entries_query, entry_of
from memory.stores.schema import UNCUT, conversation_entries, conversations, users
from memory.stores.users import lock_number, lock_numbers

_CUT_BYTES_MAX = 8_388_608  # of turns that are cut in one go: a turn may have a megabyte
_CUT_TRIES = 3  # a session whose turns change so often while it is cut isn't quiet

_COLUMNS = (chunks, conversations.c.session_id)
_ORDER = (chunks.c.first_cursor, chunks.c.ordinal)


class SqlChunkStore:
    """ChunkStore and ChunkProgress over a database that SqlArchive has opened, and closes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    # -- ChunkStore

    async def quiet(self, *, before: datetime, limit: int) -> list[SessionRef]:
        async with self._database.reading() as connection:
            return await sessions_behind(connection, UNCUT, before, limit)

    async def cut(self, ref: SessionRef, cutter: Cutter, *, limit: int) -> int:
        """See ChunkStore. The cutter runs before the lock is taken: what it was handed is looked at again under it.

        Raises:
            ValueError: the cutter's spans leave turns out, overlap, or end within a turn.
        """
        for _ in range(_CUT_TRIES):
            async with self._database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
                after = await _chunked(connection, ref)
                entries = [] if after is None else await _uncut(connection, ref, after, limit)
            if after is None or not entries:
                return 0
            spans = list(cutter(entries))
            _check(spans, entries)
            async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
                user = await lock_number(connection, ref.user)
                if user is None or user.scope is None:
                    return 0
                if await _unchanged(connection, ref, after, entries):
                    await self._store(connection, ref, user.scope, spans)
                    return len(spans)
        return 0

    async def due(self, *, now: datetime, limit: int) -> list[int]:
        async with self._database.reading() as connection:
            return list((await connection.execute(due_query(now, limit))).scalars())

    async def next(self, user: int, *, now: datetime) -> Chunk | None:
        query = sa.select(*_COLUMNS).join(conversations).where(WAITS, chunks.c.user_id == user)
        async with self._database.reading() as connection:
            row = (await connection.execute(query.order_by(*_ORDER).limit(1))).one_or_none()
        if row is None or (row.not_before is not None and row.not_before > now):
            return None
        return chunk_of(row)

    async def turns(self, chunk: Chunk) -> list[TurnPart]:
        entry, span = conversation_entries.c, chunk.span
        query = entries_query().where(
            entry.user_id == chunk.user,
            entry.cursor.between(span.first_cursor, span.last_cursor),
            conversations.c.session_id == chunk.session_id,
        )
        async with self._database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
            found = (await connection.execute(query.order_by(entry.cursor))).mappings().all()
        parts = [_part(row["cursor"], entry_of(row), span) for row in found]
        return [part for part in parts if part.text.strip()]

    async def before(self, ref: SessionRef, cursor: int, *, holding: str, limit: int) -> list[ArchivedEntry]:
        return await said_before(self._database, ref, cursor, holding=holding, limit=limit)

    async def _store(
        self, connection: AsyncConnection, ref: SessionRef, scope: Scope, spans: Sequence[ChunkSpan]
    ) -> None:
        at, now = conversations.c, self._clock.now()
        group = group_id(scope)
        conversation = (await connection.execute(sa.select(at.id, at.cuts).where(*_this(ref)))).one()
        rows = [
            {
                "id": derived_id(group, ref.session_id, str(ordinal), str(span.first_cursor)),
                "user_id": ref.user,
                "conversation_id": conversation.id,
                "ordinal": ordinal,
                **{name: getattr(span, name) for name in _SPAN},
                "state": ChunkState.WAITING.value,
                "created_at": now,
                "updated_at": now,
            }
            for ordinal, span in enumerate(spans, start=conversation.cuts)
        ]
        await connection.execute(sa.insert(chunks), rows)
        done = {"chunked": spans[-1].last_cursor, "cuts": conversation.cuts + len(spans)}
        await connection.execute(sa.update(conversations).where(at.id == conversation.id).values(**done))

    # -- ChunkProgress

    async def keep_answers(self, chunk: Chunk, answers: str) -> bool:
        """See ChunkProgress. More than ``CHUNK_ANSWERS_BYTES_MAX`` isn't kept: a repetition asks anew."""
        kept = answers if len(answers.encode("utf-8", "replace")) <= CHUNK_ANSWERS_BYTES_MAX else ""
        return await self._change(chunk, answers=kept)

    async def failed(self, chunk: Chunk, *, reason: str, not_before: datetime | None, counts: bool = True) -> None:
        state = ChunkState.DEAD if not_before is None else ChunkState.WAITING
        attempts = chunks.c.attempts + (1 if counts else 0)
        changed = {"state": state.value, "attempts": attempts, "reason": reason, "not_before": not_before}
        await self._change(chunk, **changed)

    async def _change(self, chunk: Chunk, **values: Any) -> bool:
        async with self._database.writing(STORE_TIMEOUT_S) as connection:
            await lock_number(connection, chunk.user)
            this = sa.update(chunks).where(chunks.c.id == chunk.id, WAITS)
            done = await connection.execute(this.values(updated_at=self._clock.now(), **values))
        return done.rowcount > 0

    async def statuses(self, *, state: ChunkState | None, limit: int, after: str = "") -> list[ChunkStatus]:
        who = (users.c.org_id, users.c.agent_id, users.c.user_id.label("person"), users.c.kind)
        query = sa.select(*_COLUMNS, *who).select_from(chunks).join(conversations)
        query = query.join(users, users.c.id == chunks.c.user_id)
        if state is not None:
            query = query.where(chunks.c.state == state.value)
        if after:
            before = sa.select(chunks.c.created_at).where(chunks.c.id == after).scalar_subquery()
            query = query.where(sa.tuple_(chunks.c.created_at, chunks.c.id) > sa.tuple_(before, after))
        now = self._clock.now()
        async with self._database.reading() as connection:
            found = await connection.execute(query.order_by(chunks.c.created_at, chunks.c.id).limit(limit))
            return [
                ChunkStatus(chunk_of(row), _digest_of(row), (now - row.created_at).total_seconds()) for row in found
            ]

    async def move(self, ids: Sequence[str], *, to: ChunkState, from_: Sequence[ChunkState]) -> int:
        fresh = {"attempts": 0, "not_before": None, "reason": ""} if to is ChunkState.WAITING else {"answers": ""}
        values = {"state": to.value, "updated_at": self._clock.now(), **fresh}
        moved = 0
        for part in batches(list(ids)):
            these = (chunks.c.id.in_(part), chunks.c.state.in_([state.value for state in from_]))
            async with self._database.writing(ARCHIVE_STORE_TIMEOUT_S) as connection:
                owners = sa.select(chunks.c.user_id).where(*these).distinct()
                await lock_numbers(connection, list(await connection.scalars(owners)))
                moved += (await connection.execute(sa.update(chunks).where(*these).values(**values))).rowcount
        return moved

    async def counts(self) -> dict[str, int]:
        by_state = sa.select(chunks.c.state, sa.func.count()).group_by(chunks.c.state)
        oldest = sa.select(sa.func.min(chunks.c.created_at)).where(WAITS)
        async with self._database.reading() as connection:
            counts = {state.value: 0 for state in ChunkState}
            counts |= {row[0]: row[1] for row in await connection.execute(by_state)}
            uncut = await connection.scalar(sa.select(sa.func.count()).select_from(conversations).where(UNCUT))
            since: datetime | None = await connection.scalar(oldest)
        age_s = 0 if since is None else max(0, int((self._clock.now() - since).total_seconds()))
        return {**counts, "uncut": uncut or 0, "oldest_waiting_s": age_s}


# -- sessions


async def said_before(
    database: Database, ref: SessionRef, cursor: int, *, holding: str, limit: int
) -> list[ArchivedEntry]:
    """See EarlierTurns.before."""
    entry = conversation_entries.c
    conversation = sa.select(conversations.c.id).where(*_this(ref)).scalar_subquery()
    query = entries_query().where(
        entry.user_id == ref.user,
        entry.conversation_id == conversation,
        entry.cursor < cursor,
        entry.content.icontains(holding, autoescape=True),
    )
    async with database.reading(ARCHIVE_STORE_TIMEOUT_S) as connection:
        found = (await connection.execute(query.order_by(entry.cursor.desc()).limit(limit))).mappings().all()
    return [ArchivedEntry(row["cursor"], entry_of(row)) for row in found]


async def sessions_behind(
    connection: AsyncConnection, behind: sa.ColumnElement[bool], before: datetime, limit: int
) -> list[SessionRef]:
    """Sessions that a layer has not got to the end of, whose newest turn arrived before ``before``."""
    at = conversations.c
    query = sa.select(at.user_id, at.session_id).where(behind, at.stored_at < before)
    found = await connection.execute(query.order_by(at.stored_at).limit(limit))
    return [SessionRef(user, session_id) for user, session_id in found]


def _this(ref: SessionRef) -> tuple[sa.ColumnElement[bool], ...]:
    return (conversations.c.user_id == ref.user, conversations.c.session_id == ref.session_id)


async def _chunked(connection: AsyncConnection, ref: SessionRef) -> int | None:
    found: int | None = await connection.scalar(sa.select(conversations.c.chunked).where(*_this(ref)))
    return found


def _after(ref: SessionRef, after: int) -> tuple[sa.ColumnElement[bool], ...]:
    # By the conversation alone: with the user as well, a planner goes through all the user's turns.
    conversation = sa.select(conversations.c.id).where(*_this(ref)).scalar_subquery()
    return (conversation_entries.c.conversation_id == conversation, conversation_entries.c.cursor > after)


async def _uncut(connection: AsyncConnection, ref: SessionRef, after: int, limit: int) -> list[ArchivedEntry]:
    entry = conversation_entries.c
    sizes = sa.select(entry.cursor, sa.func.length(entry.content)).where(*_after(ref, after))
    last, total = 0, 0
    for cursor, size in await connection.execute(sizes.order_by(entry.cursor).limit(limit)):
        total += size
        if last and total > _CUT_BYTES_MAX:
            break
        last = cursor
    query = entries_query().where(*_after(ref, after), entry.cursor <= last).order_by(entry.cursor)
    found = (await connection.execute(query)).mappings().all()
    return [ArchivedEntry(row["cursor"], entry_of(row)) for row in found]


async def _unchanged(
    connection: AsyncConnection, ref: SessionRef, after: int, entries: Sequence[ArchivedEntry]
) -> bool:
    """Whether the session's turns are still cut up to ``after``, and those that follow are still these."""
    if await _chunked(connection, ref) != after:
        return False
    entry = conversation_entries.c
    query = sa.select(entry.cursor).where(*_after(ref, after), entry.cursor <= entries[-1].cursor)
    found = (await connection.execute(query.order_by(entry.cursor))).scalars()
    return list(found) == [item.cursor for item in entries]


def _check(spans: Sequence[ChunkSpan], entries: Sequence[ArchivedEntry]) -> None:
    """Each turn up to the last span's end is in exactly one span, or in several parts in consecutive ones."""
    place, offset = 0, 0
    cursors = [item.cursor for item in entries]
    for span in spans:
        if place >= len(entries) or (span.first_cursor, span.start_offset) != (cursors[place], offset):
            raise ValueError("The cutter left turns out, or cut some twice.")
        last = cursors.index(span.last_cursor) if span.last_cursor in cursors else -1
        whole = span.end_offset in (-1, len(entries[last].entry.content))
        beyond = (last + 1, 0) if whole else (last, span.end_offset)
        if last < 0 or beyond <= (place, offset):
            raise ValueError("The cutter made a span that ends before it begins, or nowhere.")
        place, offset = beyond
    if not spans or offset:
        raise ValueError("The cutter made no span, or left the rest of a turn out.")


# -- chunks

_SPAN = ("first_cursor", "last_cursor", "start_offset", "end_offset", "tokens")
_SPEAKERS: dict[str, Speaker] = {"user": "user", "assistant": "assistant"}


def chunk_of(row: Any) -> Chunk:
    """The chunk of a row that also has its ``session_id``."""
    return Chunk(
        id=row.id,
        user=row.user_id,
        session_id=row.session_id,
        ordinal=row.ordinal,
        span=ChunkSpan(**{name: getattr(row, name) for name in _SPAN}),
        state=ChunkState(row.state),
        created_at=row.created_at,
        attempts=row.attempts,
        not_before=row.not_before,
        reason=row.reason,
        answers=row.answers,
    )


def due_query(now: datetime, limit: int) -> sa.Select[Any]:
    """Users whose first waiting chunk may be tried, by how long that has waited."""
    earlier = chunks.alias()
    first = ~sa.exists().where(
        earlier.c.state == "waiting",
        earlier.c.user_id == chunks.c.user_id,
        sa.tuple_(earlier.c.first_cursor, earlier.c.ordinal) < sa.tuple_(*_ORDER),
    )
    may_be_tried = sa.or_(chunks.c.not_before.is_(None), chunks.c.not_before <= now)
    query = sa.select(chunks.c.user_id).where(WAITS, may_be_tried, first)
    return query.order_by(chunks.c.created_at, chunks.c.id).limit(limit)


def _part(cursor: int, entry: MemoryEntry, span: ChunkSpan) -> TurnPart:
    start = span.start_offset if cursor == span.first_cursor else 0
    cut_off = cursor == span.last_cursor and span.end_offset >= 0
    end = min(span.end_offset, len(entry.content)) if cut_off else len(entry.content)
    return TurnPart(
        turn_id=entry.id,
        speaker=_SPEAKERS.get(entry.role, "other"),
        text=entry.content[start:end],
        said_at=entry.timestamp,
        name=entry.name or "",
        mode=entry.mode,
        language=entry.language,
        confidence=entry.transcript_confidence,
        start=start,
        end=end,
        whole="" if end - start == len(entry.content) else entry.content,
    )


def _digest_of(row: Any) -> str:
    if row.org_id is None:
        return ""
    return group_digest(Scope(org_id=row.org_id, agent_id=row.agent_id, user_id=row.person, kind=row.kind))
