"""What a recall host and its clients say to each other: frames of JSON, each with its length before it.

A frame is 4 bytes of length (big endian), then that many bytes of UTF-8 JSON: an object. Requests carry an ``id``;
a reply names the request it answers, so that one connection has several in flight and replies come in any order.

Above: host, client. Below: models, ports, limits. Imports nothing heavy: it is loaded in a call's job process.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from memory.errors import VoiceMemoryError
from memory.limits import HOST_MESSAGE_BYTES_MAX, RECALL_LIMIT, RECALL_QUERY_CHARS_MAX
from memory.models import Recall, Scope
from memory.ports import Selection

PREFIX_BYTES = 4
LIMIT_MAX = 1_000  # passages in one reply


class Malformed(ValueError):
    """What came is not this protocol: the connection is of no use any more. Never quotes what came."""


class Request(BaseModel):
    """One request. ``scope`` is there for all but ``ping`` and ``stats``; ``budget_ms`` is what the client has left.

    ``query`` of a ``profile`` is the user's name.
    """

    model_config = ConfigDict(frozen=True)

    id: int
    op: Literal["recall", "profile", "warm", "erase", "ping", "stats"]
    scope: Scope | None = None
    query: str = Field(default="", max_length=RECALL_QUERY_CHARS_MAX)
    limit: int = Field(default=RECALL_LIMIT, ge=1, le=LIMIT_MAX)
    budget_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    exclude_ids: frozenset[str] = frozenset()
    selection: Selection | None = None

    @classmethod
    def parse(cls, body: bytes) -> Request:
        """Raises Malformed."""
        request = _parsed(cls, body)
        if request.scope is None and request.op not in ("ping", "stats"):
            raise Malformed(f"{request.op} needs a scope")
        return request

    def frame(self) -> bytes:
        """Raises Malformed: it is larger than ``HOST_MESSAGE_BYTES_MAX``, or holds a lone surrogate."""
        return _framed(self)


class Reply(BaseModel):
    """What the host says to the request ``id``: what was asked for, or ``error``. ``erased``: turns.

    What a newer host tells besides is passed over, but for a fact's fields.
    """

    model_config = ConfigDict(frozen=True)

    id: int
    recall: Recall | None = None
    erased: int = 0
    stats: dict[str, Any] = {}
    error: str = ""

    @classmethod
    def parse(cls, body: bytes) -> Reply:
        """Raises Malformed."""
        return _parsed(cls, body)

    def frame(self) -> bytes:
        """Of passages and facts that would not fit into one message, the last are left out.

        Raises:
            Malformed: it is larger than ``HOST_MESSAGE_BYTES_MAX`` all the same, or holds a lone surrogate.
        """
        reply = self
        while True:
            try:
                return _framed(reply)
            except Malformed:
                if reply.recall is None or not (reply.recall.passages or reply.recall.facts):
                    raise
                reply = reply.model_copy(update={"recall": _halved(reply.recall)})


_Message = TypeVar("_Message", bound=BaseModel)


def _parsed(kind: type[_Message], body: bytes) -> _Message:
    try:
        return kind.model_validate_json(body)
    except (ValidationError, VoiceMemoryError, TypeError):
        raise Malformed(f"not a {kind.__name__.lower()} of this protocol") from None


def _framed(message: BaseModel) -> bytes:
    try:
        body = message.model_dump_json(exclude_defaults=True).encode()
    except PydanticSerializationError:  # which quotes it
        raise Malformed("a message with what no text holds") from None
    if len(body) > HOST_MESSAGE_BYTES_MAX:
        raise Malformed(f"a message of {len(body)} bytes, {HOST_MESSAGE_BYTES_MAX} at most")
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def _halved(recall: Recall) -> Recall:
    kept, facts = recall.passages[: len(recall.passages) // 2], recall.facts
    facts = facts if recall.passages else facts[: len(facts) // 2]
    return recall.model_copy(update={"passages": kept, "facts": facts, "degraded": (*recall.degraded, "size")})


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's JSON, or ``None`` where the other side has ended the connection.

    Raises:
        Malformed: too large, or cut off.
        OSError: the connection broke.
    """
    try:
        length = int.from_bytes(await reader.readexactly(PREFIX_BYTES), "big")
        if length > HOST_MESSAGE_BYTES_MAX:
            raise Malformed(f"a message of {length} bytes, {HOST_MESSAGE_BYTES_MAX} at most")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Malformed("the connection ended within a message") from None
        return None
