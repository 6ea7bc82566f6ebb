"""What every benchmark shares: a figure with its goal, percentiles, and one JSON line each."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and what it must not pass. ``detail`` says how it was measured."""

    name: str
    value: float
    goal: float
    better: Literal["lower", "higher"] = "lower"
    unit: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal

    def line(self) -> str:
        sign = "<=" if self.better == "lower" else ">="
        shown = {
            "figure": self.name,
            "value": round(self.value, 3),
            "goal": f"{sign} {self.goal:g}",
            "ok": self.ok,
            "unit": self.unit,
            "detail": self.detail,
        }
        return json.dumps({key: value for key, value in shown.items() if value != ""})


Benchmark = Callable[[], Awaitable[list[Figure]]]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile (``share`` in 0..1) of ``values``."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def run(benchmarks: dict[str, Benchmark], names: Sequence[str]) -> int:
    """Run the named benchmarks (all if none), print a line a figure; 1 where a goal was missed, 2 for a wrong name."""
    unknown = [name for name in names if name not in benchmarks]
    if unknown:
        sys.stderr.write(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(benchmarks)}\n")
        return 2
    running = asyncio.current_task()
    assert running is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: what was started is ended
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    missed = False
    for name in names or list(benchmarks):
        for figure in await benchmarks[name]():
            sys.stdout.write(figure.line() + "\n")
            sys.stdout.flush()
            missed = missed or not figure.ok
    return int(missed)
