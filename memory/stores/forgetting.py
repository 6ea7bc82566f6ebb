"""What an erasure takes beyond the turns: their chunks, what was learnt from those, digests, and the graph's copy.

A chunk that holds an erased turn goes, and with it the session's later ones: what is left of their turns is cut again,
under ordinals that were never used, so that whoever still ingests a chunk that is gone can't bring anything back.
Above: sql. Below: knowledge_rows, knowledge_schema, erasing. All of it within the erasure's own transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.errors import StoreFault
from memory.knowledge import Knowledge
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


async def forget(
    connection: AsyncConnection,
    user: LockedUser,
    scope: Scope,
    selection: Selection,
    forgotten: Forgotten | None,
    now: datetime,
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
    gone = await _take_episodes(connection, user, ids, forgotten, now)
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
    at = chunks.c
    columns = (at.id, at.conversation_id, at.first_cursor, at.last_cursor, at.start_offset)
    taken: list[Any] = []
    starts: list[dict[str, int]] = []
    for part in rows.batches(list(touched)):
        query = sa.select(*columns, BEGUN.label("begun")).where(at.conversation_id.in_(part))
        found = await connection.execute(query.order_by(at.conversation_id, at.ordinal.desc()))
        for conversation, newest_first in groupby(found, key=attrgetter("conversation_id")):
            mine = _from(touched[conversation], newest_first)
            taken += mine
            if mine:
                starts.append({"this": conversation, "start": mine[-1].first_cursor - 1})
    if starts:
        back = sa.update(conversations).where(conversations.c.id == sa.bindparam("this"))
        await connection.execute(back.values(chunked=sa.bindparam("start")), starts)
    for ids in rows.batches([row.id for row in taken]):
        await connection.execute(sa.delete(chunks).where(at.id.in_(ids)))
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


async def _take_episodes(
    connection: AsyncConnection, user: LockedUser, ids: Collection[str], forgotten: Forgotten | None, now: datetime
) -> int | None:
    """Leave the knowledge that never heard of these episodes; returns how many facts went, ``None``: no episode was."""
    there = set((await connection.execute(sa.select(episodes.c.id).where(episodes.c.user_id == user.id))).scalars())
    going = there & set(ids)
    if not going:
        return None
    version = user.version + _VERSIONS
    if going == there:
        gone = await _take_all(connection, user.id)
    elif forgotten is None:
        raise StoreFault("This process can't tell what is known from one session from what is known from others.")
    else:
        before = await rows.read_all(connection, user.id)
        after = await asyncio.to_thread(forgotten, before, going, now)
        gone = await replace(connection, user.id, before, after, version)
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


async def replace(connection: AsyncConnection, user: int, before: Knowledge, after: Knowledge, version: int) -> int:
    """Make ``after`` of ``before``, which is there, touching what differs; returns how many facts are gone."""
    await _replace(connection, entities, user, before.entities, after.entities, rows.entity_row)
    await _replace(connection, wordings, user, before.wordings, after.wordings, rows.wording_row)
    await _replace(connection, mentions, user, before.mentions, after.mentions, rows.mention_row)
    dated = {"version": version}
    gone = await _replace(connection, facts, user, before.facts, after.facts, lambda fact: rows.fact_row(fact) | dated)
    known = {episode.id: episode for episode in before.episodes}
    await rows.remove(connection, episodes, user, set(known) - {episode.id for episode in after.episodes})
    for episode in after.episodes:
        if episode != known.get(episode.id):
            await rows.put_episode(connection, user, episode, version)
    return gone


async def _replace(
    connection: AsyncConnection,
    table: sa.Table,
    user: int,
    before: Sequence[Any],
    after: Sequence[Any],
    row_of: Callable[[Any], dict[str, Any]],
) -> int:
    known = {item.id: item for item in before}
    gone = set(known) - {item.id for item in after}
    await rows.remove(connection, table, user, gone)
    await rows.put(connection, table, user, [row_of(item) for item in after if item != known.get(item.id)])
    return len(gone)
