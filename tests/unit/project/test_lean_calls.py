"""What a call's process, the recall host and the worker's main process never load: the task engine, Graphiti, the LLM
of ingestion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memory.limits import ONE_THREAD

HEAVY = ("docket", "graphiti_core", "falkordb", "memory.ingestion.tasks", "memory.ingestion.pipeline", "tqdm")


@pytest.mark.parametrize(
    "modules",
    [
        ("agent.job", "agent.preload", "memory.plugin", "memory.stores.redis", "memory.retrieval.client"),
        ("memory.cli", "memory.retrieval.host", "memory.retrieval.engine", "memory.stores.sql", "memory.wiring"),
        ("agent.worker", "agent.keeper", "agent.health", "agent.commands.worker"),
        ("memory",),
    ],
    ids=["job", "recall host", "worker", "memory"],
)
def test_a_process_of_calls_does_not_load_ingestion(modules: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(modules)}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout.split() == []


@pytest.mark.case("S03")
def test_S03_jobs_are_forked_from_a_process_that_holds_nothing_of_a_loop_or_a_server() -> None:
    code = (
        "import os, asyncio, gc, agent.preload;"
        "files = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')];"
        "loops = [each for each in gc.get_objects() if isinstance(each, asyncio.AbstractEventLoop)];"
        "print(len(os.listdir('/proc/self/task')), len(loops), *[name for name in files if 'socket' in name])"
    )
    environment = {**os.environ, **ONE_THREAD}  # as the worker sets it
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert found.stdout.split() == ["1", "0"]


def test_the_probe_finds_what_is_loaded() -> None:
    code = f"import sys, memory.ingestion.tasks; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {"docket", "memory.ingestion.tasks"} <= set(found.stdout.split())
