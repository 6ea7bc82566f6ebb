"""What every session store decides alike about a record: its mode, language and size, and whether an erasure means it.

Above: redis, inmemory. Below: models, ports.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from memory.models import MemoryEntry, MemoryEvent, Mode, Record
from memory.ports import Selection

MODE_SWITCH = "mode_switch"
LANGUAGE_SWITCH = "language_switch"

POSITION_CHARS = 23
_SEQUENCE_MAX = 1_023  # with 41 bits of milliseconds a position fits into the 53 bits of a Redis score
_Item = TypeVar("_Item")
_SWITCHES = uuid.UUID("6f0c2c3e-5d0a-5b8e-9c55-8a1d2f6f7b11")


def next_position(last: str, now_ms: int) -> str:
    """The position after ``last``: ``0001767225600000-000003``, milliseconds and a number. Grows if time does not."""
    milliseconds, number = now_ms, 0
    if last and now_ms <= (before := int(last[:16])):
        milliseconds, number = before, int(last[17:]) + 1
        if number > _SEQUENCE_MAX:
            milliseconds, number = before + 1, 0
    return f"{milliseconds:016d}-{number:06d}"


def detected_switch(entry: MemoryEntry) -> MemoryEvent:
    """The ``mode_switch`` event for an entry whose session was in the other mode. Its id follows from the entry's."""
    other: Mode = "text" if entry.mode == "voice" else "voice"
    return MemoryEvent(
        id=str(uuid.uuid5(_SWITCHES, entry.id)),
        session_id=entry.session_id,
        user_id=entry.user_id,
        timestamp=entry.timestamp,
        event_type=MODE_SWITCH,
        data={"from_mode": other, "to_mode": entry.mode, "trigger": "detected"},
    )


def mode_of(record: Record) -> Mode | None:
    """The mode that the session is in after ``record``; ``None``: as before."""
    if isinstance(record, MemoryEntry):
        return record.mode
    target = record.data.get("to_mode") if record.event_type == MODE_SWITCH else None
    return target if target in ("voice", "text") else None


def language_of(record: Record) -> str:
    """The language that the session is in after ``record``; "": as before."""
    if isinstance(record, MemoryEntry):
        return record.language
    target = record.data.get("to_language") if record.event_type == LANGUAGE_SWITCH else None
    return target if isinstance(target, str) else ""


def within(items: Iterable[_Item], size_of: Callable[[_Item], int], most: int) -> list[_Item]:
    """The first ``items`` that are no larger than ``most`` together; one at least."""
    taken: list[_Item] = []
    for item in items:
        most -= size_of(item)
        if taken and most < 0:
            break
        taken.append(item)
    return taken


def bytes_of(record: Record) -> int:
    text = record.content if isinstance(record, MemoryEntry) else str(record.data)
    return len(text.encode(errors="surrogatepass"))


def chars_of(record: Record) -> int:
    """Of what was said."""
    return len(record.content) if isinstance(record, MemoryEntry) else 0


def selects(selection: Selection, session_id: str | None, said_at: datetime | None) -> bool:
    """Whether an erasure means a record, its position aside. ``None``: it doesn't tell, and is taken to be meant."""
    if selection.what == "session":
        return session_id is None or session_id == selection.session_id
    if selection.what == "since":
        return said_at is None or selection.since is None or said_at >= selection.since
    return True
