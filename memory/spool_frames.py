"""How a spool's file is written: frames, each on its own, so that whatever is damaged costs itself alone.

A frame: a mark, the payload's length, a checksum, the payload (JSON: whose it is, when it was put here, the record as
redacted; or, without a record, whom the file goes to). No payload can hold the mark. Pure. Above: spool. Below: models,
errors.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory.errors import SpoolUnusable, VoiceMemoryError
from memory.models import Record, Scope, record_from_dict

_FORMAT = 2
_FORMAT_OF_USERS = 1  # format 2 has files that go to another: version 1 would store them as nobody's, so it reads none
_MARK = b"\xffVM\x01"  # \xff is in no UTF-8 text
_HEAD = struct.Struct(">4sII")  # mark, bytes of the payload, CRC-32 of their count and of them


@dataclass(frozen=True, slots=True)
class Spooled:
    """A record, whose it is, and when it was put into the spool."""

    scope: Scope
    at: datetime
    record: Record

    def of(self, scope: Scope) -> Spooled:
        """The same as ``scope``'s."""
        if scope == self.scope:
            return self
        user_id = scope.user_id if scope.kind == "user" else ""
        return Spooled(scope, self.at, record_from_dict({**self.record.to_dict(), "user_id": user_id}))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a file, from ``begin`` to ``end``: a frame, or (``payload`` is ``None``) what is none."""

    begin: int
    end: int
    payload: bytes | None

    @property
    def erased(self) -> bool:
        return self.payload is not None and not self.payload.strip(b"\0")

    def blank(self) -> bytes:
        """What to write over it: as long, and holding nothing."""
        size = self.end - self.begin
        return bytes(size) if size < _HEAD.size else _frame(bytes(size - _HEAD.size))


def encode(item: Spooled) -> bytes:
    """The frame of one record."""
    version = _FORMAT if item.scope.kind == "session" else _FORMAT_OF_USERS
    return _encoded(item.scope, {"v": version, "at": item.at.isoformat(), "record": item.record.to_dict()})


def encode_owner(scope: Scope) -> bytes:
    """The frame that says to whom a file goes."""
    return _encoded(scope, {"v": _FORMAT})


def _encoded(scope: Scope, fields: Mapping[str, Any]) -> bytes:
    owner = [scope.org_id, scope.agent_id, scope.user_id, scope.kind]
    return _frame(json.dumps({**fields, "scope": owner}, ensure_ascii=False, separators=(",", ":")).encode())


def split(data: bytes) -> list[Stretch]:
    """``data`` as frames and what lies between them, without a gap."""
    found: list[Stretch] = []
    at = 0
    while at < len(data):
        end = _frame_end(data, at)
        if end is not None:
            found.append(Stretch(at, end, data[at + _HEAD.size : end]))
        else:
            end = _next_frame(data, at + 1)
            found.append(Stretch(at, end, None))
        at = end
    return found


def decode(payload: bytes) -> Spooled | Scope | None:
    """The record in a frame, or to whom the file goes; ``None`` where it is neither.

    Raises:
        SpoolUnusable: a newer version wrote it.
    """
    try:
        fields = json.loads(payload)
        if fields["v"] > _FORMAT:
            raise SpoolUnusable("The spool was written by a newer version; upgrade to have its turns stored.")
        org, agent, user, kind = fields["scope"]
        scope = Scope(org_id=org, agent_id=agent, user_id=user, kind=kind)
        if "record" not in fields:
            return scope
        return Spooled(scope, datetime.fromisoformat(fields["at"]), record_from_dict(fields["record"]))
    except SpoolUnusable:
        raise
    except (VoiceMemoryError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _frame(payload: bytes) -> bytes:
    return _HEAD.pack(_MARK, len(payload), _checksum(payload)) + payload


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "big")))


def _frame_end(data: bytes, at: int) -> int | None:
    begin = at + _HEAD.size
    if begin > len(data):
        return None
    mark, length, checksum = _HEAD.unpack_from(data, at)
    payload = data[begin : begin + length]
    if mark != _MARK or len(payload) < length or _checksum(payload) != checksum:
        return None
    return begin + int(length)


def _next_frame(data: bytes, at: int) -> int:
    while (at := data.find(_MARK, at)) >= 0:
        if _frame_end(data, at) is not None:
            return at
        at += 1
    return len(data)
