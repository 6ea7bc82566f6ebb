"""A user's index as one blob and back: versioned, checked, quick to load. No IO.

Above: the recall host and ingestion, which keep the blob. Below: index and its parts.

Holds the turns' texts, ids and names as said, the int8 vectors, and the keywords as keyed hashes. Whoever erases
removes the turns from the index and writes the blob anew: nothing removed is in it (no tombstones, no free space).

Layout, little endian: magic, version, header length, CRC-32 of all that follows, and a keyed digest of that and of the
header (another user's key does not open it); a JSON header with the arrays' names, types and shapes; the arrays, each
at a multiple of 64. The checksum is against accidents: whoever can write the file has the user's texts anyway.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.errors import SnapshotError
from memory.retrieval.bm25 import KeywordIndex
from memory.retrieval.index import UserIndex
from memory.retrieval.turns import COLUMNS, TurnTable

VERSION = 1
_MAGIC = b"VMSN"
_PREFIX = struct.Struct("<4sIII16s")
_ALIGNMENT = 64
_ANOTHER = "build it anew from the archive."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loaded index, the log position up to which it covers the user's log, the erasure epoch and the embedder's model
    it was made under. Whoever finds another epoch or model in force must not use it as it is."""

    index: UserIndex
    position: str
    epoch: int
    model: str


def dump(index: UserIndex, key: bytes, *, position: str, epoch: int, model: str = "") -> bytes:
    """The index as a blob. ``key``: the one the index was made with. The rest is kept as it is, for ``load``."""
    arrays = _turn_arrays(index.turns) | {f"kw_{name}": array for name, array in index.keywords.arrays().items()}
    if index.vectors is not None:
        arrays |= {"vectors": index.vectors.rows, "present": index.vectors.present}
    header = {
        "position": position,
        "epoch": epoch,
        "model": model,
        "dimension": None if index.vectors is None else index.vectors.dimension,
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
    }
    head = json.dumps(header).encode()
    parts = [head, _padding(_PREFIX.size + len(head))]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts += [data, _padding(len(data))]
    body = b"".join(parts)
    checksum = zlib.crc32(body)
    return _PREFIX.pack(_MAGIC, VERSION, len(head), checksum, _digest(key, head, checksum)) + body


def load(blob: bytes, key: bytes) -> Snapshot:
    """The index back. Nothing of ``blob`` is kept.

    Raises:
        SnapshotError: damaged, cut short, of another version, or written under another key.
    """
    header_length = _check(blob, key)
    try:
        header = json.loads(blob[_PREFIX.size : _PREFIX.size + header_length])
        arrays = _arrays(blob, header["arrays"], _PREFIX.size + header_length)
        index = UserIndex(key, header["dimension"])
        _fill(index, arrays)
        return Snapshot(index, str(header["position"]), int(header["epoch"]), str(header["model"]))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise SnapshotError(f"The index snapshot contradicts itself; {_ANOTHER}") from None


def _check(blob: bytes, key: bytes) -> int:
    if len(blob) < _PREFIX.size:
        raise SnapshotError(f"The index snapshot is cut short; {_ANOTHER}")
    magic, version, header_length, checksum, digest = _PREFIX.unpack_from(blob)
    if magic != _MAGIC:
        raise SnapshotError(f"This is no index snapshot; {_ANOTHER}")
    if version != VERSION:
        raise SnapshotError(f"The index snapshot has version {version}, this program reads {VERSION}; {_ANOTHER}")
    body = memoryview(blob)[_PREFIX.size :]
    if checksum != zlib.crc32(body):
        raise SnapshotError(f"The index snapshot is damaged; {_ANOTHER}")
    if digest != _digest(key, body[:header_length], checksum):
        raise SnapshotError(f"The index snapshot was written under another key; {_ANOTHER}")
    return int(header_length)


def _digest(key: bytes, head: bytes | memoryview, checksum: int) -> bytes:
    secret = hashlib.blake2b(key, digest_size=32, person=b"recall snapshot").digest()
    return hashlib.blake2b(checksum.to_bytes(4, "little") + bytes(head), digest_size=16, key=secret).digest()


def _padding(length: int) -> bytes:
    return b"\0" * (-length % _ALIGNMENT)


def _arrays(blob: bytes, described: list[list[Any]], start: int) -> dict[str, NDArray[Any]]:
    arrays = {}
    at = start + -start % _ALIGNMENT
    for name, dtype, shape in described:
        count = int(np.prod(shape, dtype=np.int64))
        # Copied, so that the blob, which also holds every text, need not stay in memory.
        arrays[name] = np.frombuffer(blob, np.dtype(dtype), count, at).reshape(shape).copy()
        at += arrays[name].nbytes + -arrays[name].nbytes % _ALIGNMENT
    return arrays


def _turn_arrays(turns: TurnTable) -> dict[str, NDArray[Any]]:
    strings = {
        "ids": _encoded(turns.ids),
        "texts": turns.texts(),
        "sessions": _encoded(turns.sessions.values),
        "labels": [json.dumps(label).encode() for label in turns.labels.values],
    }
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in strings.items():
        arrays[name] = np.frombuffer(b"".join(values), np.uint8)
        arrays[f"{name}_lengths"] = np.fromiter(map(len, values), np.uint32, len(values))
    return arrays | {name: getattr(turns, name).values for name in COLUMNS}


def _encoded(values: list[str]) -> list[bytes]:
    return [value.encode(errors="surrogatepass") for value in values]


def _cut(arrays: dict[str, NDArray[Any]], name: str) -> list[bytes]:
    joined = arrays[name].tobytes()
    ends = [0, *np.cumsum(arrays[f"{name}_lengths"], dtype=np.int64).tolist()]
    if ends[-1] != len(joined):
        raise ValueError("strings of another length")
    return [joined[start:end] for start, end in pairwise(ends)]


def _strings(arrays: dict[str, NDArray[Any]], name: str) -> list[str]:
    return [value.decode(errors="surrogatepass") for value in _cut(arrays, name)]


def _fill(index: UserIndex, arrays: dict[str, NDArray[Any]]) -> None:
    labels = [_label(value) for value in _cut(arrays, "labels")]
    index.turns.fill(_strings(arrays, "ids"), _cut(arrays, "texts"), _strings(arrays, "sessions"), labels, arrays)
    index.keywords = KeywordIndex.from_arrays(
        **{name: arrays[f"kw_{name}"] for name in ("terms", "sizes", "turns", "tf", "lengths")}
    )
    counts = {len(index.turns), len(index.keywords)}
    if index.vectors is not None:
        index.vectors.fill(arrays["vectors"], arrays["present"])
        counts |= {len(arrays["vectors"]), len(arrays["present"])}
    if len(counts) != 1:
        raise ValueError("parts of unequal length")


def _label(text: bytes) -> tuple[str, str | None, str, str]:
    role, name, mode, language = json.loads(text)
    return role, name, mode, language
