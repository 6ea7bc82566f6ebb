"""What an erasure takes beyond the turns: their chunks, what was learnt from those, digests, and the graph's copy.

A chunk that holds an erased turn goes, and with it the session's later ones: what is left of their turns is cut again,
under ordinals that were never used, so that whoever still ingests a chunk that is gone can't bring anything back.
Above: sql. Below: knowledge_rows, knowledge_schema, erasing. All of it within the erasure's own transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.errors import StoreFault
from memory.knowledge import Episode, Knowledge
from memory.models import Scope
from memory.ports import Selection
from memory.stores import knowledge_rows as rows
from memory.stores.erasing import meant
from memory.stores.knowledge_schema import (
    BEGUN,
    chunks,
    entities,
    episodes,
    facts,
    graph_todo,
    mentions,
    session_digests,
    wordings,
)
from memory.stores.schema import conversation_entries, conversations, users
from memory.stores.users import LockedUser

Forgotten = Callable[[Knowledge, Collection[str], datetime], Knowledge]
"""(knowledge, ids of episodes, now) -> the knowledge that never heard of those episodes. Pure."""

# A commit that failed after it had reached the graph has left that one version ahead: an erasure skips that version, so
# that no graph that it has still to reach can pass for what SQL knows.
_VERSIONS = 2
_TABLES = (facts, entities, wordings, mentions, episodes)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What an erasure comes to, found out before anything is locked: true as long as the knowledge is of ``version``
    and ``going`` are the episodes that go."""

    version: int
    going: frozenset[str]
    changes: Changes


async def foresee(
    connection: AsyncConnection, user: int, selection: Selection, forgotten: Forgotten, now: datetime
) -> Foreseen | None:
    """The larger part of ``forget``, for a transaction of one moment that only reads; ``None``: it is small."""
    version = await connection.scalar(sa.select(users.c.knowledge_version).where(users.c.id == user))
    taken = await _chunks_from(connection, await _touched(connection, user, selection))
    going, there = await _episodes(connection, user, {chunk.id for chunk in taken})
    if not version or not going or going == there:
        return None
    return Foreseen(version, going, await _changes(connection, user, going, forgotten, now))


async def forget(
    connection: AsyncConnection,
    user: LockedUser,
    scope: Scope,
    selection: Selection,
    forgotten: Forgotten | None,
    now: datetime,
    foreseen: Foreseen | None = None,
) -> None:
    """Take what the selection's turns have led to; to be called before the turns themselves go.

    Raises:
        StoreFault: facts are known of what stays, and nobody said how to tell them apart (``forgotten``).
    """
    touched = await _touched(connection, user.id, selection)
    if not touched:
        return
    taken = await _take_chunks(connection, touched)
    await _take_digests(connection, list(touched))
    ids = {chunk.id for chunk in taken}
    gone = await _take_episodes(connection, user, ids, forgotten, now, foreseen)
    if gone or any(chunk.begun for chunk in taken):
        todo = {"user_id": user.id, "scope": scope.to_dict(), "facts": gone or 0, "created_at": now}
        await connection.execute(sa.insert(graph_todo).values(**todo))


async def _touched(connection: AsyncConnection, user: int, selection: Selection) -> dict[int, int]:
    """The conversations that lose turns, with the cursor of the first turn each of them loses."""
    entry = conversation_entries.c
    query = sa.select(entry.conversation_id, sa.func.min(entry.cursor)).group_by(entry.conversation_id)
    query = query.where(entry.user_id == user, *meant(conversation_entries, user, selection))
    return {row[0]: row[1] for row in await connection.execute(query)}


# -- chunks


async def _take_chunks(connection: AsyncConnection, touched: dict[int, int]) -> list[Any]:
    """Delete the chunks from the first turn that goes on; their conversations go back to where those began."""
    taken = await _chunks_from(connection, touched)
    # Newest first: what is set last for a conversation is where its oldest one began.
    starts = {chunk.conversation_id: chunk.first_cursor - 1 for chunk in taken}
    if starts:
        back = sa.update(conversations).where(conversations.c.id == sa.bindparam("this"))
        rows_back = [{"this": conversation, "start": start} for conversation, start in starts.items()]
        await connection.execute(back.values(chunked=sa.bindparam("start")), rows_back)
    for ids in rows.batches([row.id for row in taken]):
        await connection.execute(sa.delete(chunks).where(chunks.c.id.in_(ids)))
    return taken


async def _chunks_from(connection: AsyncConnection, touched: dict[int, int]) -> list[Any]:
    """The chunks from the first turn that goes on, of each conversation newest first."""
    at = chunks.c
    columns = (at.id, at.conversation_id, at.first_cursor, at.last_cursor, at.start_offset)
    taken: list[Any] = []
    for part in rows.batches(list(touched)):
        query = sa.select(*columns, BEGUN.label("begun")).where(at.conversation_id.in_(part))
        found = await connection.execute(query.order_by(at.conversation_id, at.ordinal.desc()))
        for conversation, newest_first in groupby(found, key=attrgetter("conversation_id")):
            taken += _from(touched[conversation], newest_first)
    return taken


def _from(cursor: int, newest_first: Iterable[Any]) -> list[Any]:
    """The chunks from the one on that holds ``cursor``; one that begins within a turn takes along what else has it."""
    taken: list[Any] = []
    for chunk in newest_first:
        if chunk.last_cursor < cursor:
            break
        taken.append(chunk)
        cursor = min(cursor, chunk.first_cursor) if chunk.start_offset else cursor
    return taken


async def _take_digests(connection: AsyncConnection, touched: Sequence[int]) -> None:
    for part in rows.batches(touched):
        await connection.execute(sa.delete(session_digests).where(session_digests.c.conversation_id.in_(part)))
        again = sa.update(conversations).where(conversations.c.id.in_(part))
        await connection.execute(again.values(digested=0))


# -- knowledge


async def _episodes(
    connection: AsyncConnection, user: int, ids: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The episodes that these chunks became, and all there are."""
    found = await connection.execute(sa.select(episodes.c.id).where(episodes.c.user_id == user))
    there = frozenset(found.scalars())
    return there.intersection(ids), there


async def _take_episodes(
    connection: AsyncConnection,
    user: LockedUser,
    ids: Collection[str],
    forgotten: Forgotten | None,
    now: datetime,
    foreseen: Foreseen | None,
) -> int | None:
    """Leave the knowledge that never heard of these episodes; returns how many facts went, ``None``: no episode was."""
    going, there = await _episodes(connection, user.id, ids)
    if not going:
        return None
    version = user.version + _VERSIONS
    if going == there:
        gone = await _take_all(connection, user.id)
    elif foreseen is not None and (foreseen.version, foreseen.going) == (user.version, going):
        gone = await _change(connection, user.id, foreseen.changes, version)
    elif forgotten is None:
        raise StoreFault("This process can't tell what is known from one session from what is known from others.")
    else:
        changes = await _changes(connection, user.id, going, forgotten, now)
        gone = await _change(connection, user.id, changes, version)
    values: dict[str, Any] = {"knowledge_version": version}
    if going == there:
        values["vectors"] = None
    await connection.execute(sa.update(users).where(users.c.id == user.id).values(**values))
    return gone


async def _take_all(connection: AsyncConnection, user: int) -> int:
    count = sa.select(sa.func.count()).where(facts.c.user_id == user)
    gone: int = (await connection.execute(count)).scalar_one()
    for table in _TABLES:
        await connection.execute(sa.delete(table).where(table.c.user_id == user))
    return gone


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes of a user's knowledge, by table: the ids that go, and the rows that are new or differ."""

    gone: dict[sa.Table, Set[str]]
    rows: dict[sa.Table, list[dict[str, Any]]]
    episodes: list[Episode]


async def _changes(
    connection: AsyncConnection, user: int, going: Collection[str], forgotten: Forgotten, now: datetime
) -> Changes:
    before = await rows.read_all(connection, user)
    return await asyncio.to_thread(lambda: _differences(before, forgotten(before, going, now)))


_MADE: tuple[tuple[sa.Table, str, Callable[[Any], dict[str, Any]]], ...] = (
    (entities, "entities", rows.entity_row),
    (wordings, "wordings", rows.wording_row),
    (mentions, "mentions", rows.mention_row),
    (facts, "facts", rows.fact_row),
)


def _differences(before: Knowledge, after: Knowledge) -> Changes:
    """What makes ``after`` of ``before``, touching what differs."""
    found = Changes({}, {}, [])
    for table, name, row_of in _MADE:
        known = {item.id: item for item in getattr(before, name)}
        left = getattr(after, name)
        found.gone[table] = known.keys() - {item.id for item in left}
        found.rows[table] = [row_of(item) for item in left if item != known.get(item.id)]
    episodes_before = {episode.id: episode for episode in before.episodes}
    found.gone[episodes] = episodes_before.keys() - {episode.id for episode in after.episodes}
    found.episodes.extend(one for one in after.episodes if one != episodes_before.get(one.id))
    return found


async def _change(connection: AsyncConnection, user: int, changes: Changes, version: int) -> int:
    """Bring the changes about; returns how many facts are gone."""
    for table, ids in changes.gone.items():
        await rows.remove(connection, table, user, ids)
    dated = {"version": version}
    for table, made in changes.rows.items():
        await rows.put(connection, table, user, [row | dated for row in made] if table is facts else made)
    for episode in changes.episodes:
        await rows.put_episode(connection, user, episode, version)
    return len(changes.gone[facts])
