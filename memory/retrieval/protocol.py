"""What a recall host and its clients say to each other: frames of JSON, each with its length before it.

A frame is 4 bytes of length (big endian), then that many bytes of UTF-8 JSON: an object. Requests carry an ``id``;
a reply names the request it answers, so that one connection has several in flight and replies come in any order.

Above: host, client. Below: models, ports, limits. Imports nothing heavy: it is loaded in a call's job process.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memory.limits import HOST_MESSAGE_BYTES_MAX, RECALL_LIMIT, RECALL_QUERY_CHARS_MAX
from memory.models import Recall, Scope
from memory.ports import Selection

PREFIX_BYTES = 4
LIMIT_MAX = 1_000  # passages in one reply

Message = dict[str, Any]


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
    def parse(cls, message: Message) -> Request:
        """Raises Malformed."""
        try:
            request = cls.model_validate(message)
        except ValidationError:
            raise Malformed("not a request of this protocol") from None
        if request.scope is None and request.op not in ("ping", "stats"):
            raise Malformed(f"{request.op} needs a scope")
        return request

    def frame(self) -> bytes:
        return encode(self.model_dump(mode="json", exclude_defaults=True))


def encode(message: Message) -> bytes:
    """A message as a frame.

    Raises:
        Malformed: it is larger than ``HOST_MESSAGE_BYTES_MAX``.
    """
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if len(body) > HOST_MESSAGE_BYTES_MAX:
        raise Malformed(f"a message of {len(body)} bytes, {HOST_MESSAGE_BYTES_MAX} at most")
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or ``None`` where the other side has ended the connection.

    Raises:
        Malformed: too large, cut off, or no JSON object.
        OSError: the connection broke.
    """
    try:
        length = int.from_bytes(await reader.readexactly(PREFIX_BYTES), "big")
        if length > HOST_MESSAGE_BYTES_MAX:
            raise Malformed(f"a message of {length} bytes, {HOST_MESSAGE_BYTES_MAX} at most")
        return _object(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Malformed("the connection ended within a message") from None
        return None


def _object(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if not isinstance(message, dict):
        raise Malformed("not a JSON object")
    return message


def recall_reply(request_id: int, recall: Recall) -> bytes:
    """A recall as a reply; of passages and facts that would not fit into one message, the last are left out."""
    while True:
        try:
            return encode({"id": request_id, "recall": recall.to_dict()})
        except Malformed:
            if not recall.passages and not recall.facts:
                raise
            degraded = (*recall.degraded, "size")
            kept, facts = recall.passages[: len(recall.passages) // 2], recall.facts
            facts = facts if recall.passages else facts[: len(facts) // 2]
            recall = recall.model_copy(update={"passages": kept, "facts": facts, "degraded": degraded})


def recall_of(message: Message) -> Recall:
    """The recall in a reply. Raises Malformed."""
    try:
        return Recall.from_dict(message["recall"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Malformed("not a recall") from None
