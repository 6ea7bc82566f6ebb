"""A real livekit-server and the real worker on it, as the benchmarks run them; jobs tell what they do (``tracing``)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.benchmarks.tracing import ADDRESS, Traces
from tests.benchmarks.worker import PRELOADS
from tests.support import livekit_server
from tests.support.livekit_server import LiveKitServer
from tests.support.workers import WorkerProcess


@contextlib.contextmanager
def server() -> Iterator[LiveKitServer]:
    """A livekit-server.

    Raises:
        RuntimeError: there is none; the message says how to get it.
    """
    program = livekit_server.binary()
    if isinstance(program, str):
        raise RuntimeError(program)
    with livekit_server.running(program) as running:
        yield running


@asynccontextmanager
async def worker(
    livekit: LiveKitServer, *preloads: str, **environment: str
) -> AsyncIterator[tuple[WorkerProcess, Traces]]:
    """A worker that is ready for calls, on a data directory of its own, and what its jobs tell. Its settings are the
    defaults, not those that tests relax for busy machines."""
    directory = Path(tempfile.mkdtemp(prefix="vb-"))
    with Traces(directory) as traces:
        settings = {
            "MEMORY_TURN_BUDGET_MS": "300",
            "MEMORY_HOST_IDLE_SECONDS": "30",
            ADDRESS: str(traces.path),
            PRELOADS: " ".join(preloads),
            **livekit.environment,
            **environment,
        }
        running = WorkerProcess(directory, settings, module="tests.benchmarks.worker")
        try:
            yield await running.registered(), traces
        finally:
            with contextlib.suppress(Exception):
                await running.stop(within_s=5)
            running.end()
            shutil.rmtree(directory, ignore_errors=True)
