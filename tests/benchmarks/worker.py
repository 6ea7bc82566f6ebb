"""``python -m tests.benchmarks.worker start``: the worker as it is, whose jobs tell what they do (``preload``)."""

from __future__ import annotations

import os
import sys

PRELOADS = "BENCHMARK_PRELOADS"  # environment: more modules for the process that jobs are forked from

if __name__ == "__main__":
    from agent import worker
    from agent.cli import main

    worker.PRELOADED += ["tests.benchmarks.preload", *os.environ.get(PRELOADS, "").split()]
    sys.exit(main())
