"""Knowledge as parameters of the graph's queries: Graphiti's properties, and ours.

Times are ISO 8601 in UTC, as Graphiti writes them; they sort as text. Above: store, restoring. Below: driver (vectors),
keywords, knowledge.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from memory.knowledge import (
    Entity,
    Episode,
    Knowledge,
    KnownFact,
    Mention,
    Patch,
    Statement,
    Wording,
    entity_kind,
)
from memory.stores.graph import keywords
from memory.stores.graph.driver import vector

SUMMARY_CHARS_MAX = 1_000
SUMMARY_LINES_MAX = 12

Row = dict[str, Any]


def when(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def episode(one: Episode, group: str) -> Row:
    return {
        "uuid": one.id,
        "name": one.name,
        "group_id": group,
        "source": "message",
        "source_description": one.source_description,
        "content": one.body,
        "entity_edges": list(one.fact_ids),
        "created_at": when(one.created_at),
        "valid_at": when(one.reference_time),
        "session": one.session_id,
        "ordinal": one.ordinal,
    }


def entity(one: Entity, group: str) -> Row:
    row = {
        "uuid": one.id,
        "name": one.name,
        "group_id": group,
        "summary": "",
        "created_at": when(one.created_at),
        "kind": one.kind,
        "key": one.key,
    }
    return {"p": row, "v": vector(one.vector), "label": entity_kind(one.kind)}


def fact(one: KnownFact, group: str) -> Row:
    row = {
        "uuid": one.id,
        "source_node_uuid": one.subject_id,
        "target_node_uuid": one.object_id,
        **_statement(one.statement, group),
        "episodes": list(one.episodes),
        "origin": one.origin,
        "created_at": when(one.created_at),
        "invalid_at": when(one.invalid_at),
        "expired_at": when(one.expired_at),
        "conflicts": list(one.conflicts),
    }
    return {"p": row, "v": vector(one.statement.vector)}


def wording(one: Wording, group: str) -> Row:
    row = {
        "uuid": one.id,
        "edge": one.fact_id,
        "episode": one.episode,
        "created_at": when(one.created_at),
        **_statement(one.statement, group),
    }
    return {"p": row, "v": vector(one.statement.vector)}


def _statement(one: Statement, group: str) -> Row:
    return {
        "name": one.relation,
        "fact": one.text,
        "words": keywords.indexed(f"{one.relation} {one.text}"),
        "group_id": group,
        "valid_at": when(one.valid_at),
        "said_invalid_at": when(one.said_invalid_at),
        "reference_time": when(one.reference_time),
        "turns": list(one.turns),
        "speaker": one.speaker,
        "category": str(one.category),
    }


def mention(one: Mention, group: str) -> Row:
    row = {"uuid": one.id, "group_id": group, "created_at": when(one.created_at), "name": one.name}
    return {"p": row, "v": vector(one.vector), "episode": one.episode, "entity": one.entity_id}


def patch(one: Patch, group: str) -> Row:
    """The lists of a saving query."""
    return {
        "episodes": [episode(one.episode, group)],
        "entities": [entity(each, group) for each in one.entities],
        "facts": [fact(each, group) for each in one.facts],
        "changed": [fact(each, group) for each in one.changed],
        "wordings": [wording(each, group) for each in one.wordings],
        "mentions": [mention(each, group) for each in one.mentions],
        "touched": list(one.touched),
    }


def parts(one: Knowledge, group: str) -> dict[str, list[Any]]:
    """The lists of the restoring queries, in the order in which they have to be made."""
    return {
        "entities": [entity(each, group) for each in one.entities],
        "facts": [fact(each, group) for each in one.facts],
        "wordings": [wording(each, group) for each in one.wordings],
        "episodes": [episode(each, group) for each in one.episodes],
        "mentions": [mention(each, group) for each in one.mentions],
        "touched": [each.id for each in one.entities],
    }


def summary_rule(now: datetime) -> Row:
    return {"now": when(now), "lines_max": SUMMARY_LINES_MAX, "chars_max": SUMMARY_CHARS_MAX}


def dimension(vectors: Iterable[bytes]) -> int:
    """The length of the first vector there is; 0: there is none."""
    return next((len(data) // 4 for data in vectors if data), 0)


def vectors(one: Patch | Knowledge) -> Iterable[bytes]:
    yield from (each.statement.vector for each in one.facts)
    yield from (each.vector for each in one.entities)
    yield from (each.statement.vector for each in one.wordings)


def digest(one: Patch) -> str:
    """What two patches share that change the graph alike; when they were made is no matter."""
    facts = [
        (each.id, each.statement.text, each.episodes, each.conflicts, str(each.invalid_at))
        for each in (*one.facts, *one.changed)
    ]
    entities, wordings = [each.id for each in one.entities], [each.id for each in one.wordings]
    mentions = [each.id for each in one.mentions]
    told = json.dumps([one.episode.id, one.episode.body, facts, entities, wordings, mentions, one.touched])
    return hashlib.sha256(told.encode()).hexdigest()
