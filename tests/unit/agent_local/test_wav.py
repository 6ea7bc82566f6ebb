"""Recordings: every kind of WAV gives the same samples; what is no recording says what it is and what to do."""

from __future__ import annotations

import os
import struct
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.local import wav
from agent.local.wav import RATE, BadRecording, Floats, read_wav, write_two_channel_wav

_EXTENSIBLE_TAIL = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


def _tone(rate: int, seconds: float = 0.5) -> Floats:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def _wav(tag: int, channels: int, rate: int, bits: int, sound: bytes, *, extensible: bool = False) -> bytes:
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, 0, channels * bits // 8, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + _EXTENSIBLE_TAIL
    listing = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # an odd chunk before the audio, with its pad
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + listing + b"data" + struct.pack("<I", len(sound)) + sound
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _pcm24(samples: Floats) -> bytes:
    values = (samples * 8388607).astype("<i4")
    return values.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


_ENCODERS: dict[tuple[int, int], Callable[[Floats], bytes]] = {
    (1, 8): lambda s: (s * 127 + 128).astype(np.uint8).tobytes(),
    (1, 16): lambda s: (s * 32767).astype("<i2").tobytes(),
    (1, 24): _pcm24,
    (1, 32): lambda s: (s * 2147483000.0).astype("<i4").tobytes(),
    (3, 32): lambda s: s.astype("<f4").tobytes(),
    (3, 64): lambda s: s.astype("<f8").tobytes(),
}


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("tag", "bits"), list(_ENCODERS))
@pytest.mark.parametrize("channels", [1, 2])
def test_every_kind_gives_the_same_samples(
    tmp_path: Path, tag: int, bits: int, channels: int, extensible: bool
) -> None:
    tone = _tone(RATE)
    sound = _ENCODERS[tag, bits](np.repeat(tone, channels))
    path = tmp_path / "call.wav"
    path.write_bytes(_wav(tag, channels, RATE, bits, sound, extensible=extensible))
    recording = read_wav(path)
    assert (recording.source_rate, recording.channels) == (RATE, channels)
    assert len(recording.samples) == len(tone)
    assert float(np.abs(recording.samples - tone).max()) < (0.02 if bits == 8 else 1e-3)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_becomes_16_khz(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "call.wav"
    path.write_bytes(_wav(1, 1, rate, 16, _ENCODERS[1, 16](_tone(rate))))
    recording = read_wav(path)
    assert abs(recording.duration_s - 0.5) < 0.01
    spectrum = np.abs(np.fft.rfft(recording.samples))
    assert abs(float(np.argmax(spectrum)) / recording.duration_s - 440) < 4


def test_telephone_codes(tmp_path: Path) -> None:
    # ITU-T G.711: the codes for silence, for the largest values, and for one in between.
    mu = _wav(7, 1, 8000, 8, bytes([0xFF, 0x80, 0x00, 0xB0]) * 200)
    a = _wav(6, 1, 8000, 8, bytes([0xD5, 0xAA, 0x2A, 0x95]) * 200)
    expected = {"mu": [0, 32124, -32124, 1820 + 0], "a": [8, 32256, -32256, 264]}
    for name, data in (("mu", mu), ("a", a)):
        path = tmp_path / f"{name}.wav"
        path.write_bytes(data)
        assert read_wav(path).duration_s == pytest.approx(0.1, abs=0.01)
    from agent.local.wav import _a_law, _mu_law

    assert [round(float(v) * 32768) for v in _mu_law(bytes([0xFF, 0x80, 0x00]))] == expected["mu"][:3]
    assert [round(float(v) * 32768) for v in _a_law(bytes([0xD5, 0xAA, 0x2A]))] == expected["a"][:3]


def test_a_length_left_open_by_a_pipe_means_the_rest(tmp_path: Path) -> None:
    data = bytearray(_wav(1, 1, RATE, 16, _ENCODERS[1, 16](_tone(RATE))))
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "piped.wav").write_bytes(bytes(data))
    assert read_wav(tmp_path / "piped.wav").duration_s == 0.5


_SOUND = _ENCODERS[1, 16](_tone(RATE))


@pytest.mark.parametrize(
    ("data", "cause", "fix"),
    [
        (b"", "is empty", "Record it again"),
        (b"hello world, this is text", "not a WAV file", "ffmpeg"),
        (b"RIFF", "not a WAV file", "ffmpeg"),
        (b"ID3\x04" + bytes(40), "an MP3 file", "ffmpeg"),
        (b"OggS" + bytes(40), "an Ogg file", "ffmpeg"),
        (bytes(4) + b"ftypM4A " + bytes(40), "an MP4 file", "ffmpeg"),
        (_wav(1, 1, RATE, 16, b""), "no audio", "Record it again"),
        (_wav(1, 1, RATE, 16, bytes(3200)), "only silence", "microphone"),
        (_wav(1, 1, RATE, 16, _SOUND)[:-4000], "the last 0.125 s are missing", "Copy it again"),
        (_wav(1, 1, RATE, 16, _SOUND)[:-16], "the last 0.0005 s are missing", "Copy it again"),
        (_wav(1, 1, RATE, 16, _SOUND)[:30], "cut short", "record it again"),
        (_wav(1, 1, RATE, 16, _SOUND)[:40], "cut short", "record it again"),
        (_wav(1, 1, RATE, 16, _SOUND).replace(b"data", b"junk", 1), "no audio part", "record it again"),
        (_wav(2, 1, RATE, 4, _SOUND), "compressed or of a rare kind", "ffmpeg"),
        (_wav(1, 0, RATE, 16, _SOUND), "damaged", "Record it again"),
        (_wav(1, 1, 7, 16, _SOUND), "damaged", "Record it again"),
    ],
)
def test_what_is_no_recording_names_cause_and_fix(tmp_path: Path, data: bytes, cause: str, fix: str) -> None:
    path = tmp_path / "call.wav"
    path.write_bytes(data)
    with pytest.raises(BadRecording) as caught:
        read_wav(path)
    assert cause in str(caught.value)
    assert fix in str(caught.value)
    assert "call.wav" in str(caught.value)


@pytest.mark.parametrize("begin", [b"ID3\x04", b"\xff\xfb\x90", b"\xff\xf3\x44"])
def test_the_command_that_converts_another_kind_may_be_copied(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "my call.wav"
    path.write_bytes(begin + bytes(100))
    with pytest.raises(BadRecording, match="is an MP3 file") as caught:
        read_wav(path)
    assert f"ffmpeg -i '{path}' " in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match=r"no file .*nothing\.wav"):
        read_wav(tmp_path / "nothing.wav")
    with pytest.raises(BadRecording, match="is a directory"):
        read_wav(tmp_path)


@pytest.mark.parametrize("endless", [True, False])
def test_what_is_too_large_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: bool
) -> None:
    monkeypatch.setattr(wav, "RECORDING_BYTES_MAX", 1 << 20)
    path = Path("/dev/zero") if endless else tmp_path / "call.wav"
    if not endless:
        path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(BadRecording, match=r"larger than 0\.000976562 GiB.*Cut it"):
        read_wav(path)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "call.wav"
    path.write_bytes(_wav(1, 1, RATE, 16, _SOUND))
    path.chmod(0)
    if os.geteuid() == 0:  # root may read anything: let the system call refuse

        def refuse(_: Path, mode: str) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadRecording, match=r"may not be read by this user.*chmod"):
        read_wav(path)


def test_a_call_is_written_with_the_caller_left_and_the_agent_right(tmp_path: Path) -> None:
    caller, agent = _tone(24_000, 0.2), -_tone(24_000, 0.1)
    write_two_channel_wav(tmp_path / "out.wav", caller, agent, 24_000)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 24_000, len(caller))
        both = np.frombuffer(file.readframes(len(caller)), "<i2").reshape(-1, 2) / 32767
    assert float(np.abs(both[:, 0] - caller).max()) < 1e-3
    assert float(np.abs(both[: len(agent), 1] - agent).max()) < 1e-3
    assert not both[len(agent) :, 1].any()
    assert os.listdir(tmp_path) == ["out.wav"]


def test_where_a_call_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match=r"can't be written: No such file or directory.*Give a path"):
        write_two_channel_wav(tmp_path / "none" / "out.wav", _tone(RATE), _tone(RATE), RATE)
