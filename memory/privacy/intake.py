"""The one way in: what every entry and event passes before it is stored, whoever stores it.

Masks secrets in all text, pulls times in the future back to now, and stamps whose it is. Above: service, recorder.
Below: ports, models, limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from memory.clock import Clock
from memory.limits import CLOCK_SKEW_S
from memory.models import MemoryEntry, MemoryEvent, Scope
from memory.ports import Redactor

_THREAD_CHARS = 50_000  # redacting more would be felt on the event loop
FUTURE_TIMESTAMP = "future_timestamp"  # in ``degradations``: the turn's time was ahead of the clock


class Intake:
    """Prepares records for storing. Pure but for the clock; the input is never changed.

    Idempotent in effect: a prepared record, prepared again, stays as it is, so that a retry or a second path does no
    harm. Costs time linear in the text.
    """

    def __init__(self, redactor: Redactor, clock: Clock) -> None:
        self._redactor = redactor
        self._clock = clock

    def entry(self, entry: MemoryEntry, scope: Scope, session_id: str) -> MemoryEntry:
        """``entry`` as it may be stored: of ``session_id`` and of the scope's user, whatever it said before.

        Content, name, passages and sources are redacted; ``redactions`` counts up by what was masked.
        """
        masking = _Masking(self._redactor)
        changes: dict[str, Any] = {
            "session_id": session_id,
            "user_id": _user_of(scope),
            "content": masking.text(entry.content),
            "name": masking.text(entry.name) if entry.name else entry.name,
            "retrieved_passages": tuple(masking.text(text) for text in entry.retrieved_passages),
            "sources": tuple(masking.value(source) for source in entry.sources),
        }
        timestamp = self._past(entry.timestamp)
        if timestamp != entry.timestamp:
            changes |= {"timestamp": timestamp, "degradations": (*entry.degradations, FUTURE_TIMESTAMP)}
        return entry.with_(**changes, redactions=entry.redactions + masking.count)

    async def entry_aside(self, entry: MemoryEntry, scope: Scope, session_id: str) -> MemoryEntry:
        """``entry`` for callers on an event loop: a long text does not hold it up, but is prepared in a thread."""
        if len(entry.content) + sum(map(len, entry.retrieved_passages)) > _THREAD_CHARS:
            return await asyncio.to_thread(self.entry, entry, scope, session_id)
        return self.entry(entry, scope, session_id)

    def event(self, event: MemoryEvent, scope: Scope, session_id: str) -> MemoryEvent:
        """``event`` as it may be stored, in the same way; its ``data`` is redacted, keys, texts and numbers alike."""
        masking = _Masking(self._redactor)
        return MemoryEvent(
            id=event.id,
            session_id=session_id,
            user_id=_user_of(scope),
            timestamp=self._past(event.timestamp),
            event_type=event.event_type,
            data=masking.value(event.data),
        )

    def _past(self, timestamp: datetime) -> datetime:
        now = self._clock.now()
        return now if timestamp > now + timedelta(seconds=CLOCK_SKEW_S) else timestamp


def _user_of(scope: Scope) -> str:
    return scope.user_id if scope.kind == "user" else ""


class _Masking:
    """Redacts text inside any JSON-like value, and counts."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.count = 0

    def text(self, text: str) -> str:
        redacted = self._redactor.redact(text)
        self.count += redacted.count
        return redacted.text

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A card number in JSON is often a number; only a masked one becomes text.
            masked = self.text(str(value))
            return value if masked == str(value) else masked
        return value
