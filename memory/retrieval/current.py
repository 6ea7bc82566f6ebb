"""What recall tells of turns and facts together: nothing twice, and nothing that has ended as if it still held.

Above: engine. Below: facts, indexing. Pure functions.

A turn that states what has ended since is told as ``changed``. Of a turn and a fact that comes from it one is told:
the fact where the turn says hardly more than it, else the turn, which is verbatim. The fact is told in any case where
it was said again later than the turn, or where another turn that is told is out of date: it says what holds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime

from memory.models import Fact, Passage
from memory.retrieval.facts import FactIndex, Known
from memory.retrieval.index import Hit
from memory.retrieval.indexing import as_passage
from memory.retrieval.text import stems

_SAME = 0.6  # of one text's words that are in the other: it says hardly more


def together(
    hits: Sequence[Hit], known: Sequence[Known], index: FactIndex, now: datetime
) -> tuple[tuple[Passage, ...], tuple[Fact, ...]]:
    """Passages and facts to tell, each in its order."""
    passages: list[Passage] = []
    told_by_turn: set[str] = set()
    out_of_date = [index.out_of_date(hit, now) for hit in hits]
    for hit, changed in zip(hits, out_of_date, strict=True):
        mine = [] if changed else [one for one in known if hit.turn.id in one.turns]
        if mine:
            words = frozenset(stems(hit.turn.text))
            if _within(words, frozenset().union(*(one.stems for one in mine))):
                continue
            told_by_turn |= {
                one.fact.id for one in mine if one.said_at <= hit.turn.timestamp and _within(one.stems, words)
            }
        passages.append(as_passage(hit, changed=changed))
    spared: Set[str] = set() if any(out_of_date) else told_by_turn
    return tuple(passages), tuple(one.fact for one in known if one.fact.id not in spared)


def _within(part: Set[str], whole: Set[str]) -> bool:
    return len(part & whole) >= _SAME * len(part)
