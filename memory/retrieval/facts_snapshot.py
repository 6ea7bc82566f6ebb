"""A user's facts as one blob and back: their rows, then their index as ``snapshot`` keeps one. No IO.

Above: following. Below: facts, snapshot. Layout, little endian: magic, format, version of the user's knowledge, length
and CRC-32 of both; the rows, JSON, one a line; the index, with the key's digest.
"""

from __future__ import annotations

import struct
import zlib
from datetime import datetime

from memory.errors import SnapshotError
from memory.retrieval.facts import FactIndex
from memory.retrieval.snapshot import dump, load

_FORMAT = 1
_MAGIC = b"VMFX"
_PREFIX = struct.Struct("<4sIQQI")
_VERSION = struct.Struct("<Q")


def dump_facts(facts: FactIndex, key: bytes, *, epoch: int, model: str) -> bytes:
    """The facts as a blob. ``key``: the one their index was made with."""
    rows = "\n".join(facts.rows()).encode()
    prefix = _PREFIX.pack(_MAGIC, _FORMAT, facts.version, len(rows), _checksum(facts.version, rows))
    return prefix + rows + dump(facts.index, key, position="", epoch=epoch, model=model)


def _checksum(version: int, rows: bytes) -> int:
    return zlib.crc32(rows, zlib.crc32(_VERSION.pack(version)))


def load_facts(blob: bytes, key: bytes, *, epoch: int, model: str, now: datetime) -> FactIndex:
    """The facts back, as of that epoch and of that model's vectors.

    Raises:
        SnapshotError: damaged, cut short, of another version, epoch or model, or written under another key.
    """
    try:
        magic, form, version, length, checksum = _PREFIX.unpack_from(blob)
    except struct.error:
        raise SnapshotError("The snapshot's facts are cut short; they are read anew.") from None
    rows = blob[_PREFIX.size : _PREFIX.size + length]
    if (magic, form) != (_MAGIC, _FORMAT) or len(rows) != length or _checksum(version, rows) != checksum:
        raise SnapshotError("The snapshot's facts are damaged or of another version; they are read anew.")
    loaded = load(blob[_PREFIX.size + length :], key)
    if (loaded.epoch, loaded.model) != (epoch, model):
        raise SnapshotError("The snapshot's facts are of another time than its turns; they are read anew.")
    facts = FactIndex(key, None)
    try:
        facts.restore(loaded.index, version, rows.decode().splitlines(), now)
    except (ValueError, TypeError, KeyError, IndexError):
        raise SnapshotError("The snapshot's facts contradict themselves; they are read anew.") from None
    return facts
