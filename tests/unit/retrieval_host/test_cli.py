"""``python -m memory``: faults in one line, one host at a time, and threads that are the user's to set."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memory.cli import _origin, host, main
from memory.hosting import HostRole
from memory.settings import load_settings
from memory.wiring import recall_host

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
