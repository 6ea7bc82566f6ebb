"""As much of ONNX's file format (protobuf) as the embedder needs to read a model and to write another: no IO.

Above: minilm. The ``onnx`` package would do it too, at 100 MB and with a protobuf of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_DTYPES: Mapping[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_IR_VERSION, _OPSET = 10, 17
CONTRIB = "com.microsoft"  # the domain of onnxruntime's own operators
FLOAT, INT32, INT64 = 1, 6, 7  # element types


class NotReadable(ValueError):
    """The bytes are no ONNX model, or one that holds more than is read here."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its kind, and the names of what it takes and makes."""

    kind: str
    takes: tuple[str, ...]
    makes: tuple[str, ...]


# -- reading


def read(data: bytes) -> tuple[list[Node], dict[str, Array]]:
    """A model's nodes, in order, and its constants, as views of ``data``.

    Raises:
        NotReadable
    """
    try:
        graph = next(value for number, value in _fields(memoryview(data)) if number == 7)
        parts = list(_fields(graph))
        nodes = [_node(value) for number, value in parts if number == 1]
        return nodes, dict(_tensor(value) for number, value in parts if number == 5)
    except (IndexError, KeyError, StopIteration, TypeError, ValueError, struct.error):
        raise NotReadable("no ONNX model, or one of a kind that isn't known here") from None


def _node(data: memoryview) -> Node:
    kind, takes, makes = "", [], []
    for number, value in _fields(data):
        if number == 1:
            takes.append(_text(value))
        elif number == 2:
            makes.append(_text(value))
        elif number == 4:
            kind = _text(value)
    return Node(kind, tuple(takes), tuple(makes))


def _tensor(data: memoryview) -> tuple[str, Array]:
    name, kind, raw = "", 0, memoryview(b"")
    shape: list[int] = []
    for number, value in _fields(data):
        if number == 1:
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == 2:
            kind = value
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = value
    return name, np.frombuffer(raw, _DTYPES[kind]).reshape(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and values: an int, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        if at + size > len(data):
            raise IndexError
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _packed(data: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _text(data: memoryview) -> str:
    return bytes(data).decode()


# -- writing


@dataclass(slots=True)
class ModelWriter:
    """A model in the making. Names are the caller's, and must be unique."""

    _nodes: list[bytes] = field(default_factory=list)
    _tensors: list[bytes] = field(default_factory=list)

    def constant(self, name: str, value: Array) -> str:
        """Add a constant; returns its name."""
        dimensions = b"".join(_int(1, size) for size in value.shape)
        body = dimensions + _int(2, _NUMBERS[value.dtype]) + _str(8, name) + _bytes(9, value.tobytes())
        self._tensors.append(_bytes(5, body))
        return name

    def node(self, kind: str, takes: Sequence[str], makes: str, **attributes: int | float) -> str:
        """Add an operation of ONNX with one output; "" stands for an input that is left out. Returns the output."""
        return self._add("", kind, takes, (makes,), attributes)

    def contrib(self, kind: str, takes: Sequence[str], makes: str, **attributes: int | float) -> str:
        """The same for an operation of onnxruntime's own."""
        return self._add(CONTRIB, kind, takes, (makes,), attributes)

    def split(self, takes: Sequence[str], makes: Sequence[str], *, axis: int) -> None:
        """Add a Split."""
        self._add("", "Split", takes, makes, {"axis": axis})

    def model(
        self, inputs: Mapping[str, tuple[int, Sequence[str | int]]], output: tuple[str, int, Sequence[str | int]]
    ) -> bytes:
        """The file. Inputs by name and the one output have an element type and a shape; a name in it is any size."""
        values = [_bytes(11, _value(name, kind, shape)) for name, (kind, shape) in inputs.items()]
        values.append(_bytes(12, _value(*output)))
        graph = b"".join((*self._nodes, _str(2, "graph"), *self._tensors, *values))
        opsets = _bytes(8, _int(2, _OPSET)) + _bytes(8, _str(1, CONTRIB) + _int(2, 1))
        return _int(1, _IR_VERSION) + _bytes(7, graph) + opsets

    def _add(
        self,
        domain: str,
        kind: str,
        takes: Sequence[str],
        makes: Sequence[str],
        attributes: Mapping[str, int | float],
    ) -> str:
        parts = [_str(1, name) for name in takes] + [_str(2, name) for name in makes]
        parts += [_str(3, f"{kind}_{len(self._nodes)}"), _str(4, kind), _str(7, domain)]
        parts += [_bytes(5, _attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(_bytes(1, b"".join(parts)))
        return makes[0]


def _attribute(name: str, value: float) -> bytes:
    if isinstance(value, int):
        return _str(1, name) + _int(3, value) + _int(20, 2)
    return _str(1, name) + _number(2 << 3 | _FIXED32) + struct.pack("<f", value) + _int(20, 1)


def _value(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    sizes = [_bytes(1, _int(1, size) if isinstance(size, int) else _str(2, size)) for size in shape]
    return _str(1, name) + _bytes(2, _bytes(1, _int(1, kind) + _bytes(2, b"".join(sizes))))


def _number(value: int) -> bytes:
    out = bytearray()
    value &= 0xFFFF_FFFF_FFFF_FFFF  # negative ones are written as 64 bits
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(number: int, value: int) -> bytes:
    return _number(number << 3 | _VARINT) + _number(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(value)) + value


def _str(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())
