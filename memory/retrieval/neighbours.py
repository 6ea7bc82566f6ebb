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

    before: NDArray[np.intp]
    after: NDArray[np.intp]
    before2: NDArray[np.intp]
    after2: NDArray[np.intp]


class Neighbours:
    """Sessions as linked lists, ordered by timestamp; turns of one instant by their arrival."""

    def __init__(self) -> None:
        self._before = Column(np.int32)
        self._after = Column(np.int32)
        self._last: dict[int, int] = {}
        self._links: Links | None = None

    def add(self, session: int, times: NDArray[np.float64]) -> None:
        """Link the next turn into ``session``; ``times`` are those of all turns, the new one's last."""
        position = len(self._before)
        before, after = self._last.get(session, NONE), NONE
        while before != NONE and times[before] > times[position]:
            before, after = int(self._before.values[before]), before
        self._before.append(before)
        self._after.append(after)
        if before != NONE:
            self._after.values[before] = position
        if after != NONE:
            self._before.values[after] = position
        else:
            self._last[session] = position
        self._links = None

    def rebuild(self, sessions: NDArray[np.int32], times: NDArray[np.float64]) -> None:
        """Link all turns anew."""
        order = np.lexsort((times, sessions))  # stable: arrival decides between equal times
        joined = sessions[order[1:]] == sessions[order[:-1]]
        before, after = np.full(len(order), NONE, np.int32), np.full(len(order), NONE, np.int32)
        before[order[1:][joined]] = order[:-1][joined]
        after[order[:-1][joined]] = order[1:][joined]
        self._before.fill(before)
        self._after.fill(after)
        ends = np.flatnonzero(after == NONE)
        self._last = dict(zip(sessions[ends].tolist(), ends.tolist(), strict=True))
        self._links = None

    def links(self) -> Links:
        """The links of all turns, cached until the next change."""
        if self._links is None:
            before, after = self._before.values.astype(np.intp), self._after.values.astype(np.intp)
            spare = np.array([NONE], np.intp)
            before2, after2 = np.append(before, spare)[before], np.append(after, spare)[after]
            self._links = Links(before, after, before2, after2)
        return self._links
