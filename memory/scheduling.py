"""How work handed to another thread or process begins at once. Imports nothing of the package."""

from __future__ import annotations

import contextlib
import os

_AUTOGROUP = "/proc/self/autogroup"
_USUAL = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


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
        self._usual, self._first = (_USUAL, _group_nice()), (nice, nice)
        self._has: tuple[int, int] | None = self._usual  # what is set as a whole; ``None``: a part of it
        leads = hasattr(os, "getsid") and os.getsid(0) == os.getpid()
        self.allowed = leads and nice < _USUAL and _set(nice) and _set(_USUAL)

    def take(self) -> None:
        """From now on, all threads of the process."""
        self._be(self._first)

    def give(self) -> bool:
        """As all others again. False: not wholly yet; call it again in a moment."""
        self._be(self._usual)
        return self._has == self._usual

    def _be(self, wanted: tuple[int, int]) -> None:
        if self.allowed and self._has != wanted:
            self._has = wanted if _set(wanted[0]) and _set_group(wanted[1]) else None


def as_usual(pid: int) -> None:
    """A child of this process goes before nobody, whatever its parent did when it was born."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, _USUAL)


def _set(nice: int) -> bool:
    try:
        os.setpriority(os.PRIO_PGRP, 0, nice)
    except OSError:
        return False
    return True


def _group_nice() -> int:
    try:
        with open(_AUTOGROUP) as group:
            return int(group.read().rsplit(maxsplit=1)[-1])  # "/autogroup-N nice M"
    except (OSError, ValueError, IndexError):
        return 0


def _set_group(nice: int) -> bool:
    """Where Linux groups processes by session (sched_autogroup), the group has a share of its own, which only root may
    change more often than every 0.1 s."""
    try:
        with open(_AUTOGROUP, "w") as group:
            group.write(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        return True  # there are no such groups here, or nobody is let at them
    return True
