"""Whether an extracted fact is the one that somebody wrote down, in whatever words.

Above: the evaluation. Below: grounding.
"""

from __future__ import annotations

from memory.ingestion.assertions import Vocabulary, denies, head
from memory.ingestion.extraction import ExtractedFact
from memory.ingestion.grounding import content
from memory.ingestion.spoken_numbers import written
from memory.knowledge import USER_ENTITY_KEY, name_key
from memory.retrieval.text import fold

OBJECT_SHARE_MIN = 0.5
LIKENESS_MIN = 0.4


def likeness(fact: ExtractedFact, subject: str, thing: str, text: str, relation: str = "") -> float:
    """0 to 1: how much of the written one's words it has; 0 where it is about somebody or something else, denies what
    that states, or has other numbers. The same relation counts as the same words."""
    if not _same_subject(fact.subject, subject) or denies(fold(head(fact.text))) != denies(fold(head(text))):
        return 0.0
    if sorted(written(fold(text))) != sorted(written(fold(fact.text))) and relation != fact.relation:
        return 0.0
    found = f"{fact.text} {fact.object}"
    if _share(content(thing), found) < OBJECT_SHARE_MIN:
        return 0.0
    recall, precision = _share(content(text), found), _share(content(found), f"{text} {thing}")
    score = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
    same_relation = bool(relation) and relation == fact.relation
    return max(score, 0.5) if same_relation else (score if score >= LIKENESS_MIN else 0.0)


def _same_subject(one: str, other: str) -> bool:
    mine, theirs = name_key(one), name_key(other)
    if USER_ENTITY_KEY in (mine, theirs):
        return mine == theirs
    return bool(set(content(mine)) & set(content(theirs))) or mine == theirs


def _share(mine: list[str], theirs: str) -> float:
    said = Vocabulary(theirs)
    return sum(word in said for word in mine) / len(mine) if mine else 1.0
