"""A real livekit-server and the real worker on it, as the benchmarks run them; jobs tell what they do (``tracing``)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from tests.benchmarks.tracing import ADDRESS, Traces
from tests.benchmarks.worker import PRELOADS
from tests.support import livekit_server
from tests.support.livekit_server import LiveKitServer
from tests.support.workers import WorkerProcess

_CALLERS = Path(__file__).parent / "callers"
_BUILD_S = 600.0


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


def callers() -> Path:
    """The program that holds many callers, built if it isn't (a minute or two, once).

    Raises:
        RuntimeError: it can't be; the message says why.
    """
    if (go := shutil.which("go")) is None:
        raise RuntimeError("needs Go, which livekit-server is built with as well")
    livekit_server.CACHE.mkdir(parents=True, exist_ok=True)
    program = livekit_server.CACHE / "callers"
    command = [go, "build", "-o", str(program), "."]
    done = subprocess.run(command, cwd=_CALLERS, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the callers can't be built: {done.stderr[-500:]}")
    return program


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
            try:
                with contextlib.suppress(Exception):
                    await running.stop(within_s=5)
            finally:  # whatever was told meanwhile
                running.end()
                _end_helpers(directory)
                shutil.rmtree(directory, ignore_errors=True)


def _end_helpers(data_dir: Path) -> None:
    """End what stays for a while when nobody uses it any more: the next measurement is not to have it beside it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("VOICEASSIST_DATA_DIR") == str(data_dir):
                process.kill()
