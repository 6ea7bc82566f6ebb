"""A call's recorder whose caller becomes known, and that kills itself before the nth step of telling the disk so.

Run as ``python -m tests.integration.bound_turns_child USER N`` with ``VOICEASSIST_DATA_DIR`` set. A step is whatever
changes the disk. Where there is no nth step it isn't killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from memory.clock import SystemClock
from memory.counters import Counters
from memory.models import MemoryEntry, Scope
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.recorder import Recorder
from memory.spool import Spool

TURNS = 70  # more than what is written in one go
_STEPS = ("pwrite", "fsync", "ftruncate", "rename", "replace", "link", "unlink")


def user(name: str) -> Scope:
    return Scope(org_id="acme", agent_id="desk", user_id=name)


def nobody(name: str) -> Scope:
    """Whom the turns are said to be of until it is known that it is ``user(name)``."""
    return Scope(org_id="acme", agent_id="desk", user_id=f"call-{name}/PA_1", kind="session")


def said(name: str, number: int) -> str:
    return f"{name} tells about thing {number}"


def kill_before(step: int) -> None:
    """From now on, be killed before the ``step``th change of the disk."""
    steps = itertools.count()

    def counted(change: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **options)

        return changed

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))


async def call(name: str, step: int) -> None:
    clock, spool = SystemClock(), Spool(Path(os.environ["VOICEASSIST_DATA_DIR"]))
    recorder = Recorder(Intake(CardRedactor(), clock), clock, Counters(), session_id=f"call-{name}")
    recorder.spool_as(nobody(name), spool)
    for number in range(TURNS):
        recorder.record(MemoryEntry(role="user", content=said(name, number), mode="voice"))
    assert await recorder.durable(30)
    kill_before(step)
    recorder.spool_as(user(name), spool)
    async with asyncio.timeout(30):
        while spool.files(nobody(name)) or not spool.files(user(name)):
            await asyncio.sleep(0.01)
    await recorder.aclose()


if __name__ == "__main__":
    asyncio.run(call(sys.argv[1], int(sys.argv[2])))
