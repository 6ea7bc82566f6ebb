"""What importing the plugin costs a program that has livekit-agents loaded already."""

from __future__ import annotations

import asyncio
import sys

from tests.benchmarks.harness import Figure, percentile

_PROGRAM = """
import time, livekit.agents
begun = time.perf_counter()
import memory.plugin
print((time.perf_counter() - begun) * 1e3)
"""
_RUNS = 7


async def imports() -> list[Figure]:
    """Median of fresh processes."""
    times = []
    for _ in range(_RUNS):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        times.append(float(out))
    return [Figure("plugin_import_p50_ms", percentile(times, 0.5), 300, unit="ms", detail=f"{_RUNS} fresh processes")]
