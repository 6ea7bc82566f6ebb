"""The ingestion worker's command, and the one that ``agent dev`` runs beside its calls."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agent.commands import dev_ingest, ingest, worker
from agent.commands.dev_ingest import NOT_INSTALLED, STARTED_ALONE, beside
from agent.health import HealthServer
from agent.keeper import State
from agent.settings import load
from memory.errors import SettingsError, StoreFault
from memory.extras import install
from memory.wiring_ingestion import describe, skipped

SECONDS = 60.0


class Started:
    """Stands in for ``subprocess.Popen``: keeps the real child, so that a test can look at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        real = subprocess.Popen

        def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
            child: subprocess.Popen[bytes] = real(*words, **options)
            self.children.append(child)
            return child

        monkeypatch.setattr("agent.commands.dev_ingest.subprocess.Popen", start)


def test_dev_runs_a_worker_for_as_long_as_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    with beside(load()):
        [child] = started.children
        assert child.poll() is None
    assert child.poll() is not None


def test_a_memory_that_is_off_has_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    with beside(load(enabled=False)):
        pass
    assert started.children == []


def test_dev_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = Started(monkeypatch)
    monkeypatch.setattr(dev_ingest, "installed", lambda: False)
    with beside(load()):
        pass
    assert started.children == []
    told = capsys.readouterr().err
    assert NOT_INSTALLED in told
    assert install("ingest") in told


def test_start_says_that_it_does_not_ingest(capsys: pytest.CaptureFixture[str]) -> None:
    with worker._ingestion("start", load()), worker._ingestion("console", load()):
        pass
    assert capsys.readouterr().err.strip() == STARTED_ALONE


def test_a_worker_ends_with_whoever_started_it(data_dir: Path) -> None:
    values = {**os.environ, "AGENT_INGEST_HEALTH_PORT": "0", "AGENT_HEALTH_HOST": "127.0.0.1"}
    command = [sys.executable, "-m", "agent", "ingest", "--parent", "1"]  # that is somebody else
    ended = subprocess.run(command, env=values, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0
    assert "has ended" in ended.stderr


def test_a_port_that_is_taken_is_named(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        values = {**os.environ, "AGENT_INGEST_HEALTH_PORT": port, "AGENT_HEALTH_HOST": "127.0.0.1"}
        command = [sys.executable, "-m", "agent", "ingest"]
        ended = subprocess.run(command, env=values, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert "AGENT_INGEST_HEALTH_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_the_task_engine_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "installed", lambda: False)
    with pytest.raises(StoreFault, match="pip install"):
        ingest.run(argparse.Namespace(parent=None))


def test_with_memory_off_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_ENABLED", "false")
    with pytest.raises(SettingsError, match="MEMORY_ENABLED"):
        ingest.run(argparse.Namespace(parent=None))


def test_what_is_configured_is_told_without_secrets_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:s3cret@redis.internal:6379/0")
    monkeypatch.setenv("DATABASE_URL", "postgresql://ana:s3cret@db.internal/memory")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    monkeypatch.setenv("FALKORDB_HOST", "graph.internal")
    told = " ".join(describe(load().memory))
    assert "gpt-4o-mini (OpenAI)" in told
    assert "postgresql" in told
    assert "FALKORDB_HOST" in told
    assert "s3cret" not in told
    assert "internal" not in told


def test_why_facts_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OPENAI_API_KEY" in skipped(load().memory)
    assert any("OPENAI_API_KEY" in line for line in describe(load().memory))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert skipped(load().memory) == ""
    monkeypatch.setenv("GRAPHITI_ENABLED", "false")
    assert skipped(load().memory) == "GRAPHITI_ENABLED is off"


async def test_its_health_server_answers_health_alone() -> None:
    async def states() -> dict[str, State]:
        return {"graphiti": State("healthy", "FalkorDB connected", {"waiting": 3})}

    server = HealthServer("127.0.0.1", 0, states=states, status=lambda: "")
    await server.start()
    try:

        def get(path: str) -> int:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert await asyncio.to_thread(get, "/health") == 200
        assert await asyncio.to_thread(get, "/worker") == 404
    finally:
        await server.aclose()
