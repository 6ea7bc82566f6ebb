"""The turns of a conversation as they happen, with their figures: for people as lines, for scripts as events.

Above: chat, call. Below: memory.models.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memory.models import Mode, Recall

if TYPE_CHECKING:
    from memory.plugin import AttachedMemory


@dataclass(slots=True)
class Turn:
    """One turn. ``memory_ms``: how long its recall took; ``voice_to_voice_ms``: end of speech to first sound;
    ``block``: the memory block in front of its LLM call, ``None`` for none."""

    role: str
    text: str
    mode: Mode
    language: str = ""
    interrupted: bool = False
    memory_ms: float | None = None
    voice_to_voice_ms: float | None = None
    first_text_ms: float | None = None
    block: str | None = None
    at: float = field(default_factory=time.time)

    def fields(self) -> dict[str, Any]:
        """As JSON types; what a reply alone has is left out of a user's turn."""
        found: dict[str, Any] = {
            "role": self.role,
            "mode": self.mode,
            "language": self.language,
            "text": self.text,
            "at": round(self.at, 4),
        }
        if self.role == "assistant":
            found |= {
                "interrupted": self.interrupted,
                "memory_ms": _rounded(self.memory_ms),
                "voice_to_voice_ms": _rounded(self.voice_to_voice_ms),
                "first_text_ms": _rounded(self.first_text_ms),
                "block": self.block,
            }
        return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


class Remembered:
    """What the memory did for the LLM calls since the last look."""

    def __init__(self, memory: AttachedMemory) -> None:
        self._memory = memory
        self._seen: Recall | None = memory.last_recall

    def look(self) -> tuple[float | None, str | None]:
        """Milliseconds of the newest recall and the block it gave; ``None`` each where there was no recall since."""
        recall = self._memory.last_recall
        if recall is None or recall is self._seen:
            return None, None
        self._seen = recall
        return recall.elapsed_ms, self._memory.last_block or None
