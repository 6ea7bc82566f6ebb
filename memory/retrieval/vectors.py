"""One user's vectors, int8, one a turn, compared in 8 bits as they are stored. Above: index. Below: columns."""

from __future__ import annotations

import math

import numpy as np
import simsimd
from numpy.typing import NDArray

from memory.retrieval.columns import Column

_SCALE = 127

Vector = NDArray[np.float32]


class VectorTable:
    """Rows of unit vectors as round(127 v): no measurable loss of recall at a quarter of the size.

    A turn may have no vector (yet): its row is zero and ``present`` is False.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows = Column(np.int8, (dimension,))
        self._present = Column(np.bool_)
        self.missing = 0  # rows without a vector

    def add(self) -> None:
        """A row without a vector."""
        self._rows.append(0)
        self._present.append(False)
        self.missing += 1

    def set(self, position: int, row: NDArray[np.int8]) -> None:
        """Give a turn its vector, as ``quantised`` makes it."""
        self._rows.values[position] = row
        self.missing -= not self._present.values[position]
        self._present.values[position] = True

    @property
    def present(self) -> NDArray[np.bool_]:
        return self._present.values

    @property
    def rows(self) -> NDArray[np.int8]:
        return self._rows.values

    def fill(self, rows: NDArray[np.int8], present: NDArray[np.bool_]) -> None:
        self._rows.fill(rows)
        self._present.fill(present)
        self._count()

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self._rows.keep(mask)
        self._present.keep(mask)
        self._count()

    def _count(self) -> None:
        self.missing = int(len(self.present) - self.present.sum())

    def cosines(self, query: Vector) -> Vector:
        """Cosine of ``query`` (of any length) with every row; 0 where there is no vector.

        The query is rounded to 8 bits of its greatest element, a sixth of what a row's rounding changes.

        Raises:
            ValueError: another shape than (dimension,), or not finite.
        """
        length = _length(query, self.dimension)
        step = max(float(query.max()), -float(query.min()), 1e-9) / _SCALE
        row = np.rint(query * np.float32(1 / step)).astype(np.int8)
        found: Vector = np.empty(len(self._rows), np.float32)
        if len(found):
            simsimd.cdist(row[np.newaxis], self._rows.values, "dot", out=found[np.newaxis])
        found *= np.float32(step / (_SCALE * length))
        return found


def _length(vector: Vector, dimension: int) -> float:
    if vector.shape != (dimension,):
        raise ValueError(f"a vector of shape {vector.shape}, where ({dimension},) was expected")
    length = math.sqrt(float(np.dot(vector, vector)))
    if not math.isfinite(length):
        raise ValueError("a vector that holds NaN or infinity")
    return max(length, 1e-9)


def unit(vector: Vector, dimension: int) -> Vector:
    """``vector`` at length 1.

    Raises:
        ValueError: another shape than (dimension,), or not finite.
    """
    return vector.astype(np.float32) / np.float32(_length(vector, dimension))


def quantised(vector: Vector, dimension: int) -> NDArray[np.int8]:
    """``vector`` as it is stored. Raises as ``unit`` does."""
    return np.round(unit(vector, dimension) * _SCALE).astype(np.int8)
