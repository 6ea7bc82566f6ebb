"""What stays out of facts, episodes and digests because it is marked as confidential, or by the deployment's rule.

Marked: ``<confidential>…</confidential>`` or ``[confidential]…[/confidential]``, within a turn or over several. The
rule: ``MEMORY_CONFIDENTIAL``, words or phrases; a turn that holds one is left out whole. The verbatim archive keeps all
of it: that is the user's own record. Pure. Above: the pipeline, digesting, wiring. Below: knowledge, models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from memory.knowledge import TurnPart
from memory.models import MemoryEntry
from memory.retrieval.text import fold

_MARK = re.compile(r"[<\[]\s{0,3}(?P<closes>/)?\s{0,3}confidential\s{0,3}[>\]]", re.IGNORECASE)

_Turn = TypeVar("_Turn", TurnPart, MemoryEntry)


class Confidential:
    """``phrases``: of the rule; case, accents and spaces don't matter, words count whole."""

    def __init__(self, phrases: Iterable[str] = ()) -> None:
        words = [" ".join(fold(phrase).split()) for phrase in phrases]
        patterns = [re.escape(word).replace(r"\ ", r"\s+") for word in words if word]
        self._rule = re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)") if patterns else None

    @classmethod
    def of(cls, setting: str) -> Confidential:
        """From the setting: phrases with commas between."""
        return cls(setting.split(","))

    def turns(self, turns: Sequence[TurnPart]) -> list[TurnPart]:
        """What may be known of these turns, in order. Turns of which nothing is left are left out."""
        texts = self._public([turn.text for turn in turns])
        return [
            turn if text == turn.text else replace(turn, text=text)
            for turn, text in zip(turns, texts, strict=True)
            if text.strip()
        ]

    def entries(self, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
        """The same for entries."""
        texts = self._public([entry.content for entry in entries])
        return [
            entry if text == entry.content else entry.with_(content=text)
            for entry, text in zip(entries, texts, strict=True)
            if text.strip()
        ]

    def _public(self, texts: Sequence[str]) -> list[str]:
        marked = _outside(texts)
        # By the whole turn: what is left of one when a span is cut out says as much as the rule forbids.
        return ["" if self._ruled(text) else left for text, left in zip(texts, marked, strict=True)]

    def _ruled(self, text: str) -> bool:
        return self._rule is not None and self._rule.search(fold(text)) is not None


def _outside(texts: Sequence[str]) -> list[str]:
    """Each text without what is between marks.

    A mark that is never closed covers what follows, one that was never opened what comes before: the other half may be
    in a chunk that isn't seen here.
    """
    inside = _begins_inside(texts)
    found: list[str] = []
    for text in texts:
        left: list[str] = []
        done = 0
        for mark in _MARK.finditer(text):
            if not inside:
                left.append(text[done : mark.start()])
            inside, done = mark["closes"] is None, mark.end()
        if not inside:
            left.append(text[done:])
        found.append(text if len(left) == 1 and left[0] == text else " ".join(filter(None, map(str.strip, left))))
    return found


def _begins_inside(texts: Sequence[str]) -> bool:
    """Whether the first mark of all closes."""
    first = next((mark for text in texts for mark in _MARK.finditer(text)), None)
    return first is not None and first["closes"] is not None
