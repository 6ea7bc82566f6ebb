"""What the memory did, counted: names are fixed, values are numbers, and nothing of a user is ever in them.

Above: everything that can fail without anybody hearing it. Below: nothing.
"""

from __future__ import annotations

from collections import Counter


class Counters:
    """Named counts of one process. Names are dotted, such as ``recall.late``; unknown ones count from 0."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self._counts[name] += amount

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))
