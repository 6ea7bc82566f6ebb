"""Turns and extracted facts for tests of extraction, in a line each. Above: tests. Below: memory.ingestion."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from memory.ingestion.extraction import ExtractedFact, Extraction
from memory.ingestion.guards import Guarded, guarded
from memory.knowledge import Category, Speaker, TurnPart
from memory.models import Mode

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)  # a Sunday

_SPEAKERS: dict[str, Speaker] = {"u": "user", "a": "assistant", "o": "other"}


def turns(*lines: str, mode: Mode = "voice", confidence: float | None = None) -> list[TurnPart]:
    """``"u: I moved to Leeds"``: u is the user, a the agent, o somebody else."""
    made = []
    for place, line in enumerate(lines):
        speaker, text = line.split(": ", 1)
        made.append(
            TurnPart(f"t{place}", _SPEAKERS[speaker], text, NOW, mode=mode, confidence=confidence, end=len(text))
        )
    return made


def fact(
    text: str,
    thing: str,
    *places: int,
    subject: str = "user",
    category: Category = Category.USER_INFORMATION,
    valid_at: datetime | None = None,
    invalid_at: datetime | None = None,
) -> ExtractedFact:
    """One that an LLM may have found; in the first turn where no place is given."""
    return ExtractedFact(subject, thing, "SAYS", text, category, "user", valid_at, invalid_at, places or (0,))


def guard(said: Sequence[TurnPart], *facts: ExtractedFact, user_name: str = "") -> Guarded:
    return guarded(Extraction((), facts), said, reference_time=NOW, user_name=user_name)


def kept(said: Sequence[TurnPart], *facts: ExtractedFact, user_name: str = "") -> list[str]:
    """The texts that survive the guards."""
    return [each.text for each in guard(said, *facts, user_name=user_name).extraction.facts]
