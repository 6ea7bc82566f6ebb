"""``python -m tests.benchmarks [NAME…]``: the figures the README gives, a JSON line each; 1 when a goal is missed."""

from __future__ import annotations

import asyncio
import sys

from tests.benchmarks import facts, imports, stores, torture, turns
from tests.benchmarks.harness import Benchmark, run

BENCHMARKS: dict[str, Benchmark] = {
    "recording": stores.recording,
    "freshness": stores.freshness,
    "facts": facts.facts,
    "turns": turns.turns,
    "imports": imports.imports,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["torture"]:
        sys.exit(torture.main(sys.argv[2:]))
    sys.exit(asyncio.run(run(BENCHMARKS, sys.argv[1:])))
