"""The nouns of the memory: Scope, MemoryEntry, MemoryEvent, Fact, Passage, ConversationContext, MemorySettings.

Everything is immutable and validated when made. ``to_dict``/``from_dict`` are the one serialised form; it carries
a version, and older versions load. What recall finds (``Passage``, ``Recall``) is never stored, and has no such form.
Above: ports, service, stores. Below: errors, limits.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from memory.errors import EntryTooLarge, InvalidEntry, InvalidIdentity, VoiceMemoryError
from memory.limits import (
    DISPLAY_NAME_CHARS_MAX,
    ENTRY_CONTENT_BYTES_MAX,
    ENTRY_RETRIEVED_BYTES_MAX,
    EVENT_DATA_BYTES_MAX,
    ID_CHARS_MAX,
    JSON_DEPTH_MAX,
    LANGUAGE_CHARS_MAX,
)

FORMAT_VERSION = 1

Role = Literal["user", "assistant", "system"]
Mode = Literal["voice", "text"]

# C0 and C1 controls but tab, newline, carriage return: no speech or keyboard makes them, terminals and logs obey them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """``text`` without control characters; a lone surrogate, which no UTF-8 can hold, becomes U+FFFD."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _CONTROLS.sub("", text))


def new_id(timestamp_ms: int | None = None) -> str:
    """A UUIDv7 (RFC 9562, 5.7): milliseconds, then fractions of one, then random bits.

    Of two ids made in one process, at least half a microsecond apart, the later sorts after the earlier.
    """
    milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
    fraction = rest_ns * 4_096 // 1_000_000
    if timestamp_ms is not None:
        milliseconds, fraction = timestamp_ms, int.from_bytes(os.urandom(2)) & 0xFFF
    random = int.from_bytes(os.urandom(8)) & (1 << 62) - 1
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | fraction << 64 | 0x2 << 62 | random
    return str(uuid.UUID(int=value))


def _aware(value: object) -> object:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            # The seeds' samples use utcnow(): a naive time is taken as UTC.
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            "must be a time in ISO 8601, such as 2026-11-28T10:00:00+00:00, in the years 1 to 9999"
        ) from None
    return value


def _cleaned(value: object) -> object:
    return clean_text(value) if isinstance(value, str) else value


def _plain_id(value: object) -> object:
    # Cleaning an id could make two ids meet, so an unclean one is refused.
    if isinstance(value, str) and (clean_text(value) != value or any(c in value for c in "\t\n\r")):
        raise ValueError("holds control characters or lone surrogates; ids must be plain text")
    return value


def _display_name(value: object) -> object:
    return clean_text(value)[:DISPLAY_NAME_CHARS_MAX] if isinstance(value, str) else value


def json_value(value: Any, depth: int = JSON_DEPTH_MAX) -> Any:
    """``value`` as JSON holds it, as a copy: cleaned texts, lists for other sequences, ISO 8601 for times, ``None`` for
    what is no number.

    Raises:
        ValueError: it is nested deeper than ``JSON_DEPTH_MAX``, or holds what JSON has no form for.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str(value))
    if isinstance(value, int):
        if abs(value) >= 1 << 127:
            raise ValueError("holds a number of more than 128 bits; store it as text")
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, date | uuid.UUID | PurePath):
        return value.isoformat() if isinstance(value, date) else str(value)
    return _json_container(value, depth)


def _json_container(value: Any, depth: int) -> Any:
    if depth <= 0:
        raise ValueError(f"is nested deeper than {JSON_DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return {clean_text(str(key)): json_value(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item, depth - 1) for item in value]
    raise ValueError(f"holds a {type(value).__name__}, which JSON has no form for; convert it first")


def _json_size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


Timestamp = Annotated[datetime, BeforeValidator(_aware)]
Identifier = Annotated[str, BeforeValidator(_plain_id), Field(max_length=ID_CHARS_MAX)]
Language = Annotated[str, BeforeValidator(_cleaned), Field(max_length=LANGUAGE_CHARS_MAX)]
Label = Annotated[str, BeforeValidator(_cleaned), Field(max_length=ID_CHARS_MAX)]
Text = Annotated[str, BeforeValidator(_cleaned)]
Name = Annotated[str, BeforeValidator(_display_name)]
Json = Annotated[dict[str, Any], BeforeValidator(json_value)]

_T = TypeVar("_T", bound="_Model")


def _explain(error: ValidationError, noun: str, kind: type[VoiceMemoryError]) -> VoiceMemoryError:
    # Pydantic's own message quotes the input, which is user content: only field and reason are taken over.
    faults = error.errors(include_input=False, include_url=False)
    text = "; ".join(f"{f['loc'][0] if f['loc'] else noun}: {_reason(f)}" for f in faults)
    too_large = any("split it" in str(f["msg"]) for f in faults)
    return (EntryTooLarge if too_large else kind)(f"This {noun} can't be taken. {text}")


def _reason(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "literal_error":
        return f"must be {fault['ctx']['expected']}"
    return str(fault["msg"]).removeprefix("Value error, ")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    refusal: ClassVar[type[VoiceMemoryError]] = InvalidEntry

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _explain(error, type(self).__name__, self.refusal) from None

    def to_dict(self) -> dict[str, Any]:
        """The serialised form: JSON types only, with its version under ``v``."""
        return {"v": FORMAT_VERSION, **self.model_dump(mode="json")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Load ``to_dict``'s form, of this version or an older one; unknown fields of a newer one are dropped.

        Raises:
            InvalidEntry: a required field is missing or wrong.
        """
        if not isinstance(data, Mapping):
            raise cls.refusal(f"This {cls.__name__} can't be taken. It is a {type(data).__name__}, not a mapping.")
        return cls(**{key: value for key, value in data.items() if key in cls.model_fields})


class _Found(BaseModel):
    """What recall makes of records, which were cleaned when they came: a dozen a turn, on the turn's way, so that it is
    left to pydantic's own, which runs no Python. Its ValidationError quotes nothing."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)


class Scope(_Model):
    """Whose memory it is. ``kind='session'``: nobody is known, and the memory ends with that session.

    Two scopes share memory exactly when all four fields are equal. A wrong one raises InvalidIdentity.
    """

    refusal: ClassVar[type[VoiceMemoryError]] = InvalidIdentity

    org_id: Identifier = Field(min_length=1)
    agent_id: Identifier = Field(min_length=1)
    user_id: Identifier = Field(min_length=1)
    kind: Literal["user", "session"] = "user"


class MemoryEntry(_Model):
    """One turn: what one speaker said or typed, as it was said.

    ``role``, ``content``, ``mode`` and ``language`` are enough to make one. ``content`` of an assistant's
    interrupted reply is the part the caller heard. ``latency_ms``: end of the user's speech to first audio.
    ``sources`` hold JSON values; ``name`` is cut to ``DISPLAY_NAME_CHARS_MAX``.
    """

    id: Identifier = Field(default_factory=new_id, min_length=1)
    session_id: Identifier = ""
    user_id: Identifier = ""
    timestamp: Timestamp = Field(default_factory=lambda: datetime.now(UTC))

    role: Role
    content: Text
    mode: Mode
    name: Name | None = None

    language: Language = ""
    detected_language: Language = ""
    language_switched: bool = False

    retrieved_passages: tuple[Text, ...] = ()
    sources: tuple[Json, ...] = ()

    latency_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    interrupted: bool = False
    transcript_confidence: float | None = Field(default=None, ge=0, le=1)
    degradations: tuple[Label, ...] = ()
    redactions: int = Field(default=0, ge=0)
    phi_detected: bool = False

    @field_validator("content")
    @classmethod
    def _speakable(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is blank; a turn without words is not stored")
        size = len(value.encode())
        if size > ENTRY_CONTENT_BYTES_MAX:
            raise ValueError(f"has {size} bytes, {ENTRY_CONTENT_BYTES_MAX} at most; split it into several turns")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        size = sum(len(text.encode()) for text in self.retrieved_passages) + sum(map(_json_size, self.sources))
        if size > ENTRY_RETRIEVED_BYTES_MAX:
            raise ValueError(
                f"retrieved_passages and sources have {size} bytes, {ENTRY_RETRIEVED_BYTES_MAX} at most; store fewer"
            )
        return self

    def with_(self, **changes: Any) -> Self:
        """A copy with ``changes``, validated."""
        return type(self)(**{**self._fields(), **changes})

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}


class MemoryEvent(_Model):
    """Something that happened in a session, such as ``mode_switch`` or ``language_switch``.

    ``event["from_language"]`` reads ``data``, as the format's users are used to.
    """

    id: Identifier = Field(default_factory=new_id, min_length=1)
    session_id: Identifier = ""
    user_id: Identifier = ""
    timestamp: Timestamp = Field(default_factory=lambda: datetime.now(UTC))
    event_type: Label = Field(min_length=1)
    data: Json = Field(default_factory=dict)

    @field_validator("data")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        size = _json_size(value)
        if size > EVENT_DATA_BYTES_MAX:
            raise ValueError(f"has {size} bytes, {EVENT_DATA_BYTES_MAX} at most")
        return value

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.data.get(key, default)


Record = MemoryEntry | MemoryEvent


def record_from_dict(data: Mapping[str, Any]) -> Record:
    """Load an entry or an event, whichever ``data`` is.

    Raises:
        InvalidEntry: it is neither.
    """
    if not isinstance(data, Mapping):
        raise InvalidEntry(f"This record can't be taken. It is a {type(data).__name__}, not a mapping.")
    return MemoryEvent.from_dict(data) if "event_type" in data else MemoryEntry.from_dict(data)


class Source(_Model):
    """Where a fact comes from: a session, its turns, and when they were said."""

    session_id: Identifier
    turns: tuple[Identifier, ...] = ()
    said_at: Timestamp


class Fact(_Model):
    """A statement about the user, with its validity in time and its sources, first said first."""

    id: Identifier = Field(default_factory=new_id)
    text: Text = Field(min_length=1)
    category: Label = ""
    valid_at: Timestamp | None = None
    invalid_at: Timestamp | None = None
    sources: tuple[Source, ...] = ()


class Passage(_Found):
    """A remembered turn that bears on a query, best first in a list of them. ``changed``: something that it says has
    ended since.

    Raises pydantic's ValidationError where a field is wrong.
    """

    id: str
    session_id: str
    timestamp: AwareDatetime
    role: Role
    text: str
    mode: Mode = "voice"
    language: str = ""
    name: str | None = None
    score: float = 0.0
    changed: bool = False


class Recall(_Found):
    """What came back for one query. ``degraded`` names what was missing, such as ``vectors`` or ``host``.

    ``state`` is of the user's memory when it was made: with another one, something was erased or a fact has changed.
    It begins with the log's ``epoch`` and a slash. Raises as ``Passage``.
    """

    passages: tuple[Passage, ...] = ()
    facts: tuple[Fact, ...] = ()
    degraded: tuple[str, ...] = ()
    elapsed_ms: float = 0.0
    state: str = ""

    @property
    def epoch(self) -> int | None:
        """How often something of the user's had been erased when it was made; ``None`` where it isn't known."""
        erasures = self.state.partition("/")[0]
        return int(erasures) if erasures.isdecimal() else None


class ConversationContext(_Model):
    """What a session looks like to the next LLM call: messages oldest first, newest last."""

    session_id: Identifier
    messages: tuple[MemoryEntry, ...] = ()
    language: Language = ""
    language_events: tuple[MemoryEvent, ...] = ()
    mode: Mode | None = None
    retrieved_passages: tuple[Text, ...] = ()
    sources: tuple[Json, ...] = ()


class MemorySettings(_Model):
    """A user's own choices about memory and privacy. ``retention_days`` -1: kept until deleted."""

    enabled: bool = True
    retention_days: int = Field(default=30, ge=-1)
    cross_session: bool = True
    save_voice_transcripts: bool = True
    save_rag_context: bool = True
    anonymize_phi: bool = True


def in_order(records: Iterable[_T]) -> list[_T]:
    """``records`` by when they were said; equal times keep their order."""
    return sorted(records, key=lambda record: getattr(record, "timestamp"))  # noqa: B009 - not on every model
