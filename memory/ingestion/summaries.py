"""What is known of an entity in a few lines: its live facts, newest first.

It is made anew, never edited, and by no LLM, so that a correction or a deletion leaves no trace in it.

The graph's nodes carry the same summary; stores/graph/queries.py makes it there by the same rule.
Pure. Above: merging, readers of facts. Below: knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from memory.knowledge import KnownFact

SUMMARY_CHARS_MAX = 1_000
SUMMARY_FACTS_MAX = 12


def summary(entity_id: str, facts: Iterable[KnownFact], *, now: datetime) -> str:
    """The entity's live facts, a line each, within ``SUMMARY_CHARS_MAX``; a fact that no longer fits is left out."""
    touching = [fact for fact in facts if entity_id in (fact.subject_id, fact.object_id) and fact.live(now)]
    touching.sort(key=lambda fact: fact.statement.text)
    touching.sort(key=lambda fact: fact.statement.valid_at, reverse=True)
    lines: list[str] = []
    for text in list(dict.fromkeys(fact.statement.text for fact in touching))[:SUMMARY_FACTS_MAX]:
        if len("\n".join([*lines, text])) <= SUMMARY_CHARS_MAX:
            lines.append(text)
    return "\n".join(lines)
