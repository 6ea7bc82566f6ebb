"""``.env.example`` is what the settings classes say, and a file that a shell and compose can read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import AgentSettings, load
from memory.errors import SettingsError
from memory.settings import Settings, variable

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / ".env.example"
NAMES = [variable(each, name) for each in (Settings, AgentSettings) for name in each.model_fields]
SETTING = re.compile(r"^# (?=[A-Z][A-Z0-9_]*=)", re.M)


def test_the_example_is_current() -> None:
    checked = subprocess.run(
        [sys.executable, "scripts/settings_table.py", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def uncommented(tmp_path: Path) -> dict[str, str]:
    """What a shell makes of the example when every setting in it is set to its default."""
    path = tmp_path / "env"
    path.write_text(SETTING.sub("", EXAMPLE.read_text()))
    command = ["env", "-i", "sh", "-c", 'set -a; . "$1"; exec env -0', "sh", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in printed.split("\0") if line)


def test_nothing_is_set_until_it_is_uncommented() -> None:
    assert [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")] == []


def test_every_setting_is_in_it_once_and_described() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for name in NAMES:
        places = [number for number, line in enumerate(lines) if line.startswith(f"# {name}=")]
        assert len(places) == 1, name
        assert re.match(r"# \S", lines[places[0] - 1]), name


def test_all_of_it_uncommented_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VOICEASSIST_DATA_DIR")
    monkeypatch.delenv("MEMORY_HOST_IDLE_SECONDS")
    monkeypatch.chdir(tmp_path)
    expected = load()
    values = uncommented(tmp_path)
    assert set(NAMES) <= values.keys()
    for name, value in values.items():
        if name in NAMES:
            monkeypatch.setenv(name, value)
    assert load() == expected


def test_all_wrong_values_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every variable that has a wrong value, agent's and memory's, in one error."""
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "30")
    wrong = {
        "MEMORY_ENABLED": "perhaps",
        "REDIS_URL": "localhost:6379",
        "REDIS_PORT": "0",
        "DATABASE_URL": "mysql://db",
        "MEMORY_REQUIRE_DURABLE": "very",
        "MEMORY_CONTEXT_TOKENS": "300",
        "FALKORDB_PORT": "many",
        "AGENT_STT": "whisper",
        "AGENT_DRAIN_SECONDS": "soon",
        "OPENAI_BASE_URL": "api.example",
        "LIVEKIT_URL": "localhost",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENT_TTS", "livekit")  # and its keys are missing

    with pytest.raises(SettingsError) as caught:
        load()

    assert {line.split(":")[0] for line in caught.value.problems} == wrong.keys() | {"AGENT_TTS"}
    assert str(caught.value).count("\n") == len(wrong) + 1
    assert not any(value in str(caught.value) for value in ("perhaps", "mysql://db", "api.example"))
