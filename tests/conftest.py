"""Fixtures for every test: a data directory of its own, and what to do where a real part is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A fresh data directory with a short path: a socket's path holds about 100 characters."""
    path = Path(tempfile.mkdtemp(prefix="vm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """No setting of the machine reaches a test; whatever opens the default stores does so in ``data_dir``."""
    for name in list(os.environ):
        if name.startswith(
            ("MEMORY_", "AGENT_", "REDIS_", "DATABASE_", "FALKORDB_", "GRAPHITI_", "LIVEKIT_", "OPENAI_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", str(data_dir))
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "0.5")


def require(*modules: str, extra: str) -> None:
    """Skip the test where a module is missing; in CI, where everything must be there, fail instead."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}: pip install 'livekit-unified-memory[{extra}]'"
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI nothing is skipped: {reason}")
    pytest.skip(reason)
