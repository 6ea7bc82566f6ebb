"""What a patch does to a user's knowledge: the reference for its effect in SQL and in the graph.

Pure. Above: the pipeline, forgetting, the stores' tests. Below: knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from memory.knowledge import Episode, Knowledge, Patch


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


_Item = TypeVar("_Item", bound=_Identified)


def apply(knowledge: Knowledge, patch: Patch) -> Knowledge:
    """``knowledge`` with ``patch``. Applied twice it is the same; of what has one id, the patch's counts."""
    return Knowledge(
        episodes=_ingested(knowledge.episodes, patch.episode),
        entities=by_id(knowledge.entities, patch.entities),
        facts=by_id(knowledge.facts, patch.facts, patch.changed),
        wordings=by_id(knowledge.wordings, patch.wordings),
        mentions=by_id(knowledge.mentions, patch.mentions),
    )


def _ingested(episodes: tuple[Episode, ...], episode: Episode) -> tuple[Episode, ...]:
    if all(known.id != episode.id for known in episodes):
        return (*episodes, episode)
    return tuple(episode if known.id == episode.id else known for known in episodes)


def by_id(*groups: Iterable[_Item]) -> tuple[_Item, ...]:
    """All items in the order of their ids, each id once; later groups win."""
    found = {item.id: item for group in groups for item in group}
    return tuple(found[key] for key in sorted(found))
