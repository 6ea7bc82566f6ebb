"""The ingestion worker that ``agent dev`` runs beside its calls: a process of its own, which ends with it.

Above: commands.worker. Below: commands.ingest (as a program).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from agent.commands.conversation import notice
from agent.commands.ingest import installed
from agent.settings import Configuration
from memory.extras import install

END_S_MAX = 10.0
STARTED_ALONE = "Facts are extracted by python -m agent ingest, on this machine or any other: this worker does not."
NOT_INSTALLED = "No facts are extracted: ingestion needs its task engine."


@contextlib.contextmanager
def beside(configuration: Configuration) -> Iterator[None]:
    """Run one while the block runs; say so where it can't be."""
    if not configuration.memory.enabled:
        yield
        return
    if not installed():
        notice(f"{NOT_INSTALLED} Run: {install('ingest')}")
        yield
        return
    process = subprocess.Popen(  # noqa: S603 - this program itself
        [sys.executable, "-m", "agent", "ingest", "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **_health(configuration)},
        start_new_session=True,  # a Ctrl-C is dev's to pass on, once the calls have ended
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S_MAX)


def _health(configuration: Configuration) -> dict[str, str]:
    # Somebody who develops may run several, or have something else on that port.
    chosen = "ingest_health_port" in configuration.agent.model_fields_set
    return {} if chosen else {"AGENT_INGEST_HEALTH_PORT": "0"}
