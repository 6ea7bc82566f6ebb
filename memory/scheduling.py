"""How work handed to another thread or process begins at once. Imports nothing of the package."""

from __future__ import annotations

import contextlib
import os

_AUTOGROUP = "/proc/self/autogroup"


def hand_over() -> None:
    """Let run first whoever was just woken: call it after the write that wakes them.

    A kernel may put who is woken on the core of who wakes them, although another one is idle (so that a pair that takes
    turns shares its caches). Whoever wakes and works on for a millisecond would keep it waiting for that long. Where
    nobody waits for this core, it costs a microsecond.
    """
    if hasattr(os, "sched_yield"):
        os.sched_yield()


class Precedence:
    """This process before others while something waits for it, where the system allows that: by RLIMIT_NICE, or by
    CAP_SYS_NICE. For one that leads its own session, as whoever else is in that would be raised, too.

    ``nice``: how far, from -20 to 0. What a process that needs five milliseconds gets on a machine whose cores are all
    taken is up to its share: as one of twenty it would wait for tens.
    """

    def __init__(self, nice: int) -> None:
        self._nice, self._usual, self._taken = nice, 0, False
        leads = hasattr(os, "getsid") and os.getsid(0) == os.getpid()
        self.allowed = leads and self._may()

    def take(self) -> None:
        """From now on, all threads of the process."""
        if self.allowed and not self._taken:
            self._taken = self._set(self._nice)

    def give(self) -> None:
        """As all others again."""
        if self._taken:
            self._taken = not self._set(self._usual)

    def _may(self) -> bool:
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
        return self._nice < self._usual and self._set(self._nice) and self._set(self._usual)

    def _set(self, nice: int) -> bool:
        try:
            os.setpriority(os.PRIO_PGRP, 0, nice)
        except OSError:
            return False
        # Where Linux groups processes by session (sched_autogroup), the group has a share of its own.
        with contextlib.suppress(OSError), open(_AUTOGROUP, "w") as group:
            group.write(str(nice))
        return True
