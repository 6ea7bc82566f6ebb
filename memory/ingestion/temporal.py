"""When a statement holds, and which of two that contradict each other ends the other.

Graphiti's rule: of two facts that can't hold together, the one that is valid later ends the earlier one, from its own
``valid_at`` on. Beyond it: without a date, or with the day's date only, a statement is valid from when it was said, so
that of two values in one call the last wins; and where code is certain of the contradiction, what was said last counts,
whatever date it gave.
Pure. Above: merging, forgetting. Below: knowledge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from memory.knowledge import Statement

# "will", "plans to", …: said of the future, hence true as a plan from when it was said (Graphiti does the same).
_PLANNED = re.compile(
    r"\b(?:will|shall|(?:going|scheduled|set|committed|(?:plan|intend|expect|promise|aim)(?:s|n?ed|d|n?ing)?) to)\b"
    r"|\b[a-z]+['’]ll\b",
    re.IGNORECASE,
)
_DEADLINE = re.compile(r"\b(?:by|before|no later than|deadline|due (?:by|on))\b", re.IGNORECASE)
_STATE_ENDS = re.compile(
    r"\b(?:until|through|thru|expire[sd]?|end(?:s|ed|ing)?|stop(?:s|ped)?|cease[sd]?|no longer)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Validity:
    valid_at: datetime
    invalid_at: datetime | None


def validity(text: str, *, said: datetime, valid_at: datetime | None, invalid_at: datetime | None) -> Validity:
    """From when until when a statement holds that was ``said`` then, with the dates it gave, if any."""
    if _PLANNED.search(text):
        if valid_at is not None and valid_at > said:
            valid_at = None
        if invalid_at is not None and invalid_at > said and _is_deadline(text):
            invalid_at = None
    if valid_at is None:
        # "until 2019" without a beginning: over when it was said, so no later than that.
        return Validity(min(said, invalid_at or said), invalid_at)
    if valid_at <= said and valid_at.date() == said.date():
        valid_at = said  # the day of the talk: no more than that it holds now
    if invalid_at is not None and invalid_at < valid_at:
        invalid_at = None
    return Validity(valid_at, invalid_at)


def _is_deadline(text: str) -> bool:
    return bool(_DEADLINE.search(text)) and not _STATE_ENDS.search(text)


def ended_by(statement: Statement, other: Statement, *, certain: bool) -> datetime | None:
    """From when ``other``, which contradicts ``statement``, ends it; ``None``: it doesn't.

    Of two statements at most one ends the other: neither does where both were said, and hold from, the same moment.
    ``certain``: code, not an LLM, knows that they contradict each other.
    """
    if _place(other, certain) <= _place(statement, certain):
        return None
    if other.valid_at > statement.valid_at:
        return other.valid_at
    return max(other.reference_time, statement.valid_at)


def _place(statement: Statement, certain: bool) -> tuple[datetime, datetime]:
    if certain:
        return max(statement.valid_at, statement.reference_time), statement.reference_time
    return statement.valid_at, statement.reference_time


def holds_when_said(statement: Statement) -> datetime:
    """The moment at which a known fact has to be live for ``statement`` to repeat it.

    What is said to hold has to be live when it is said, whatever date it is said to have begun at: who "has lived in
    Leeds since 2010" and is known to have left it since is back there. What is said to be over, when it began.
    """
    over = statement.said_invalid_at is not None and statement.said_invalid_at <= statement.reference_time
    return statement.valid_at if over else max(statement.valid_at, statement.reference_time)


def earliest(*moments: datetime | None) -> datetime | None:
    """The earliest of those that are there."""
    return min((moment for moment in moments if moment is not None), default=None)
