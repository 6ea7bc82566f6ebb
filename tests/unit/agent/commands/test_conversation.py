"""What is looked at before a conversation starts anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from agent.commands import call, chat, demo
from agent.commands.conversation import check_data_dir
from agent.local.wav import write_two_channel_wav
from agent.models import ModelUnavailable
from agent.settings import load
from memory.errors import DataDirectoryUnusable, DataTooNew


def arguments(directory: Path, *, rate: int = 16_000) -> argparse.Namespace:
    sound = np.sin(np.arange(1_600, dtype=np.float32))
    write_two_channel_wav(directory / "caller.wav", sound, sound, rate)
    return argparse.Namespace(
        user="ana", org=None, agent=None, json=False, recording=directory / "caller.wav", out=None,
        say="I like peanuts.", ask="Which food do I like?",
    )  # fmt: skip


@pytest.mark.parametrize("command", [call, chat, demo])
def test_a_data_directory_of_a_newer_version_is_refused_as_what_it_is_and_left_alone(
    command: object, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", list)
    (data_dir / "FORMAT").write_text("99\n")
    with pytest.raises(DataTooNew, match="Upgrade"):
        command.run(arguments(tmp_path))  # type: ignore[attr-defined]
    assert [path.name for path in data_dir.iterdir()] == ["FORMAT"]


def test_a_call_without_the_local_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: Path
) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", lambda: ["hibari", "scipy"])
    with pytest.raises(ModelUnavailable, match=r"hibari, scipy. Run: pip install .*\[local\].*OPENAI_API_KEY"):
        call.run(arguments(tmp_path))


@pytest.mark.parametrize("out", [False, True])
def test_a_call_with_models_elsewhere_needs_what_changes_rates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: Path, out: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    given = arguments(tmp_path, rate=16_000 if out else 24_000)
    given.out = tmp_path / "out.wav" if out else None
    with pytest.raises(call.UnusableRecording, match=r"needs scipy. Run: pip install .*\[local\]"):
        call.run(given)


@pytest.mark.parametrize(
    ("memory", "speech", "voice", "needed"),
    [
        ("on", "openai", False, True),
        ("off", "local", True, True),
        ("off", "local", False, False),
        ("off", "openai", True, False),
    ],
)
def test_a_data_directory_that_nothing_needs_may_be_unusable(
    monkeypatch: pytest.MonkeyPatch, memory: str, speech: str, voice: bool, needed: bool
) -> None:
    settings = {"VOICEASSIST_DATA_DIR": "/dev/null/data", "OPENAI_API_KEY": "key", "MEMORY_ENABLED": memory}
    for name, value in {**settings, "AGENT_STT": speech, "AGENT_TTS": speech}.items():
        monkeypatch.setenv(name, value)
    if needed:
        with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
            check_data_dir(load(), voice=voice)
    else:
        check_data_dir(load(), voice=voice)
