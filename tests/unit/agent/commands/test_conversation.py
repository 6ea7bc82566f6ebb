"""What is looked at before a conversation starts anything."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from agent.commands import call, chat, demo
from agent.commands.conversation import check_data_dir
from agent.local.wav import write_two_channel_wav
from agent.settings import load
from memory.errors import DataDirectoryUnusable, DataTooNew


def arguments(directory: Path) -> argparse.Namespace:
    sound = np.sin(np.arange(1_600, dtype=np.float32))
    write_two_channel_wav(directory / "caller.wav", sound, sound, 16_000)
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
