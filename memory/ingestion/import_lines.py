"""Lines of a team's existing conversations, read as turns.

::

    {"session_id": …, "user_id": …, "timestamp": …, "role": …, "content": …}

``id``, ``mode``, ``language``, ``name`` and what else an entry has may be given; other fields are passed over. Ids
derive from user, session and line, so that the same line is the same turn whenever it is read; an id that is a UUID is
kept. A line that can't be used is a ``BadLine``, whose reason holds no content.
Pure but for reading the file. Above: importing. Below: intake, models, knowledge.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from memory.errors import InvalidEntry, InvalidIdentity
from memory.knowledge import derived_id
from memory.limits import IMPORT_LINE_BYTES_MAX
from memory.models import MemoryEntry, Mode, Scope
from memory.privacy.intake import Intake

_NEEDED = ("session_id", "role", "content", "timestamp")
_OURS = ("v", "id", "user_id", "session_id")


@dataclass(frozen=True, slots=True)
class Target:
    """Whose turns they are: of which organisation and agent, and of which user where a line names none."""

    org_id: str
    agent_id: str
    user_id: str | None
    mode: Mode


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file. ``end``: the offset of what follows it, in bytes. ``number`` from 1."""

    number: int
    end: int
    raw: bytes | None  # None: longer than IMPORT_LINE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Turn:
    scope: Scope
    entry: MemoryEntry


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int
    reason: str


def lines(file: BinaryIO, *, number: int = 0, offset: int = 0) -> Iterator[Line]:
    """The lines after ``offset``, the first of them numbered ``number`` + 1. Never holds more than one of them."""
    file.seek(offset)
    while raw := file.readline(IMPORT_LINE_BYTES_MAX + 1):
        number, size = number + 1, len(raw)
        whole: bytes | None = raw
        if size > IMPORT_LINE_BYTES_MAX and not raw.endswith(b"\n"):
            whole = None
            while rest := file.readline(IMPORT_LINE_BYTES_MAX):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
        offset += size
        yield Line(number, offset, whole)


def read(line: Line, target: Target, intake: Intake) -> Turn | BadLine | None:
    """What a line says, as it may be stored; ``None`` for a blank one."""
    if line.raw is None:
        return BadLine(line.number, f"is longer than {IMPORT_LINE_BYTES_MAX} bytes")
    if not line.raw.strip():
        return None
    try:
        return _turn(_object(line.raw), target, intake)
    except _Unusable as error:
        return BadLine(line.number, str(error))
    except (InvalidEntry, InvalidIdentity) as error:
        return BadLine(line.number, str(error).partition("can't be taken. ")[2] or str(error))


class _Unusable(Exception):
    pass


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _Unusable("is not UTF-8") from None
    except (ValueError, RecursionError):
        raise _Unusable("is not JSON") from None
    if not isinstance(value, dict):
        raise _Unusable("is not a JSON object")
    return value


def _turn(line: Mapping[str, Any], target: Target, intake: Intake) -> Turn:
    given = {name: value for name, value in line.items() if value is not None and name not in _OURS}
    for name in _NEEDED:
        if line.get(name) in (None, ""):
            raise _Unusable(f"{name}: is missing")
    session_id = _text(line, "session_id")
    scope = Scope(org_id=target.org_id, agent_id=target.agent_id, user_id=_user(line, target))
    given |= {"mode": given.get("mode", target.mode), "timestamp": _time(given["timestamp"])}
    said = MemoryEntry.from_dict({**given, "session_id": session_id, "user_id": scope.user_id})
    stored = intake.entry(said, scope, session_id)
    return Turn(scope, stored.with_(id=_id(line.get("id"), said.timestamp, stored)))


def _user(line: Mapping[str, Any], target: Target) -> str:
    if line.get("user_id") not in (None, ""):
        return _text(line, "user_id")
    if target.user_id is None:
        raise _Unusable("user_id: is missing; name the user of such lines with --user")
    return target.user_id


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _Unusable(f"{name}: must be text")
    return value


def _time(value: object) -> object:
    """Seconds since 1970 as a time; what is no number is the entry's to read."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC)
        except (ValueError, OverflowError, OSError):
            raise _Unusable("timestamp: is no number of seconds since 1970") from None
    return value


def _id(given: object, said_at: datetime, stored: MemoryEntry) -> str:
    if isinstance(given, str):
        try:
            return str(uuid.UUID(given))
        except ValueError:
            pass
    whose = ("import", stored.user_id, stored.session_id)
    if isinstance(given, str | int) and given != "":
        return derived_id(*whose, str(given))  # in its session: an export often counts anew in each
    # Of the redacted text: a digest of a card number could be guessed.
    return derived_id(*whose, said_at.isoformat(), stored.role, stored.content)
