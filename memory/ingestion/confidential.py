"""What stays out of facts, episodes and digests because it is marked as confidential, or by the deployment's rule.

Marked: ``<confidential>…</confidential>`` or ``[confidential]…[/confidential]``, within a turn or over several. The
rule: ``MEMORY_CONFIDENTIAL``, words or phrases; a turn that holds one is left out whole. The verbatim archive keeps all
of it: that is the user's own record. Above: the pipeline, digesting, wiring. Below: knowledge_ports, knowledge, models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from memory.knowledge import TurnPart
from memory.knowledge_ports import ArchivedEntry, EarlierTurns, SessionRef
from memory.models import MemoryEntry
from memory.retrieval.text import fold

_MARK = re.compile(r"[<\[]\s{0,3}(?P<closes>/)?\s{0,3}confidential\s{0,3}[>\]]", re.IGNORECASE)

_WORD = "confidential"
_EARLIER = 8  # turns looked at in one go

_Span = tuple[int, int]
_Part = tuple[str, int, int]  # a turn's whole text; where in it the part at hand begins, and its length


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

    async def turns(
        self, turns: Sequence[TurnPart], ref: SessionRef, cursor: int, said: EarlierTurns
    ) -> list[TurnPart]:
        """What may be known of these turns of a session, in order, the first of them at ``cursor``. Turns of which
        nothing is left are left out.

        Raises:
            StoreUnavailable: ``said`` is away.
        """
        parts = [(turn.whole or turn.text, turn.start if turn.whole else 0, len(turn.text)) for turn in turns]
        texts = self._public(parts, inside=await _left_open(said, ref, cursor))
        return [
            turn if text == turn.text else replace(turn, text=text)
            for turn, text in zip(turns, texts, strict=True)
            if text.strip()
        ]

    async def entries(self, entries: Sequence[ArchivedEntry], ref: SessionRef, said: EarlierTurns) -> list[MemoryEntry]:
        """The same for entries, at least one."""
        whole = [each.entry for each in entries]
        parts = [(entry.content, 0, len(entry.content)) for entry in whole]
        texts = self._public(parts, inside=await _left_open(said, ref, entries[0].cursor))
        return [
            entry if text == entry.content else entry.with_(content=text)
            for entry, text in zip(whole, texts, strict=True)
            if text.strip()
        ]

    def _public(self, parts: Sequence[_Part], *, inside: bool) -> list[str]:
        marked = _outside([whole for whole, _, _ in parts], inside=inside)
        # By the whole turn: what is left of one when a span is cut out says as much as the rule forbids.
        return [
            "" if self._ruled(whole) else _cut(whole, spans, start, length)
            for (whole, start, length), spans in zip(parts, marked, strict=True)
        ]

    def _ruled(self, text: str) -> bool:
        return self._rule is not None and self._rule.search(fold(text)) is not None


async def _left_open(said: EarlierTurns, ref: SessionRef, cursor: int) -> bool:
    """Whether the last mark before ``cursor`` opens: it may be many chunks away."""
    while found := await said.before(ref, cursor, holding=_WORD, limit=_EARLIER):
        for each in found:
            if marks := [*_MARK.finditer(each.entry.content)]:
                return marks[-1]["closes"] is None
        cursor = found[-1].cursor
    return False


def _outside(texts: Sequence[str], *, inside: bool) -> list[list[_Span]]:
    """Where in each text what is not between marks is.

    A mark that is never closed covers what follows. One that was never opened covers what comes before: what opened it
    may be gone.
    """
    inside = inside or _begins_inside(texts)
    found: list[list[_Span]] = []
    for text in texts:
        left: list[_Span] = []
        done = 0
        for mark in _MARK.finditer(text):
            if not inside:
                left.append((done, mark.start()))
            inside, done = mark["closes"] is None, mark.end()
        if not inside:
            left.append((done, len(text)))
        found.append(left)
    return found


def _begins_inside(texts: Sequence[str]) -> bool:
    """Whether the first mark of all closes."""
    first = next((mark for text in texts for mark in _MARK.finditer(text)), None)
    return first is not None and first["closes"] is not None


def _cut(text: str, spans: Sequence[_Span], start: int, length: int) -> str:
    """What the spans leave of ``length`` characters from ``start``."""
    end = start + length
    left = [text[max(first, start) : min(last, end)] for first, last in spans if first < end and last > start]
    return left[0] if len(left) == 1 and len(left[0]) == length else " ".join(filter(None, map(str.strip, left)))
