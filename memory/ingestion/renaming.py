"""What entities are called once some who spoke of them are forgotten, and which of them then are one.

An entity has the name by which it was first spoken of. If that is forgotten, the next one's name is its name; and if
another entity has just that name already, they would have been one from the beginning.
Pure. Above: forgetting. Below: knowledge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memory.knowledge import Entity, Mention, name_key


@dataclass(frozen=True, slots=True)
class Renamed:
    """``joined``: ids of entities that are gone, with the id of the one that they are now."""

    entities: tuple[Entity, ...]
    mentions: tuple[Mention, ...]
    joined: Mapping[str, str]


def renamed(entities: Sequence[Entity], mentions: Sequence[Mention], order: Mapping[str, int]) -> Renamed:
    """The entities that ``mentions``, those left, still speak of. ``order``: places of the episodes left."""
    spoken_of: dict[str, list[Mention]] = defaultdict(list)
    for mention in sorted(mentions, key=lambda mention: (order.get(mention.episode, 0), mention.id)):
        spoken_of[mention.entity_id].append(mention)
    known = sorted((one for one in entities if spoken_of[one.id]), key=lambda one: _age(spoken_of[one.id], order))
    by_key: dict[str, Entity] = {}
    joined: dict[str, str] = {}
    left: list[Mention] = []
    for entity in known:
        called, own = _called(entity, spoken_of[entity.id])
        first = by_key.setdefault(called.key, called)
        if first.id != entity.id:
            joined[entity.id] = first.id
        left += [replace(mention, entity_id=first.id) for mention in own]
    once = {(mention.episode, mention.entity_id): mention for mention in reversed(left)}
    return Renamed(
        entities=tuple(sorted(by_key.values(), key=lambda one: one.id)),
        mentions=tuple(sorted(once.values(), key=lambda one: one.id)),
        joined=joined,
    )


def _age(mentions: Sequence[Mention], order: Mapping[str, int]) -> tuple[int, str]:
    return order.get(mentions[0].episode, 0), mentions[0].id


def _called(entity: Entity, mentions: Sequence[Mention]) -> tuple[Entity, list[Mention]]:
    """The entity by its first mention's name, and its mentions; those by its old name keep that name's vector."""
    first = mentions[0]
    if first.name == entity.name:
        return entity, list(mentions)
    own = [replace(mention, vector=entity.vector) if mention.name == entity.name else mention for mention in mentions]
    key, vector = name_key(first.name), first.vector
    return replace(entity, name=first.name, key=key, vector=vector, created_at=first.created_at), own
