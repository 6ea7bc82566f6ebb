"""From LiveKit's conversation items to entries: role, mode, language, times, what was heard. One of these a session.

Above: attached. Below: heard, models.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from livekit.agents import UserInputTranscribedEvent, llm

from memory.heard import Ear, Speech
from memory.models import MemoryEntry, MemoryEvent, Mode, Record

Metrics = Any  # livekit's MetricsReport: a TypedDict whose keys come and go

FINALS_MAX = 64


class Turns:
    """Makes the records of one session out of what the session reports, in the order it does.

    ``prefix`` makes an item's id unique over sessions.
    """

    def __init__(self, ear: Ear, *, prefix: str) -> None:
        self._ear = ear
        self._prefix = prefix
        self._finals: list[str] = []  # final transcripts that no user turn has taken up yet
        self._interim = ""
        self._heard_language = ""
        self._language = ""
        self._mode: Mode | None = None
        self._asked_at: datetime | None = None
        self._adopted: dict[str, str] = {}

    def entry_id(self, item_id: str) -> str:
        return self._adopted.get(item_id) or f"{self._prefix}{item_id}"

    def adopt(self, item_id: str, entry_id: str) -> None:
        """An item of the context stands for an entry that was stored before."""
        self._adopted[item_id] = entry_id

    def transcribed(self, event: UserInputTranscribedEvent) -> str:
        """Take a transcript, interim or final; returns what the user has said so far in this turn."""
        if event.is_final:
            self._finals = [*self._finals, event.transcript][-FINALS_MAX:]
            self._interim = ""
        else:
            self._interim = event.transcript
        if event.language:
            self._heard_language = str(event.language)
        return " ".join(filter(str.strip, [*self._finals, self._interim]))

    def user(self, item: llm.ChatMessage, speech: Speech | None) -> list[Record]:
        """A user's turn; an event before it where the language changed. Nothing for a turn without words.

        Raises:
            InvalidEntry: it can't be stored; the message says why.
        """
        text = item.text_content or ""
        mode = self._mode = self._mode_of(item, text, speech)
        language = ""
        if mode == "voice":  # what is typed meanwhile ends no spoken turn
            language, self._heard_language = self._heard_language, ""
            self._finals, self._interim = [], ""
        if speech is not None and speech.user_item_id is None:
            speech.user_item_id, speech.modality = item.id, mode
        self._asked_at = _ended_at(item)
        if not text.strip():
            return []
        switched = bool(language and self._language and _base(language) != _base(self._language))
        entry = MemoryEntry(
            id=self.entry_id(item.id),
            timestamp=_began_at(item),
            role="user",
            content=text,
            mode=mode,
            language=language,
            detected_language=language,
            language_switched=switched,
            transcript_confidence=_share(item.transcript_confidence),
        )
        event = self._switch(language, entry) if switched else None
        self._language = language or self._language
        return [record for record in (event, entry) if record is not None]

    def assistant(
        self, item: llm.ChatMessage, speech: Speech | None, *, spoken: bool, realtime: bool, about: Remembered
    ) -> list[Record]:
        """A reply, as far as it was heard; nothing where none of it was. ``spoken``: there is an audio output."""
        text = self._ear.heard_of(speech, item.text_content or "", interrupted=item.interrupted, realtime=realtime)
        if not text.strip():
            return []
        answers = speech is not None and speech.user_item_id is not None
        mode = speech.modality if speech is not None and answers else self._mode or ("voice" if spoken else "text")
        latency_ms = _latency_ms(item.metrics, self._asked_at if answers else None)
        if answers:
            self._asked_at = None  # a tool's second reply answers nothing anew
        return [
            MemoryEntry(
                id=self.entry_id(item.id),
                timestamp=_began_at(item),
                role="assistant",
                content=text,
                mode=mode,
                language=self._language,
                interrupted=item.interrupted,
                latency_ms=latency_ms,
                sources=about.sources if answers else (),
                degradations=about.degradations if answers else (),
            )
        ]

    def unreported(self, speech: Speech, now: datetime) -> list[Record]:
        """What was heard of a reply that was cut off, where livekit reports nothing: its own guess was too slow."""
        heard_s = sum(segment.heard_s for segment in speech.segments)
        text = self._ear.heard_of(speech, "", interrupted=True, realtime=False)
        if not text.strip():
            return []
        return [
            MemoryEntry(
                id=self.entry_id(speech.handle_id),
                timestamp=now - timedelta(seconds=heard_s),
                role="assistant",
                content=text,
                mode=speech.modality,
                language=self._language,
                interrupted=True,
            )
        ]

    def _mode_of(self, item: llm.ChatMessage, text: str, speech: Speech | None) -> Mode:
        if item.transcript_confidence is not None:  # 0.0 is what OpenAI's STT gives
            return "voice"
        if self._finals and " ".join(self._finals).split() == text.split():
            return "voice"  # such as the transcript that livekit hands on when a user speaks for too long
        return speech.modality if speech is not None and speech.user_item_id is None else "text"

    def _switch(self, language: str, entry: MemoryEntry) -> MemoryEvent:
        data = {"from_language": self._language, "to_language": language}
        return MemoryEvent(
            id=f"{entry.id}/language", timestamp=entry.timestamp, event_type="language_switch", data=data
        )


class Remembered:
    """What memory had for a reply. Ids only: a copied text would outlive the turn it was said in."""

    def __init__(self, ids: tuple[str, ...] = (), degradations: tuple[str, ...] = ()) -> None:
        self.sources: tuple[dict[str, Any], ...] = tuple({"type": "memory", "id": one} for one in ids)
        self.degradations = degradations


def _base(language: str) -> str:
    return language.split("-", 1)[0].casefold()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _began_at(item: llm.ChatMessage) -> datetime:
    """When the speaker began, which is before the item was made."""
    return _time(item.metrics.get("started_speaking_at") or item.created_at)


def _ended_at(item: llm.ChatMessage) -> datetime:
    return _time(item.metrics.get("stopped_speaking_at") or item.created_at)


def _latency_ms(metrics: Metrics, asked_at: datetime | None) -> float | None:
    latency_s: float | None = metrics.get("e2e_latency")
    if latency_s is None and asked_at is not None and "started_speaking_at" in metrics:
        latency_s = metrics["started_speaking_at"] - asked_at.timestamp()
    return latency_s * 1_000 if latency_s is not None and latency_s >= 0 else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None
