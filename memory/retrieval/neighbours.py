"""Which turn comes before and after which in its session, however sessions interleave. Above: index. Below: columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.retrieval.columns import Column

NONE = -1  # as an index it reads the last element: arrays read through links carry one spare element at their end


@dataclass(frozen=True, slots=True)
class Links:
    """For each turn the positions one and two before and after it in its session; ``NONE`` where there is none."""

    before: NDArray[np.int32]
    after: NDArray[np.int32]
    before2: NDArray[np.int32]
    after2: NDArray[np.int32]


class Neighbours:
    """Sessions as linked lists, ordered by timestamp; turns of one instant by their arrival."""

    def __init__(self) -> None:
        self._before, self._after = Column(np.int32), Column(np.int32)
        self._before2, self._after2 = Column(np.int32), Column(np.int32)
        self._last: dict[int, int] = {}

    def add(self, session: int, times: NDArray[np.float64]) -> None:
        """Link the next turn into ``session``; ``times`` are those of all turns, the new one's last."""
        position = len(self._before)
        before, after = self._last.get(session, NONE), NONE
        while before != NONE and times[before] > times[position]:
            before, after = int(self._before.values[before]), before
        for column in (self._before, self._after, self._before2, self._after2):
            column.append(NONE)
        if after == NONE:
            self._last[session] = position
        self._join(before, position)
        self._join(position, after)

    def rebuild(self, sessions: NDArray[np.int32], times: NDArray[np.float64]) -> None:
        """Link all turns anew."""
        order = np.lexsort((times, sessions))  # stable: arrival decides between equal times
        links = np.full((4, len(order)), NONE, np.int32)
        for steps, before, after in ((1, *links[:2]), (2, *links[2:])):
            first, second = order[:-steps], order[steps:]
            joined = sessions[first] == sessions[second]
            before[second[joined]], after[first[joined]] = first[joined], second[joined]
        for column, values in zip((self._before, self._after, self._before2, self._after2), links, strict=True):
            column.fill(values)
        ends = np.flatnonzero(links[1] == NONE)
        self._last = dict(zip(sessions[ends].tolist(), ends.tolist(), strict=True))

    def links(self) -> Links:
        """The links of all turns, until the next change."""
        return Links(self._before.values, self._after.values, self._before2.values, self._after2.values)

    def _join(self, first: int, second: int) -> None:
        """Have ``second`` follow ``first``, either of which may be ``NONE``, and know those two away of each other."""
        one, two = self._before.values, self._after.values
        earlier = int(one[first]) if first != NONE else NONE
        later = int(two[second]) if second != NONE else NONE
        if first != NONE:
            two[first], self._after2.values[first] = second, later
        if second != NONE:
            one[second], self._before2.values[second] = first, earlier
        if earlier != NONE:
            self._after2.values[earlier] = second
        if later != NONE:
            self._before2.values[later] = first
