"""Growing arrays: one value, or one row, a turn. Appending is O(1) on average; removal keeps the order.

Above: bm25, index. Below: numpy.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)
_ROWS_MIN = 64


class Column(Generic[_Scalar]):
    """A growing array of shape (len, *row). ``values`` is a view: it is stale after the next append or removal."""

    def __init__(self, dtype: type[_Scalar], row: tuple[int, ...] = ()) -> None:
        self._room: NDArray[_Scalar] = np.zeros((0, *row), dtype)
        self._len = 0

    def __len__(self) -> int:
        return self._len

    @property
    def values(self) -> NDArray[_Scalar]:
        return self._room[: self._len]

    def append(self, value: Any) -> None:
        if self._len == len(self._room):
            self._grow(self._len + max(_ROWS_MIN, self._len // 8))
        self._room[self._len] = value
        self._len += 1

    def fill(self, values: NDArray[_Scalar]) -> None:
        """Take over ``values``, which must be writable; nobody else may write to them from now on."""
        self._room, self._len = values, len(values)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the rows whose ``mask`` is False. Their bytes are gone from memory, too."""
        self.fill(self.values[mask])

    def _grow(self, rows: int) -> None:
        room = np.zeros((rows, *self._room.shape[1:]), self._room.dtype)
        room[: self._len] = self._room[: self._len]
        self._room = room
