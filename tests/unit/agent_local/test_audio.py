"""The microphone and the speaker without a room. Their clock is the test's, so that positions are exact."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from livekit import rtc
from livekit.agents.voice import io

from agent.local.audio import SPEAKER_RATE, RecordingSpeaker, WavMicrophone, write_call_recording
from agent.local.wav import RATE, read_wav


class Now:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def _frame(seconds: float, level: int = 1000) -> rtc.AudioFrame:
    count = int(SPEAKER_RATE * seconds)
    return rtc.AudioFrame(np.full(count, level, np.int16).tobytes(), SPEAKER_RATE, 1, count)


class Heard:
    """Listens to a speaker's events."""

    def __init__(self, speaker: io.AudioOutput) -> None:
        self.started: list[float] = []
        self.runs: list[tuple[float, float, float]] = []
        self.finished: list[tuple[float, bool]] = []
        speaker.on("playback_started", lambda event: self.started.append(event.created_at))
        speaker.on(
            "playback_progressed",
            lambda event: self.runs.append((event.started_at, round(event.offset, 4), round(event.duration, 4))),
        )
        speaker.on(
            "playback_finished",
            lambda event: self.finished.append((round(event.playback_position, 4), event.interrupted)),
        )


async def _finished(speaker: RecordingSpeaker) -> None:
    async with asyncio.timeout(5):
        await speaker.wait_for_playout()


async def test_a_segment_plays_to_its_end() -> None:
    now = Now()
    audible: list[float] = []
    speaker = RecordingSpeaker(on_audible=audible.append, now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(0.05, level=0))
    await speaker.capture_frame(_frame(0.05))
    speaker.flush()
    now.time += 0.1
    await _finished(speaker)
    assert heard.started == [1000.0]
    assert heard.finished == [(0.1, False)]
    assert heard.runs == [(1000.0, 0.0, 0.1)]
    assert [round(at, 4) for at in audible] == [1000.05]
    (segment,) = speaker.segments
    assert (segment.started_at, segment.interrupted) == (1000.0, False)
    assert segment.audible_at is not None
    assert round(segment.audible_at, 4) == 1000.05
    assert len(speaker.recorded(1000.0)) == SPEAKER_RATE // 10


async def test_an_interruption_keeps_what_was_played_and_no_more() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(5))
    speaker.flush()
    now.time += 1.25
    speaker.clear_buffer()
    await _finished(speaker)
    assert heard.finished == [(1.25, True)]
    assert len(speaker.recorded(1000.0)) == int(1.25 * SPEAKER_RATE)
    assert speaker.segments[0].pushed_s == 5


async def test_frames_after_an_interruption_are_dropped_until_the_flush() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(5))
    now.time += 1
    speaker.clear_buffer()
    await speaker.capture_frame(_frame(5))
    now.time += 1
    assert heard.finished == []
    speaker.flush()
    await _finished(speaker)
    assert heard.finished == [(1.0, True)]


async def test_nothing_starts_while_paused() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    speaker.pause()
    await speaker.capture_frame(_frame(1))
    speaker.flush()
    now.time += 10
    assert (heard.started, speaker.position_s) == ([], 0)
    speaker.resume()
    assert heard.started == [1010.0]
    now.time += 0.5
    assert speaker.position_s == 0.5
    speaker.clear_buffer()
    await _finished(speaker)
    assert heard.finished == [(0.5, True)]


async def test_a_pause_holds_the_position() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(3))
    speaker.flush()
    now.time += 0.5
    speaker.pause()
    now.time += 7
    assert speaker.position_s == 0.5
    speaker.resume()
    now.time += 0.25
    speaker.clear_buffer()
    await _finished(speaker)
    assert heard.started == [1000.0]
    assert heard.runs == [(1000.0, 0.0, 0.5), (1007.5, 0.5, 0.25)]
    assert heard.finished == [(0.75, True)]
    track = speaker.recorded(1000.0)
    assert len(track) == int(7.75 * SPEAKER_RATE)
    assert track[: SPEAKER_RATE // 2].all()
    assert not track[SPEAKER_RATE // 2 : int(7.5 * SPEAKER_RATE)].any()


async def test_audio_that_comes_late_is_heard_late() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(0.5))
    now.time += 2
    await speaker.capture_frame(_frame(0.5))
    speaker.flush()
    now.time += 0.25
    speaker.clear_buffer()
    await _finished(speaker)
    assert heard.finished == [(0.75, True)]
    assert heard.runs == [(1000.0, 0.0, 0.5), (1002.0, 0.5, 0.25)]


async def test_an_interruption_while_paused_before_the_start_played_nothing() -> None:
    speaker = RecordingSpeaker(now=Now())
    heard = Heard(speaker)
    speaker.pause()
    await speaker.capture_frame(_frame(1))
    speaker.flush()
    speaker.clear_buffer()
    await _finished(speaker)
    assert heard.finished == [(0.0, True)]
    assert speaker.segments[0].started_at is None


async def test_clearing_and_flushing_nothing_finishes_nothing() -> None:
    speaker = RecordingSpeaker(now=Now())
    heard = Heard(speaker)
    speaker.clear_buffer()
    speaker.flush()
    await _finished(speaker)
    assert heard.finished == []


async def test_the_next_segment_waits_for_the_one_before() -> None:
    now = Now()
    speaker = RecordingSpeaker(now=now)
    heard = Heard(speaker)
    await speaker.capture_frame(_frame(5))
    speaker.flush()
    coming = asyncio.create_task(speaker.capture_frame(_frame(1)))
    await asyncio.sleep(0)
    assert not coming.done()
    now.time += 1
    speaker.clear_buffer()
    async with asyncio.timeout(5):
        await coming
    assert heard.finished == [(1.0, True)]
    assert heard.started == [1000.0, 1001.0]
    speaker.close()


async def _frames(microphone: WavMicrophone, now: Now, count: int) -> list[np.ndarray[tuple[int], np.dtype[np.int16]]]:
    got = []
    for _ in range(count):
        now.time += 0.02
        frame = await microphone.__anext__()
        got.append(np.frombuffer(frame.data, np.int16))
    return got


async def test_the_microphone_is_never_quite_silent_and_plays_in_order() -> None:
    now = Now()
    microphone = WavMicrophone(now=now)
    (quiet,) = await _frames(microphone, now, 1)
    assert 0 < np.abs(quiet).max() < 200
    speech = np.concatenate([np.full(640, 0.5), np.zeros(320)]).astype(np.float32)
    first, second = microphone.play(speech), microphone.play(np.full(320, -0.5, np.float32))
    frames = await _frames(microphone, now, 4)
    assert [int(frame.mean() > 8000) - int(frame.mean() < -8000) for frame in frames] == [1, 1, 0, -1]
    assert first.finished.is_set()
    assert second.finished.is_set()


async def test_the_microphone_knows_when_the_voice_began_and_ended() -> None:
    now = Now()
    microphone = WavMicrophone(now=now)
    await _frames(microphone, now, 1)
    assert microphone.started_at is not None
    playing = microphone.play(np.concatenate([np.full(480, 0.5), np.zeros(480)]).astype(np.float32))
    await _frames(microphone, now, 3)
    assert playing.started_at is not None
    assert playing.voice_ended_at is not None
    assert round(playing.started_at - microphone.started_at, 4) == 0.02
    assert round(playing.voice_ended_at - playing.started_at, 4) == 0.03


async def test_closing_ends_the_microphone_at_once() -> None:
    microphone = WavMicrophone(now=Now())
    waiting = asyncio.create_task(anext(microphone, None))
    await asyncio.sleep(0)
    microphone.close()
    async with asyncio.timeout(5):
        assert await waiting is None


async def test_playing_nothing_is_finished_already() -> None:
    assert WavMicrophone(now=Now()).play(np.zeros(0, np.float32)).finished.is_set()


async def test_a_call_is_recorded_on_one_time_line(tmp_path: Path) -> None:
    now = Now()
    microphone, speaker = WavMicrophone(now=now), RecordingSpeaker(now=now)
    microphone.play(np.full(RATE // 10, 0.5, np.float32))
    await _frames(microphone, now, 5)
    await speaker.capture_frame(_frame(0.1, level=16_000))
    speaker.flush()
    await _frames(microphone, now, 5)
    await _finished(speaker)
    path = tmp_path / "call.wav"
    write_call_recording(path, microphone, speaker)
    recording = read_wav(path)
    assert (recording.source_rate, recording.channels) == (SPEAKER_RATE, 2)
    assert abs(recording.duration_s - 0.2) < 0.03
