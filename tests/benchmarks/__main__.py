"""``python -m tests.benchmarks [NAME…]``: the figures the README gives, a JSON line each; 1 when a goal is missed.

``server`` names all those that need a livekit-server, and about twenty minutes; ``all`` the others, as no name does.
``greetings-NAME`` is one outage of ``greetings``: about a minute each.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys

from tests.benchmarks import calls, facts, imports, ingestion, outages, pauses, stores, torture, turns, voice
from tests.benchmarks.harness import Benchmark, run

BENCHMARKS: dict[str, Benchmark] = {
    "recording": stores.recording,
    "freshness": stores.freshness,
    "facts": facts.facts,
    "llm-calls": ingestion.calls_per_call,
    "ingestion": ingestion.speed,
    "leaks": ingestion.leaks,
    "turns": turns.turns,
    "imports": imports.imports,
}
SERVER: dict[str, Benchmark] = {
    "voice": voice.voice_to_voice,
    "pauses": pauses.pauses,
    "comeback": outages.comeback,
    "greetings": outages.greetings,
    "calls": calls.twenty_calls,
}
OUTAGES: dict[str, Benchmark] = {
    f"greetings-{name}": functools.partial(outages.greetings, name) for name in outages.OUTAGES
}
TERMINATED = 128 + signal.SIGTERM  # the exit code of what that signal has ended

if __name__ == "__main__":
    if sys.argv[1:2] == ["torture"]:
        sys.exit(torture.main(sys.argv[2:]))
    groups = {"all": BENCHMARKS, "server": SERVER}
    names = [each for name in sys.argv[1:] or ["all"] for each in groups.get(name, [name])]
    try:
        sys.exit(asyncio.run(run({**BENCHMARKS, **SERVER, **OUTAGES}, names)))
    except asyncio.CancelledError:  # told to end, and everything is ended
        sys.exit(TERMINATED)
