"""``python -m agent call`` as its users run it: a recording in, turns and a recording out."""

from __future__ import annotations

import argparse
import json
import os
import signal
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.commands.call import UnusableRecording, run
from agent.local.models import LISTEN_RATE, PACKAGES, TALK_RATE, TextToSpeech
from agent.local.wav import read_wav, resample, write_two_channel_wav

Start = Callable[..., Any]
SAID = "By the way, I am allergic to peanuts."

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody says ``SAID``, then is silent for a while, then asks. Mono, 8 kHz, as from a telephone."""
    pytest.importorskip("hibari")
    talker = TextToSpeech()
    parts = [_said(talker, SAID), np.zeros(4 * TALK_RATE, np.float32), _said(talker, "What am I allergic to?")]
    samples = resample(np.concatenate(parts), TALK_RATE, 8_000)
    path = tmp_path_factory.mktemp("call") / "caller.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8_000)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def _said(talker: TextToSpeech, text: str) -> Any:
    pcm = np.concatenate([np.frombuffer(talker.speak(piece).pcm, np.int16) for piece in talker.pieces(text)])
    return pcm.astype(np.float32) / 32768


def test_a_call_is_held_told_and_recorded(
    start: Start, speech: Path, tmp_path: Path, require: Callable[..., None]
) -> None:
    require(*PACKAGES, extra="local")
    out = tmp_path / "call-out.wav"
    code, told, err = start("call", str(speech), "--user", "caller", "--out", str(out), "--json").end()
    assert code == 0, err
    turns = [event for line in told.splitlines() if (event := json.loads(line))["event"] == "turn"]
    assert [turn["role"] for turn in turns] == ["assistant", "user", "assistant", "user", "assistant"]
    assert {turn["mode"] for turn in turns} == {"voice"}
    assert "peanuts" in turns[1]["text"]
    assert turns[1]["language"] == "en"
    assert "peanuts" in turns[4]["text"]
    assert all(0 < turns[index]["voice_to_voice_ms"] < 60_000 for index in (2, 4))
    assert turns[4]["memory_ms"] is not None
    with wave.open(str(out)) as recorded:
        assert recorded.getnchannels() == 2
    assert read_wav(out).duration_s > read_wav(speech).duration_s


@pytest.mark.promise("P-heard")
def test_P_heard_a_call_that_is_hung_up_keeps_what_was_said_until_then(
    start: Start, speech: Path, tmp_path: Path, require: Callable[..., None]
) -> None:
    require(*PACKAGES, extra="local")
    out = tmp_path / "call-out.wav"
    call = start("call", str(speech), "--user", "caller", "--out", str(out), "--json")
    call.event("first_audio", greeting=False)
    call.process.send_signal(signal.SIGINT)
    code, _, err = call.end()
    assert code == 130
    assert "Traceback" not in err
    assert read_wav(out).duration_s > 0
    _, told, _ = start("chat", "--user", "caller", "--json").end("/memory")
    turns = json.loads(told.splitlines()[-1])["turns"]
    assert [turn["text"] for turn in turns if turn["role"] == "user"] == [SAID]
    # Of the reply, whose first sound had just come out, at most the beginning was heard.
    replies = [turn["text"] for turn in turns[2:]]
    assert all(len(reply) < len(SAID) for reply in replies)


def _recordings(directory: Path) -> dict[str, Path]:
    whole = directory / "whole.wav"
    tone = (np.sin(np.arange(LISTEN_RATE) / 5) * 0.3).astype(np.float32)
    write_two_channel_wav(whole, tone, tone, LISTEN_RATE)
    made = {name: directory / f"{name}.wav" for name in ("empty", "cut", "text", "silent", "directory", "missing")}
    made["empty"].touch()
    made["cut"].write_bytes(whole.read_bytes()[:-1000])
    made["text"].write_text("This is no sound at all, however long one listens to it.")
    write_two_channel_wav(made["silent"], tone * 0, tone * 0, LISTEN_RATE)
    made["directory"].mkdir()
    return made


def _arguments(recording: Path, out: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        recording=str(recording), out=str(out) if out else None, user="u", org=None, agent=None, json=False
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "is empty"),
        ("cut", "is cut short"),
        ("text", "not a WAV"),
        ("silent", "only silence"),
        ("directory", "is a directory"),
        ("missing", "There is no file"),
    ],
)
def test_a_recording_that_can_not_be_played_is_refused_before_the_call(tmp_path: Path, kind: str, reason: str) -> None:
    with pytest.raises(UnusableRecording, match=reason):
        run(_arguments(_recordings(tmp_path)[kind]))


def test_a_place_that_can_not_be_written_is_refused_before_the_call(tmp_path: Path) -> None:
    _recordings(tmp_path)
    with pytest.raises(UnusableRecording, match="There is no directory"):
        run(_arguments(tmp_path / "whole.wav", tmp_path / "nowhere" / "out.wav"))
    with pytest.raises(UnusableRecording, match="is a directory"):
        run(_arguments(tmp_path / "whole.wav", tmp_path))
    (tmp_path / "again.wav").symlink_to(tmp_path / "whole.wav")
    with pytest.raises(UnusableRecording, match="is the recording itself"):
        run(_arguments(tmp_path / "whole.wav", tmp_path / "again.wav"))


def test_a_directory_of_somebody_else_is_refused_before_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _recordings(tmp_path)
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, who may run this, is refused nothing
    with pytest.raises(UnusableRecording, match="can't be written"):
        run(_arguments(tmp_path / "whole.wav", tmp_path / "theirs" / "out.wav"))


def test_a_refused_recording_is_exit_code_2(start: Start, tmp_path: Path) -> None:
    code, out, err = start("call", str(_recordings(tmp_path)["cut"]), "--json").end()
    assert code == 2
    assert json.loads(out)["event"] == "error"
    assert "Copy it again" in err
    assert "Traceback" not in err
