"""What a caller heard of each reply: text that went into a voice, audio that came out of it, and how much was played.

LiveKit stores the whole text of an interrupted reply, unless a ``TranscriptSynchronizer`` paces it at a guessed speed.
Here the played position of whatever audio output there is decides: a tap around ``tts_node`` sees text and audio, an
``AudioOutput`` at the head of the output's chain sees what was handed over and how much of it was played.

Above: plugin. Below: spoken, clock. One of the two places that know livekit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit import rtc
from livekit.agents import ModelSettings
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from livekit.agents.utils import is_given
from livekit.agents.voice import io

from memory.clock import Clock
from memory.models import Mode
from memory.spoken import Loudness, Piece, Spoken, heard, seconds_per_letter

_VOICE_MARGIN = 1.1  # a voice's next sentence may be this much slower than the last

TtsNode = Callable[[AsyncIterable[str], ModelSettings], Any]


@dataclass
class Utterance:
    """One synthesis: the text that went in and the audio that has come out so far."""

    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    loudness: Loudness = field(default_factory=Loudness)
    made_s: float = 0.0
    complete: bool = False
    played: bool = False  # an audio output has begun to take its frames

    async def hearing(self, text: AsyncIterable[str]) -> AsyncIterator[str]:
        async for part in text:
            if isinstance(part, str):  # structured output sends other things through the same way
                self.text += part
            yield part

    async def watching(self, frames: AsyncIterable[rtc.AudioFrame]) -> AsyncIterator[rtc.AudioFrame]:
        async for frame in frames:
            self.take(frame)
            yield frame
        self.complete = True

    def take(self, frame: rtc.AudioFrame) -> None:
        for timed in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or ():
            if isinstance(timed, TimedString) and is_given(timed.start_time):
                end_s = timed.end_time if is_given(timed.end_time) else None
                self.pieces.append(Piece(str(timed), timed.start_time, end_s))
        _measure(self.loudness, frame)
        self.made_s += frame.duration


def _measure(loudness: Loudness, frame: rtc.AudioFrame) -> None:
    loudness.add(np.frombuffer(frame.data, np.int16)[:: frame.num_channels], frame.sample_rate)


@dataclass
class Segment:
    """What an audio output was given between two flushes. ``utterance`` is ``None`` for audio without a synthesis of
    the session's own: a recording, a realtime model."""

    utterance: Utterance | None
    loudness: Loudness = field(default_factory=Loudness)
    pushed_s: float = 0.0
    flushed: bool = False
    reported_s: float | None = None  # how far the output itself says that it came, run by run
    heard_s: float = 0.0
    whole: bool = False  # played to its end
    _plays_until_s: float = 0.0

    def take(self, frame: rtc.AudioFrame, now_s: float) -> None:
        if self.utterance is None:
            _measure(self.loudness, frame)
        self.pushed_s += frame.duration
        self._plays_until_s = max(self._plays_until_s, now_s) + frame.duration

    def finish(self, position_s: float, *, interrupted: bool, now_s: float) -> None:
        if not interrupted or self.reported_s is not None:
            self.heard_s = max(position_s, self.reported_s or 0.0)
        else:
            # Some outputs count the time in which they had nothing to play: no more than could be played was heard.
            self.heard_s = min(position_s, self.pushed_s - max(0.0, self._plays_until_s - now_s))
        self.whole = not interrupted


@dataclass
class Speech:
    """One ``SpeechHandle``: everything the agent says in answer to one turn, tool steps included."""

    modality: Mode = "voice"
    handle_id: str = ""
    user_item_id: str | None = None
    utterances: list[Utterance] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def begin_utterance(self) -> Utterance:
        self.utterances.append(utterance := Utterance())
        return utterance

    def next_played(self) -> Utterance | None:
        """The utterance that an output begins to play: they are played in the order they were made in."""
        utterance = next((made for made in self.utterances if made.made_s and not made.played), None)
        if utterance is not None:
            utterance.played = True
        return utterance


# Set when a speech is created, in the context that its tasks are started from: each task of a speech finds its own.
current_speech: ContextVar[Speech | None] = ContextVar("memory_speech", default=None)


class Ear:
    """Knows what was heard of each speech of one session. ``gate`` is awaited before the first frame of a segment."""

    def __init__(self, clock: Clock, gate: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self._gate = gate
        self._voice: float | None = None

    def tap(self, node: TtsNode) -> TtsNode:
        """``node`` with its text and audio listened to; of whatever kind ``node`` returns."""

        async def tts_node(text: AsyncIterable[str], model_settings: ModelSettings) -> Any:
            speech = current_speech.get()
            utterance = speech.begin_utterance() if speech is not None else Utterance()
            frames = node(utterance.hearing(text), model_settings)
            if inspect.iscoroutine(frames):
                frames = await frames
            return utterance.watching(frames) if isinstance(frames, AsyncIterable) else frames

        return tts_node

    def over(self, output: io.AudioOutput | None) -> HeardOutput | None:
        """``output`` with an ear at its head; ``None`` where there is no output, or an ear of ours already."""
        link = output
        while link is not None:
            if isinstance(link, HeardOutput) and link.ear is self:
                return None
            link = link.next_in_chain
        return HeardOutput(self, output) if output is not None else None

    async def before_first_frame(self) -> None:
        await self._gate()

    def now_s(self) -> float:
        return self._clock.monotonic()

    def heard_of(self, speech: Speech | None, text: str, *, interrupted: bool, realtime: bool) -> str:
        """The part of a reply's ``text`` that was heard; "" for none. ``text`` itself where nothing is known of it.

        Takes what was played since the speech's last reply: call it once for each, in order.
        """
        segments = _taken(speech, one=realtime and not interrupted)
        for segment in segments:
            self._learn(segment)
        if not interrupted or not segments:
            return text
        if realtime or any(segment.utterance is None for segment in segments):
            return self._heard_of_audio(segments[-1], text)
        parts = [self._heard_of_utterance(segment, segment.utterance) for segment in segments if segment.utterance]
        return " ".join(part.strip() for part in parts if part.strip())

    def _heard_of_utterance(self, segment: Segment, utterance: Utterance) -> str:
        if segment.whole and utterance.complete:
            return utterance.text
        steps = utterance.loudness.steps()
        spoken = Spoken(utterance.text, utterance.pieces, steps, utterance.complete, self._voice)
        return heard(spoken, segment.heard_s)

    def _heard_of_audio(self, segment: Segment, text: str) -> str:
        if segment.whole:
            return text
        return heard(Spoken(text, (), segment.loudness.steps(), segment.flushed, self._voice), segment.heard_s)

    def _learn(self, segment: Segment) -> None:
        made = segment.utterance
        if made is not None and made.complete and segment.whole:
            voice = seconds_per_letter(Spoken(made.text, (), made.loudness.steps(), complete=True))
            self._voice = voice * _VOICE_MARGIN if voice is not None else self._voice


def _taken(speech: Speech | None, *, one: bool) -> list[Segment]:
    if speech is None:
        return []
    # A realtime model's replies are all reported at the end, one for each segment; a pipeline's each after its own.
    count = 1 if one else len(speech.segments)
    segments, speech.segments = speech.segments[:count], speech.segments[count:]
    return segments


class HeardOutput(io.AudioOutput):
    """Hands everything on to the output below, and keeps how much of each segment was played."""

    def __init__(self, ear: Ear, output: io.AudioOutput) -> None:
        super().__init__(
            label="Memory", next_in_chain=output, capabilities=io.AudioOutputCapabilities(pause=True), sample_rate=None
        )
        self.ear = ear
        self._segment: Segment | None = None
        self._playing: deque[Segment] = deque()

    @property
    def sample_rate(self) -> int | None:
        return self._below.sample_rate

    @property
    def _below(self) -> io.AudioOutput:
        assert self.next_in_chain is not None
        return self.next_in_chain

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        now_s = self.ear.now_s()
        if self._segment is None:
            await self.ear.before_first_frame()
            now_s = self.ear.now_s()
        # The output below first: it may be cancelled before it has taken the frame, and must not be waited for then.
        await self._below.capture_frame(frame)
        await super().capture_frame(frame)
        if self._segment is None:
            self._segment = self._begin()
        self._segment.take(frame, now_s)

    def _begin(self) -> Segment:
        speech = current_speech.get()
        segment = Segment(speech.next_played() if speech is not None else None)
        self._playing.append(segment)
        if speech is not None:
            speech.segments.append(segment)
        return segment

    def flush(self) -> None:
        super().flush()
        if self._segment is not None:
            self._segment.flushed = not _cancelled()
            self._segment = None
        self._below.flush()

    def clear_buffer(self) -> None:
        self._below.clear_buffer()

    def on_playback_progressed(self, *, started_at: float, offset: float, duration: float) -> None:
        if self._playing:
            segment = self._playing[0]
            segment.reported_s = max(segment.reported_s or 0.0, offset + duration)
        super().on_playback_progressed(started_at=started_at, offset=offset, duration=duration)

    def on_playback_finished(
        self, *, playback_position: float, interrupted: bool, synchronized_transcript: str | None = None
    ) -> None:
        if self._playing:
            self._playing.popleft().finish(playback_position, interrupted=interrupted, now_s=self.ear.now_s())
        super().on_playback_finished(
            playback_position=playback_position,
            interrupted=interrupted,
            synchronized_transcript=synchronized_transcript,
        )


def _cancelled() -> bool:
    """Whether the flush comes from a forwarding task that is being cancelled: its audio is not whole then."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
