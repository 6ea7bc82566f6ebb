"""How work handed to another thread or process begins at once. Imports nothing of the package."""

from __future__ import annotations

import os


def hand_over() -> None:
    """Let run first whoever was just woken: call it after the write that wakes them.

    A kernel may put who is woken on the core of who wakes them, although another one is idle (so that a pair that takes
    turns shares its caches). Whoever wakes and works on for a millisecond would keep it waiting for that long. Where
    nobody waits for this core, it costs a microsecond.
    """
    if hasattr(os, "sched_yield"):
        os.sched_yield()
