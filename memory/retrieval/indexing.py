"""From records to the index, from one index to the next, and from hits to passages. Pure functions.

Above: engine, following. Below: index, models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from memory.models import MemoryEntry, Passage, Record
from memory.ports import Selection
from memory.retrieval.index import Hit, IndexedTurn, Prepared, UserIndex
from memory.retrieval.vectors import Vector

_CARRIED_AT_ONCE = 256


def as_turn(record: Record) -> IndexedTurn | None:
    """What of a record is recalled: what users and assistants said, as it is stored."""
    if not isinstance(record, MemoryEntry) or record.role == "system":
        return None
    return IndexedTurn(
        id=record.id,
        session_id=record.session_id,
        timestamp=record.timestamp,
        role=record.role,
        text=record.content,
        name=record.name,
        mode=record.mode,
        language=record.language,
    )


def add_all(index: UserIndex, turns: Sequence[IndexedTurn]) -> None:
    for turn in turns:
        index.add(turn)


def remove_selected(index: UserIndex, selection: Selection) -> int:
    """Remove what is meant from the index; returns how many turns that were."""
    if selection.what == "session":
        return index.remove_session(selection.session_id or "")
    since_s = selection.since.timestamp() if selection.since is not None else -np.inf
    return index.remove([index.turns.ids[place] for place in np.flatnonzero(index.turns.times.values >= since_s)])


def common_vectors(before: UserIndex, after: UserIndex) -> Iterator[tuple[list[str], Vector]]:
    """Ids and vectors of turns that have a vector before and are still there, with the same text, after."""
    assert before.vectors is not None
    for start in range(0, len(before), _CARRIED_AT_ONCE):
        places = [
            place
            for place in range(start, min(start + _CARRIED_AT_ONCE, len(before)))
            if before.vectors.present[place]
            and (there := after.turns.position(before.turns.ids[place])) is not None
            and after.turns.text(there) == before.turns.text(place)
        ]
        yield [before.turns.ids[place] for place in places], before.vectors.rows[places].astype(np.float32)


def found(index: UserIndex, prepared: Prepared, vector: Vector | None, limit: int) -> list[Hit]:
    """See ``UserIndex.finish``; by keywords alone where no meaning is close."""
    hits = index.finish(prepared, query_vector=vector, k=limit)
    if hits or vector is None or index.vectors is None or not index.vectors.missing:
        return hits
    # No meaning is close. But a turn that has no vector yet, such as a long one said just now, has only its words.
    return index.finish(prepared, query_vector=None, k=limit)


def as_passage(hit: Hit, *, changed: bool = False) -> Passage:
    """A hit as callers of recall get it."""
    turn = hit.turn
    return Passage(
        id=turn.id,
        session_id=turn.session_id,
        timestamp=turn.timestamp,
        role=turn.role,
        text=turn.text,
        mode=turn.mode,
        language=turn.language,
        name=turn.name,
        score=hit.score,
        changed=changed,
    )
