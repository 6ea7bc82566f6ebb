"""Recordings in and out: any plain WAV to mono samples, and a call as a WAV with the caller left, the agent right.

Blocking: call it on a thread. Above: audio, ``agent call``. Below: memory.extras (numpy; scipy where rates differ).
"""

from __future__ import annotations

import os
import shlex
import struct
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memory.extras import install

RATE = 16_000
RECORDING_BYTES_MAX = 1_073_741_824
RECORDING_S_MAX = 7_200.0
_RATE_MIN, _RATE_MAX = 4_000, 384_000
_SILENT_PEAK = 1e-4  # -80 dBFS: below what 16 bits of any real room hold

_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_STREAMED = 0xFFFFFFFF  # what programs that write to a pipe put where the length belongs
_OTHER_KINDS = {
    b"ID3": "an MP3",
    **dict.fromkeys((b"\xff\xfa", b"\xff\xfb", b"\xff\xf2", b"\xff\xf3"), "an MP3"),
    b"OggS": "an Ogg",
    b"fLaC": "a FLAC",
    b"caff": "a CAF",
    b"FORM": "an AIFF",
    b"\x1aE\xdf\xa3": "a WebM or Matroska",
}

Floats = NDArray[np.float32]


class BadRecording(ValueError):
    """The recording can't be used; the message names the cause and the fix."""


@dataclass(frozen=True, slots=True)
class Recording:
    """``samples``: mono float32 in -1..1 at ``RATE``. The other fields say what the file held."""

    samples: Floats
    source_rate: int
    channels: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / RATE


@dataclass(frozen=True, slots=True)
class _Format:
    tag: int
    channels: int
    rate: int
    bits: int


def read_wav(path: str | os.PathLike[str]) -> Recording:
    """Read a WAV of any rate and number of channels: 8, 16, 24, 32-bit, float, A-law, mu-law; channels are averaged.

    Raises:
        BadRecording: there is no such file, it can't be read, is empty, cut short, silent, too long, or not a WAV.
    """
    name = Path(path).name
    data = _read(Path(path), name)
    if not data:
        raise BadRecording(f"{name} is empty (0 bytes). Record it again, or give another file.")
    if len(data) < 12 or data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        convert = f"ffmpeg -i {shlex.quote(str(path))} -ac 1 -ar {RATE} converted.wav"
        raise BadRecording(f"{name} is {_kind(data)}. Convert it: {convert}")
    form, sound = _chunks(data, name)
    samples = _decode(form, sound, name)
    mono = samples[: len(samples) // form.channels * form.channels].reshape(-1, form.channels).mean(axis=1)
    if not len(mono):
        raise BadRecording(f"{name} holds no audio: its data part is empty. Record it again, or give another file.")
    if len(mono) / form.rate > RECORDING_S_MAX:
        raise BadRecording(f"{name} is longer than {RECORDING_S_MAX / 3600:g} hours. Cut it into shorter calls.")
    mono = np.nan_to_num(mono.astype(np.float32), posinf=1.0, neginf=-1.0)
    if float(np.abs(mono).max()) < _SILENT_PEAK:
        raise BadRecording(f"{name} holds only silence. Check the microphone, and record it again.")
    return Recording(resample(np.clip(mono, -1, 1), form.rate, RATE), form.rate, form.channels)


def _read(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:  # a device or a pipe does not say how much there is
            data = file.read(RECORDING_BYTES_MAX + 1)
    except FileNotFoundError:
        raise BadRecording(f"There is no file {path}. Check the path.") from None
    except IsADirectoryError:
        raise BadRecording(f"{path} is a directory. Give a WAV file.") from None
    except PermissionError:
        raise BadRecording(f"{name} may not be read by this user. Allow it: chmod u+r {path}") from None
    except OSError as error:
        raise BadRecording(f"{name} can't be read: {error.strerror or error}. Copy it to a local disk.") from error
    if len(data) > RECORDING_BYTES_MAX:
        raise BadRecording(f"{name} is larger than {RECORDING_BYTES_MAX / (1 << 30):g} GiB. Cut it into shorter calls.")
    return data


def _kind(data: bytes) -> str:
    for magic, kind in _OTHER_KINDS.items():
        if data.startswith(magic):
            return f"{kind} file, not a WAV"
    return "an MP4 file, not a WAV" if data[4:8] == b"ftyp" else "not a WAV file"


def _chunks(data: bytes, name: str) -> tuple[_Format, bytes]:
    form: _Format | None = None
    position = 12
    while position + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, position)
        start = position + 8
        if kind == b"fmt ":
            form = _format(data[start : start + size], name)
        elif kind == b"data":
            if form is None:
                break
            return form, _sound(data, start, size, form, name)
        position = start + size + size % 2
    raise BadRecording(f"{name} is cut short or damaged: it has no audio part. Copy or record it again.")


def _format(chunk: bytes, name: str) -> _Format:
    if len(chunk) < 16:
        raise BadRecording(f"{name} is cut short or damaged: its header is incomplete. Copy or record it again.")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        tag = struct.unpack_from("<H", chunk, 24)[0]
    if not 1 <= channels <= 64 or not _RATE_MIN <= rate <= _RATE_MAX:
        raise BadRecording(f"{name} is damaged: its header claims {channels} channels at {rate} Hz. Record it again.")
    return _Format(tag, channels, rate, bits)


def _sound(data: bytes, start: int, size: int, form: _Format, name: str) -> bytes:
    there = len(data) - start
    if size == _STREAMED or (size == 0 and there > 8):
        return data[start:]
    if size > there:
        per_s = form.rate * form.channels * max(1, form.bits // 8)
        raise BadRecording(
            f"{name} is cut short: of the {size / per_s:.1f} s that its header promises, "
            f"the last {(size - there) / per_s:.3g} s are missing. "
            "Copy it again, or record it again."
        )
    return data[start : start + size]


def _decode(form: _Format, sound: bytes, name: str) -> Floats:
    decoder = _DECODERS.get((form.tag, form.bits))
    if decoder is None:
        raise BadRecording(
            f"{name} is compressed or of a rare kind (format {form.tag}, {form.bits} bits). "
            f"Convert it: ffmpeg -i {shlex.quote(name)} -ac 1 -ar {RATE} -c:a pcm_s16le converted.wav"
        )
    width = form.bits // 8
    return decoder(sound[: len(sound) // width * width])


def _integers(kind: str) -> Callable[[bytes], Floats]:
    scale = float(np.iinfo(np.dtype(kind)).max) + 1
    return lambda sound: (np.frombuffer(sound, kind) / scale).astype(np.float32)


def _bytes8(sound: bytes) -> Floats:
    return ((np.frombuffer(sound, np.uint8).astype(np.int16) - 128) / 128).astype(np.float32)


def _bytes24(sound: bytes) -> Floats:
    wide = np.zeros((len(sound) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(sound, np.uint8).reshape(-1, 3)
    return (wide.view("<i4").ravel() / 2147483648.0).astype(np.float32)


def _mu_law(sound: bytes) -> Floats:
    value = ~np.frombuffer(sound, np.uint8)
    magnitude = (((value & 0x0F).astype(np.int32) << 3) + 132 << ((value & 0x70) >> 4)) - 132
    return (np.where(value & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _a_law(sound: bytes) -> Floats:
    value = np.frombuffer(sound, np.uint8) ^ 0x55
    exponent = ((value & 0x70) >> 4).astype(np.int32)
    step = ((value & 0x0F).astype(np.int32) << 4) + 8
    magnitude = np.where(exponent == 0, step, (step + 0x100) << np.maximum(exponent - 1, 0))
    return (np.where(value & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


_DECODERS: dict[tuple[int, int], Callable[[bytes], Floats]] = {
    (_PCM, 8): _bytes8,
    (_PCM, 16): _integers("<i2"),
    (_PCM, 24): _bytes24,
    (_PCM, 32): _integers("<i4"),
    (_FLOAT, 32): lambda sound: np.frombuffer(sound, "<f4").astype(np.float32),
    (_FLOAT, 64): lambda sound: np.frombuffer(sound, "<f8").astype(np.float32),
    (_ALAW, 8): _a_law,
    (_MULAW, 8): _mu_law,
}


def resampler() -> Callable[..., Floats]:
    """What changes rates.

    Raises:
        BadRecording: it isn't installed.
    """
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise BadRecording(
            f"Recordings are heard at {RATE} Hz and written at another rate: changing it needs scipy. "
            f"Run: {install('local')}"
        ) from None
    return resample_poly  # type: ignore[no-any-return]


def resample(samples: Floats, rate: int, to: int) -> Floats:
    """``samples`` at another rate, without aliasing. Raises as ``resampler``, where ``rate`` isn't ``to``."""
    if rate == to:
        return samples
    shared = gcd(rate, to)
    resampled: Floats = resampler()(samples, to // shared, rate // shared).astype(np.float32)
    return resampled


def write_two_channel_wav(path: str | os.PathLike[str], caller: Floats, agent: Floats, rate: int) -> None:
    """Write 16-bit stereo, caller left and agent right; the shorter one ends in silence. The file appears whole.

    Raises:
        BadRecording: it can't be written there; the message says why.
    """
    length = max(len(caller), len(agent))
    both = np.zeros((length, 2), np.float32)
    both[: len(caller), 0] = caller
    both[: len(agent), 1] = agent
    target = Path(path)
    try:
        descriptor, unready = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file, wave.open(file, "wb") as out:
                out.setnchannels(2)
                out.setsampwidth(2)
                out.setframerate(rate)
                out.writeframes((np.clip(both, -1, 1) * 32767).astype("<i2").tobytes())
            os.replace(unready, target)
        except BaseException:
            os.unlink(unready)
            raise
    except OSError as error:
        raise BadRecording(
            f"{path} can't be written: {error.strerror or error}. Give a path in a directory that this user can write."
        ) from error
