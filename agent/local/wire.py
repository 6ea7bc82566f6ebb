"""Messages between the speech host and its clients: two lengths, a JSON header, a binary body.

One request is answered by one message, or by several of which only the last lacks ``more``. Times are relative
(``timeout_s``), as the two processes share no clock they would have to trust. Above: speech_host, client.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field
from typing import Any

HEADER_BYTES_MAX = 2_097_152  # a turn of 1 MiB of text, escaped
BODY_BYTES_MAX = 16_777_216  # eight minutes of speech

_LENGTHS = struct.Struct(">II")


class BadMessage(ConnectionError):
    """The other side does not speak this protocol, or the message is too large; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Message:
    """``header`` holds JSON types; ``body`` is 16-bit mono PCM or empty."""

    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message.

    Raises:
        asyncio.IncompleteReadError: the other side closed the connection.
        BadMessage: it is not one of ours.
    """
    header_bytes, body_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if header_bytes > HEADER_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
        raise BadMessage("A message larger than this protocol allows.")
    try:
        header = json.loads(await reader.readexactly(header_bytes))
    except ValueError:
        raise BadMessage("A header that is not JSON.") from None
    if not isinstance(header, dict):
        raise BadMessage("A header that is not an object.")
    return Message(header, await reader.readexactly(body_bytes))


async def write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send ``message``; returns when the transport has room again.

    Raises:
        BadMessage: it is too large.
    """
    header = json.dumps(message.header).encode()
    if len(header) > HEADER_BYTES_MAX or len(message.body) > BODY_BYTES_MAX:
        raise BadMessage("A message larger than this protocol allows.")
    writer.write(_LENGTHS.pack(len(header), len(message.body)) + header)
    writer.write(message.body)
    await writer.drain()
