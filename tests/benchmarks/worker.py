"""``python -m tests.benchmarks.worker start``: the worker as it is, whose jobs tell what they do (``preload``)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PRELOADS = "BENCHMARK_PRELOADS"  # environment: more modules for the process that jobs are forked from

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

if __name__ == "__main__":
    if hasattr(libc := ctypes.CDLL(None), "prctl"):  # a benchmark that is killed takes it along
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    from agent import worker
    from agent.cli import main

    worker.PRELOADED += ["tests.benchmarks.preload", *os.environ.get(PRELOADS, "").split()]
    sys.exit(main())
