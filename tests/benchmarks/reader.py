"""The other process of ``freshness``: for each query on stdin, recalls until something comes, prints when that was."""

from __future__ import annotations

import asyncio
import sys
import time

from memory.errors import HostUnavailable
from memory.settings import load_settings
from memory.wiring import Backend, open_backend
from tests.benchmarks.stores import scope

_DEADLINE_S = 30.0


async def found_at(opened: Backend, query: str) -> float:
    """The monotonic time at which a recall for ``query`` first brought a passage that holds its last word."""
    assert opened.retriever is not None
    wanted = query.split()[-1]
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            try:
                recall = await opened.retriever.recall(scope("freshness"), query, limit=5, budget_ms=1_000)
            except HostUnavailable:
                await asyncio.sleep(0.05)
                continue
            if any(wanted in passage.text for passage in recall.passages):
                return time.monotonic()


async def main() -> None:
    opened = await open_backend(load_settings(host_idle_seconds=1.0))
    assert opened.retriever is not None
    await opened.retriever.warm(scope("freshness"))
    await asyncio.sleep(3)  # the model loads once per machine, before any call
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in iter(sys.stdin.readline, ""):
        sys.stdout.write(f"{await found_at(opened, line.strip())!r}\n")
        sys.stdout.flush()
    await opened.aclose()


if __name__ == "__main__":
    asyncio.run(main())
