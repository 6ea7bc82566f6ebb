"""What a digest says of a session: the episodic layer's summary and key moments, by an LLM or by quoting.

Above: digesting. Below: prompts, speech_noise, ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from memory.ingestion.extraction import Extraction
from memory.ingestion.prompts import DIGEST, transcript
from memory.ingestion.speech_noise import is_noise
from memory.knowledge import Chunk, SessionDigest, Speaker, TurnPart
from memory.knowledge_ports import LanguageModel
from memory.limits import CHARS_PER_TOKEN, CHUNK_TOKENS_DEFAULT, KEY_MOMENTS_MAX
from memory.models import MemoryEntry, Role, clean_text
from memory.ports import Summarizer

TASK = "digest"
EXTRACTIVE = "extractive"
SUMMARY_CHARS_MAX = 2_000
MOMENT_CHARS_MAX = 300
_TRANSCRIPT_CHARS_MAX = 4 * CHUNK_TOKENS_DEFAULT * CHARS_PER_TOKEN  # the newest of a session, for the LLM

_SPEAKERS: dict[Role, Speaker] = {"user": "user", "assistant": "assistant", "system": "other"}


@dataclass(frozen=True, slots=True)
class Digest:
    """``made_by``: the LLM's name, or ``EXTRACTIVE``. Both texts are empty where nothing worth telling was said."""

    summary: str = field(repr=False)
    key_moments: tuple[str, ...] = field(repr=False)
    made_by: str


class DigestAnswer(BaseModel):
    """The shape that the LLM answers in."""

    summary: str
    key_moments: list[str]


async def digest(entries: Sequence[MemoryEntry], llm: LanguageModel | None, *, extractive: Summarizer) -> Digest:
    """The session in short. Without an LLM, or where its user only made noise, by ``extractive``.

    ``entries``: oldest first. An LLM gets the newest of them, about four chunks' length.

    Raises:
        ProviderUnavailable, ProviderRefused, ProviderAnswerInvalid: from the LLM.
    """
    turns = [part for part in map(_turn, entries) if not is_noise(part)]
    if llm is None or not any(turn.speaker == "user" for turn in turns):
        return await _extracted([entry for entry in entries if not is_noise(_turn(entry))], extractive)
    newest = _newest(turns)
    data = transcript(enumerate(newest), reference_time=newest[0].said_at)
    answer = await llm.answer(TASK, instructions=DIGEST, data=data, shape=DigestAnswer)
    moments = [_cut(moment, MOMENT_CHARS_MAX) for moment in answer.key_moments]
    kept = tuple(dict.fromkeys(moment for moment in moments if moment))[:KEY_MOMENTS_MAX]
    return Digest(_cut(answer.summary, SUMMARY_CHARS_MAX), kept, llm.name)


async def _extracted(entries: Sequence[MemoryEntry], extractive: Summarizer) -> Digest:
    """The summary quotes both speakers; the key moments are what it quotes of the user alone."""
    summary = await extractive.summarize(entries)
    told = await extractive.summarize([entry for entry in entries if entry.role == "user"])
    moments = [_cut(part, MOMENT_CHARS_MAX) for part in told.removeprefix("User: ").split(". ")]
    kept = tuple(dict.fromkeys(moment for moment in moments if moment))[:KEY_MOMENTS_MAX]
    return Digest(_cut(summary, SUMMARY_CHARS_MAX), kept, EXTRACTIVE)


def noted(
    earlier: SessionDigest | None, chunk: Chunk, turns: Sequence[TurnPart], extraction: Extraction, made_by: str
) -> SessionDigest | None:
    """The session's digest up to this chunk, from what its extraction brought along; ``None`` if that was nothing.

    ``earlier``: the digest of the session's chunks before it. The newest of a long session is kept.
    """
    summary = _cut(extraction.summary, SUMMARY_CHARS_MAX)
    if not summary:
        return None
    times = [turn.said_at for turn in turns]
    moments = [_cut(moment, MOMENT_CHARS_MAX) for moment in extraction.moments]
    if earlier is not None:
        summary = _newest_of(f"{earlier.summary} {summary}", SUMMARY_CHARS_MAX)
        moments, times = [*earlier.key_moments, *moments], [*times, earlier.first_at, earlier.last_at]
    return SessionDigest(
        session_id=chunk.session_id,
        summary=summary,
        key_moments=tuple(dict.fromkeys(moment for moment in moments if moment))[-KEY_MOMENTS_MAX:],
        made_by=made_by,
        through_cursor=chunk.span.last_cursor,
        first_at=min(times),
        last_at=max(times),
    )


def _newest_of(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else "…" + text[-(chars_max - 1) :].lstrip()


def _turn(entry: MemoryEntry) -> TurnPart:
    return TurnPart(
        turn_id=entry.id,
        speaker=_SPEAKERS[entry.role],
        text=entry.content,
        said_at=entry.timestamp,
        name=entry.name or "",
        mode=entry.mode,
        language=entry.language,
        confidence=entry.transcript_confidence,
    )


def _newest(turns: Sequence[TurnPart]) -> list[TurnPart]:
    """As many as fit, the last one in any case."""
    left, kept = _TRANSCRIPT_CHARS_MAX, list[TurnPart]()
    for turn in reversed(turns):
        left -= len(turn.text)
        if left < 0 and kept:
            break
        kept.append(turn)
    return kept[::-1]


def _cut(text: str, chars_max: int) -> str:
    tidy = " ".join(clean_text(text).split())
    return tidy if len(tidy) <= chars_max else tidy[: chars_max - 1].rstrip() + "…"
