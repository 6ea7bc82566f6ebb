"""A microphone and a speaker for an ``AgentSession`` without a room, both in real time, both recording.

``WavMicrophone`` plays samples on a small noise floor; ``RecordingSpeaker`` behaves like the sink of a room, and keeps
what was really heard, with its time. Above: ``agent call``, ``agent demo``, tests. Below: wav.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from livekit import rtc
from livekit.agents.voice import io
from numpy.typing import NDArray

from agent.local.wav import RATE, BadRecording, Floats, Recording, read_wav, resample, write_two_channel_wav

__all__ = [
    "BadRecording",
    "PlayedSegment",
    "Playing",
    "Recording",
    "RecordingSpeaker",
    "WavMicrophone",
    "read_wav",
    "write_call_recording",
    "write_two_channel_wav",
]

FRAME_S = 0.02
NOISE_FLOOR = 15.0  # of 32768: a quiet room, so that the VAD is never fed digital silence
SPEAKER_RATE = 24_000
RECORDED_S_MAX = 7_200.0
AUDIBLE = 330  # of 32768: 1 %
Samples = NDArray[np.int16]


def _int16(samples: Floats) -> Samples:
    return (np.clip(samples, -1, 1) * 32767).astype(np.int16)


@dataclass(slots=True)
class Playing:
    """Something the microphone plays. Times are ``time.time()``, set once they are known."""

    samples: Samples
    voice_end: int  # index after the last audible sample
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float | None = None
    voice_ended_at: float | None = None
    position: int = 0


class WavMicrophone(io.AudioInput):
    """Plays what it is given, one after the other, in real time; a quiet noise where there is nothing.

    Frames are 20 ms of 16 kHz mono. The noise is the same in every run. Iteration ends with ``close``.
    """

    def __init__(self, *, noise_floor: float = NOISE_FLOOR, now: Callable[[], float] = time.time) -> None:
        super().__init__(label="WavMicrophone")
        self._now = now
        self._frame = int(RATE * FRAME_S)
        self._noise = np.random.default_rng(0)
        self._noise_floor = noise_floor
        self._queue: list[Playing] = []
        self._recorded: list[Samples] = []
        self._closed = asyncio.Event()
        self._sent = 0
        self.started_at: float | None = None

    def play(self, samples: Floats) -> Playing:
        """Play mono ``samples`` at 16 kHz after what is still to be played; never waits."""
        audio = _int16(samples)
        audible = np.flatnonzero(np.abs(audio.astype(np.int32)) > AUDIBLE)
        playing = Playing(audio, int(audible[-1]) + 1 if len(audible) else len(audio))
        if not len(audio):
            playing.finished.set()
        else:
            self._queue.append(playing)
        return playing

    def close(self) -> None:
        """End the microphone; what is still to be played is not."""
        self._closed.set()

    async def __anext__(self) -> rtc.AudioFrame:
        if self.started_at is None:
            self.started_at = self._now()
        due = self.started_at + (self._sent + self._frame) / RATE
        await self._wait_until(due)
        if self._closed.is_set():
            raise StopAsyncIteration
        samples = self._next(due)
        self._sent += self._frame
        if self._sent <= RECORDED_S_MAX * RATE:
            self._recorded.append(samples)
        return rtc.AudioFrame(samples.tobytes(), RATE, 1, self._frame)

    async def _wait_until(self, due: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, due - self._now())):
                await self._closed.wait()
        except TimeoutError:
            pass

    def _next(self, due: float) -> Samples:
        mixed = self._noise.normal(0, self._noise_floor, self._frame)
        if self._queue:
            playing = self._queue[0]
            began = due - self._frame / RATE
            part = playing.samples[playing.position : playing.position + self._frame]
            mixed[: len(part)] += part
            playing.started_at = began if playing.started_at is None else playing.started_at
            if playing.position < playing.voice_end <= playing.position + self._frame:
                playing.voice_ended_at = began + (playing.voice_end - playing.position) / RATE
            playing.position += self._frame
            if playing.position >= len(playing.samples):
                self._queue.pop(0)
                playing.finished.set()
        return np.clip(mixed, -32768, 32767).astype(np.int16)

    def recorded(self) -> Floats:
        """Everything that came out of the microphone since ``started_at``, at 16 kHz; two hours at most."""
        audio = np.concatenate(self._recorded) if self._recorded else np.zeros(0, np.int16)
        return audio.astype(np.float32) / np.float32(32768)


@dataclass(frozen=True, slots=True)
class PlayedSegment:
    """One reply as it was heard. ``audible_at``: when its first sound could be heard (``None``: none was)."""

    started_at: float | None
    audible_at: float | None
    played_s: float
    pushed_s: float
    interrupted: bool


class RecordingSpeaker(io.AudioOutput):
    """A sink of 24 kHz that takes the time playing takes. Behaves as a room's: nothing starts while it is paused, each
    captured segment is finished exactly once, frames after an interruption are dropped until the flush.

    ``segments`` holds what was played, in order. ``on_audible`` is called with ``time.time()`` at the moment the first
    sound of a segment comes out. Nothing is interpolated: the played position is exact to the sample.
    """

    def __init__(
        self,
        *,
        can_pause: bool = True,
        on_audible: Callable[[float], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            label="RecordingSpeaker",
            capabilities=io.AudioOutputCapabilities(pause=can_pause),
            sample_rate=SPEAKER_RATE,
        )
        self._now = now
        self._on_audible = on_audible or (lambda _: None)
        self.segments: list[PlayedSegment] = []
        self._runs: list[tuple[float, Samples]] = []
        self._recorded_s = 0.0
        self._paused = False
        self._end_timer: asyncio.TimerHandle | None = None
        self._audible_timer: asyncio.TimerHandle | None = None
        self._free = asyncio.Event()  # cleared from a segment's flush until it is finished
        self._begin_segment()

    def _begin_segment(self) -> None:
        self._cancel_timers()
        self._buffer: list[Samples] = []
        self._pushed = 0  # samples captured
        self._played = 0  # samples that are past, without the run that is going on
        self._run_at: float | None = None  # when the run that is going on began
        self._started_at: float | None = None
        self._audible: int | None = None  # index of the first audible sample
        self._audible_at: float | None = None
        self._flushed = False
        self._interrupted = False
        self._free.set()

    @property
    def position_s(self) -> float:
        """How much of the current segment has been played."""
        return self._position(self._now()) / SPEAKER_RATE

    def _position(self, now: float) -> int:
        if self._run_at is None:
            return self._played
        return min(self._pushed, self._played + max(0, int((now - self._run_at) * SPEAKER_RATE)))

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        await self._free.wait()
        if self._interrupted:
            return
        samples = np.frombuffer(frame.data, np.int16).copy()
        now = self._now()
        if self._position(now) == self._pushed:
            self._end_run(now)  # ran dry: what comes now is heard later than it would have been
        if self._audible is None:
            loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > AUDIBLE)
            self._audible = self._pushed + int(loud[0]) if len(loud) else None
        self._buffer.append(samples)
        self._pushed += len(samples)
        self._go_on(now)

    def flush(self) -> None:
        super().flush()
        if not self._pushed:
            return
        self._flushed = True
        self._free.clear()
        if self._interrupted:
            self._finish_soon()
        else:
            self._arm()

    def clear_buffer(self) -> None:
        if not self._pushed or self._interrupted:
            return
        self._end_run(self._now())
        self._interrupted = True
        if self._flushed:
            self._finish_soon()

    def pause(self) -> None:
        super().pause()
        if not self._paused:
            self._paused = True
            if not self._interrupted:
                self._end_run(self._now())

    def resume(self) -> None:
        super().resume()
        if self._paused:
            self._paused = False
            self._go_on(self._now())

    def close(self) -> None:
        """Stop at once. A segment under way is never finished: its session is gone."""
        self._cancel_timers()

    def _go_on(self, now: float) -> None:
        if self._paused or self._interrupted or self._played >= self._pushed:
            return
        if self._run_at is None:
            self._run_at = now
            if self._started_at is None:
                self._started_at = now
                self.on_playback_started(created_at=now)
        self._arm()

    def _arm(self) -> None:
        """Set the timers for what this run will come to: the first sound, the end of a flushed segment."""
        self._cancel_timers()
        if self._run_at is None:
            return
        loop, now = asyncio.get_running_loop(), self._now()
        if self._audible is not None and self._audible_at is None:
            due = self._run_at + (self._audible - self._played) / SPEAKER_RATE
            self._audible_timer = loop.call_later(max(0.0, due - now), self._heard, due)
        if self._flushed:
            ends = self._run_at + (self._pushed - self._played) / SPEAKER_RATE
            self._end_timer = loop.call_later(max(0.0, ends - now), self._finish)

    def _heard(self, at: float) -> None:
        self._audible_at = at
        self._on_audible(at)

    def _end_run(self, now: float) -> None:
        """Close the run that is going on, at ``now`` or where the audio ended."""
        self._cancel_timers()
        position = self._position(now)
        started_at, first = self._run_at, self._played
        self._run_at, self._played = None, position
        if started_at is None or position == first:
            return
        if self._audible is not None and self._audible_at is None and self._audible < position:
            self._heard(started_at + (self._audible - first) / SPEAKER_RATE)
        duration_s = (position - first) / SPEAKER_RATE
        self._record(started_at, np.concatenate(self._buffer)[first:position])
        self.on_playback_progressed(started_at=started_at, offset=first / SPEAKER_RATE, duration=duration_s)

    def _record(self, started_at: float, samples: Samples) -> None:
        self._recorded_s += len(samples) / SPEAKER_RATE
        if self._recorded_s <= RECORDED_S_MAX:
            self._runs.append((started_at, samples))

    def _finish_soon(self) -> None:
        # Not at once: whoever flushes or clears has wrappers that are still to hear of it.
        self._end_timer = asyncio.get_running_loop().call_later(0, self._finish)

    def _finish(self) -> None:
        interrupted = self._interrupted
        if not interrupted:
            # The timer fires at the end of the audio, whatever the clock's rounding says.
            self._end_run(self._now() + FRAME_S)
        played_s = self._played / SPEAKER_RATE
        self.segments.append(
            PlayedSegment(self._started_at, self._audible_at, played_s, self._pushed / SPEAKER_RATE, interrupted)
        )
        self._begin_segment()
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)

    def _cancel_timers(self) -> None:
        for timer in (self._end_timer, self._audible_timer):
            if timer is not None:
                timer.cancel()
        self._end_timer = self._audible_timer = None

    def recorded(self, since: float) -> Floats:
        """What was heard from ``since`` (``time.time()``) on, at 24 kHz with silence between; two hours at most."""
        placed = [(round((at - since) * SPEAKER_RATE), samples) for at, samples in self._runs if at >= since]
        track = np.zeros(max((at + len(samples) for at, samples in placed), default=0), np.float32)
        for at, samples in placed:
            track[at : at + len(samples)] = samples.astype(np.float32) / 32768
        return track


def write_call_recording(path: str | os.PathLike[str], microphone: WavMicrophone, speaker: RecordingSpeaker) -> None:
    """Write both sides of a call on one time line, 24 kHz: caller left, agent right. Blocking.

    Raises:
        BadRecording: it can't be written there.
    """
    since = microphone.started_at if microphone.started_at is not None else time.time()
    caller = resample(microphone.recorded(), RATE, SPEAKER_RATE)
    write_two_channel_wav(path, caller, speaker.recorded(since), SPEAKER_RATE)
