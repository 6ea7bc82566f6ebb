"""``livekit.yaml`` is what a real livekit-server starts with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support import livekit_server

CONFIG = Path(__file__).resolve().parents[2] / "livekit.yaml"
START_S = 20.0


def test_the_server_starts_with_it(tmp_path: Path) -> None:
    program = livekit_server.binary()
    if isinstance(program, str):
        pytest.skip(program)
    port = livekit_server.free_port()
    # The ports of the file may be taken here; everything else is the file's.
    places = ["--port", str(port), "--rtc.tcp_port", "0", "--bind", "127.0.0.1", "--udp-port", str(port + 1)]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--config", CONFIG, *places],
            env={"PATH": os.environ["PATH"], "LIVEKIT_KEYS": "mykey: a-secret-of-32-characters-or-more"},
            stdout=output,
            stderr=output,
            cwd=tmp_path,
        )
    try:
        assert _answers(port, process), log.read_text()
        assert "error" not in log.read_text().lower()
    finally:
        process.kill()
        process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        address = f"http://127.0.0.1:{port}"
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(address, timeout=1):
            return True
        time.sleep(0.02)
    return False
