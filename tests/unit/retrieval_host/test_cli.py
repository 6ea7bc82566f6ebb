"""``python -m memory``: faults in one line, one host at a time, and threads that are the user's to set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory.cli import _origin, host, main
from memory.hosting import HostRole
from memory.settings import load_settings
from memory.wiring import RECALL_HOST, recall_host

ROOT = Path(__file__).parents[3]
THREADS = "OMP_NUM_THREADS"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (THREADS, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


def test_wrong_settings_are_told_with_the_variable_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "soon")
    assert main(["host"]) == 1
    told = capsys.readouterr().err
    assert "MEMORY_HOST_IDLE_SECONDS" in told
    assert "Traceback" not in told
    assert "soon" not in told


@pytest.mark.parametrize("arguments", [[], ["no such command"], ["eval"]])
def test_a_command_that_is_none_is_told_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m memory" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "then"), [(None, "1"), ("3", "3")])
def test_models_and_matrices_get_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, then: str
) -> None:
    if given is not None:
        monkeypatch.setenv(THREADS, given)
    assert main(["eval", "--turns", str(tmp_path / "none"), "--questions", str(tmp_path / "none")]) == 1
    assert os.environ[THREADS] == then


def test_recall_is_measured_on_ones_own_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    turns, questions = tmp_path / "turns.jsonl", tmp_path / "questions.jsonl"
    said = {"session_id": "s", "timestamp": "2026-03-04T12:00:00Z", "role": "user", "name": None}
    contents = ["My cat is called Biscuit.", "The weather is fine.", "I live in Lyon."]
    turns.write_text("\n".join(json.dumps({**said, "id": f"t{n}", "content": c}) for n, c in enumerate(contents)))
    questions.write_text(json.dumps({"query": "What is my cat called?", "evidence": ["t0"], "category": "pets"}))
    assert main(["eval", "--turns", str(turns), "--questions", str(questions), "--k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"] == {"questions": 1, "recall": {"1": 100.0}}


async def test_a_second_host_ends_at_once_and_touches_nothing(data_dir: Path) -> None:
    settings = load_settings()
    first = HostRole(recall_host(settings), idle_s=0.0)
    assert first.try_take()
    assert await host(settings) == 0
    assert not (data_dir / "memory.db").exists()
    first.release()


def test_stores_have_a_name_of_their_own_whoever_logs_in() -> None:
    def origin(**settings: str) -> str:
        return _origin(load_settings(**settings))

    assert origin() == origin()
    assert origin(redis_url="redis://a:b@one:1/0") == origin(redis_url="redis://c:d@one:1/0")
    names = [
        origin(),
        origin(redis_url="redis://one:1/0"),
        origin(redis_url="redis://two:1/0"),
        origin(redis_url="redis://one:1/1"),
        origin(database_url="postgresql://u:p@db/memory"),
        origin(database_url="postgresql://u:p@db/other"),
    ]
    assert len(set(names)) == len(names)


def test_a_host_is_of_its_stores_and_of_nothing_else() -> None:
    def name(**settings: Any) -> str:
        return recall_host(load_settings(**settings)).name

    assert name() == name(org_id="other", agent_id="other", prefetch=False, host_idle_seconds=9.0) == RECALL_HOST
    changes: list[dict[str, Any]] = [
        {"database_url": "postgresql://u:p@db/memory"},
        {"database_url": "postgresql://u:mended@db/memory"},
        {"redis_url": "redis://one:1/0"},
        {"redis_url": "redis://two:1/0"},
        {"embedder": "none"},
        {"graphiti_enabled": False},
    ]
    assert len({name(), *(name(**change) for change in changes)}) == 1 + len(changes)
    assert name(redis_host="one", redis_port=1) == name(redis_url="redis://one:1/0")


def test_ctrl_c_while_it_is_still_loading_ends_it_quietly(tmp_path: Path) -> None:
    slow = "import signal\nprint('loading', flush=True)\nsignal.pause()\n"
    (tmp_path / "pydantic_settings.py").write_text(slow)  # found before the real one
    process = subprocess.Popen(
        [sys.executable, "-m", "memory", "eval"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)
    assert (process.returncode, *told) == (130, "", "")


def printing(*words: str, cwd: Path, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memory", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        cwd=cwd,
        text=True,
        timeout=100,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


@pytest.mark.parametrize("words", [("--help",), ("ingestion", "list"), ("ingestion", "list", "--json")])
def test_output_that_nobody_takes_is_no_traceback(data_dir: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gone = printing(*words, cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (128 + signal.SIGPIPE, "")
    with open("/dev/full", "w") as full:
        no_room = printing(*words, cwd=tmp_path, stdout=full)
    assert (no_room.returncode, no_room.stderr) == (1, "The output can't be written: No space left on device.\n")
    closed = printing(*words, cwd=tmp_path, stdout=None, preexec_fn=lambda: os.closerange(0, 2))
    assert (closed.returncode, closed.stderr) == (0, "")
