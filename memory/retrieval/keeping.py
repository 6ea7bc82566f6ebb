"""One user's snapshot: the turns' index and the facts in one file, so that one removal forgets both.

Above: following. Below: snapshot, facts_snapshot, snapshot_files.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from memory.errors import SnapshotError
from memory.models import Scope
from memory.retrieval.facts import FactIndex
from memory.retrieval.facts_snapshot import load_facts
from memory.retrieval.index import UserIndex
from memory.retrieval.snapshot import load
from memory.retrieval.snapshot_files import SnapshotHeader, SnapshotStore
from memory.retrieval.tasks import to_the_end

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a snapshot held. ``facts``: ``None`` where it held none that can be used."""

    index: UserIndex
    header: SnapshotHeader
    facts: FactIndex | None


async def read_kept(
    snapshots: SnapshotStore, scope: Scope, key: bytes, *, epoch: int, model: str, now: datetime
) -> Kept | None:
    """The user's snapshot, if it is of this epoch and these vectors; one that is of no use is removed.

    ``model`` "": recall goes by keywords alone, and vectors are no harm.
    """
    try:
        found = await snapshots.read(scope)
        if found is None:
            return None
        header, body = found
        if (header.scope, header.origin, header.epoch) == (scope, snapshots.origin, epoch) and model in (
            "",
            header.model,
        ):
            kept = await to_the_end(_loaded, header, body, key, now)
            if kept is not None:
                return kept
    except SnapshotError as error:
        logger.warning("A snapshot of recall is of no use: %s", error)
    await snapshots.remove(scope)
    return None


def _loaded(header: SnapshotHeader, body: bytes, key: bytes, now: datetime) -> Kept | None:
    cut = header.facts_at or len(body)
    loaded = load(body[:cut], key)
    if (loaded.position, loaded.epoch, loaded.model) != (header.position, header.epoch, header.model):
        return None
    facts = None
    if body[cut:]:
        try:
            facts = load_facts(body[cut:], key, epoch=header.epoch, model=header.model, now=now)
        except SnapshotError as error:
            logger.warning("The facts of a snapshot are of no use: %s", error)
    return Kept(loaded.index, header, facts)
