"""Between knowledge and rows: what makes which row, and writing many of them.

Above: knowledge_sql, forgetting. Below: knowledge_schema, knowledge.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from memory.knowledge import Entity, Episode, Knowledge, KnownFact, Mention, Patch, Statement, Wording
from memory.stores.knowledge_schema import entities, episodes, facts, mentions, wordings
from memory.stores.users import insert

_AT_ONCE = 100  # rows made before others get the loop
IDS_AT_ONCE = 500  # in one statement: databases bound its parameters

_T = TypeVar("_T")
_Row = dict[str, Any]


def key_digest(key: str) -> str:
    """What an entity's key is found by."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


# -- to rows


def entity_row(entity: Entity) -> _Row:
    row = {name: getattr(entity, name) for name in ("id", "key", "name", "kind", "created_at", "vector")}
    return row | {"key_digest": key_digest(entity.key)}


_STATEMENT = (
    "text",
    "relation",
    "category",
    "speaker",
    "valid_at",
    "said_invalid_at",
    "reference_time",
    "vector",
)


def _statement_row(statement: Statement) -> _Row:
    return {**{name: getattr(statement, name) for name in _STATEMENT}, "turns": list(statement.turns)}


_FACT = ("id", "subject_id", "object_id", "origin", "created_at", "invalid_at", "expired_at")


def fact_row(fact: KnownFact) -> _Row:
    lists = {"episodes": list(fact.episodes), "conflicts": list(fact.conflicts)}
    return {**{name: getattr(fact, name) for name in _FACT}, **lists, **_statement_row(fact.statement)}


_WORDING = ("id", "fact_id", "episode", "created_at")


def wording_row(wording: Wording) -> _Row:
    return {**{name: getattr(wording, name) for name in _WORDING}, **_statement_row(wording.statement)}


_MENTION = ("id", "episode", "entity_id", "name", "created_at", "vector")


def mention_row(mention: Mention) -> _Row:
    return {name: getattr(mention, name) for name in _MENTION}


_EPISODE = ("id", "session_id", "ordinal", "name", "body", "source_description", "reference_time", "created_at")


def episode_row(episode: Episode) -> _Row:
    return {**{name: getattr(episode, name) for name in _EPISODE}, "fact_ids": list(episode.fact_ids)}


# -- from rows


def entity_of(row: Any) -> Entity:
    return Entity(row.id, row.key, row.name, row.kind, row.created_at, row.vector)


def _statement_of(row: Any) -> Statement:
    return Statement(turns=tuple(row.turns), **{name: getattr(row, name) for name in _STATEMENT})


def fact_of(row: Any) -> KnownFact:
    return KnownFact(
        statement=_statement_of(row),
        episodes=tuple(row.episodes),
        conflicts=tuple(row.conflicts),
        **{name: getattr(row, name) for name in _FACT},
    )


def wording_of(row: Any) -> Wording:
    return Wording(statement=_statement_of(row), **{name: getattr(row, name) for name in _WORDING})


def mention_of(row: Any) -> Mention:
    return Mention(**{name: getattr(row, name) for name in _MENTION})


def episode_of(row: Any) -> Episode:
    return Episode(fact_ids=tuple(row.fact_ids), **{name: getattr(row, name) for name in _EPISODE})


async def read_all(connection: AsyncConnection, user: int) -> Knowledge:
    """Everything of one user; the transaction has to be one in which nothing changes meanwhile."""

    async def rows(table: sa.Table, make: Callable[[Any], _T], *order: str) -> tuple[_T, ...]:
        place = attrgetter(*order)
        query = sa.select(table).where(table.c.user_id == user)
        found = [(place(row), make(row)) async for row in stream(connection, query)]
        return tuple(made for _, made in sorted(found, key=itemgetter(0)))  # as Python orders, not a locale

    return Knowledge(
        episodes=await rows(episodes, episode_of, "version", "id"),
        entities=await rows(entities, entity_of, "id"),
        facts=await rows(facts, fact_of, "id"),
        wordings=await rows(wordings, wording_of, "id"),
        mentions=await rows(mentions, mention_of, "id"),
    )


async def stream(connection: AsyncConnection, query: sa.Select[Any]) -> AsyncIterator[Any]:
    """The query's rows, a few at a time: others get the loop in between, and few are held twice."""
    async with connection.stream(query) as result:
        async for part in result.partitions(_AT_ONCE):
            for row in part:
                yield row
            await asyncio.sleep(0)


# -- writing


async def put(connection: AsyncConnection, table: sa.Table, user: int, rows: Sequence[_Row]) -> None:
    """Insert rows of one user, or replace the ones with the same ids."""
    if not rows:
        return
    statement = _upsert(connection.dialect.name, table, tuple(rows[0]))
    for start in range(0, len(rows), _AT_ONCE):
        await connection.execute(statement, [{"user_id": user, **row} for row in rows[start : start + _AT_ONCE]])
        await asyncio.sleep(0)


@functools.cache
def _upsert(dialect: str, table: sa.Table, names: tuple[str, ...]) -> Any:
    statement = insert(dialect, table)
    columns = {name: statement.excluded[name] for name in names if name != "id"}
    return statement.on_conflict_do_update(index_elements=["user_id", "id"], set_=columns)


async def put_episode(connection: AsyncConnection, user: int, episode: Episode, version: int) -> None:
    """Store a new episode; one that is there keeps its place in the order."""
    row = episode_row(episode)
    statement = _upsert(connection.dialect.name, episodes, tuple(row))
    await connection.execute(statement, {"user_id": user, "version": version, **row})


async def put_patch(connection: AsyncConnection, user: int, patch: Patch, version: int) -> None:
    """Store what a patch makes or changes, as of ``version``."""
    await put_episode(connection, user, patch.episode, version)
    await put(connection, entities, user, [entity_row(entity) for entity in patch.entities])
    changed = [fact_row(fact) | {"version": version} for fact in (*patch.facts, *patch.changed)]
    await put(connection, facts, user, changed)
    await put(connection, wordings, user, [wording_row(wording) for wording in patch.wordings])
    await put(connection, mentions, user, [mention_row(mention) for mention in patch.mentions])


async def remove(connection: AsyncConnection, table: sa.Table, user: int, ids: Iterable[str]) -> None:
    """Delete rows of one user by their ids."""
    for part in batches(list(ids)):
        await connection.execute(sa.delete(table).where(table.c.user_id == user, table.c.id.in_(part)))


def batches(ids: Sequence[_T]) -> Iterable[Sequence[_T]]:
    """``ids`` in as many parts as statements need."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))
