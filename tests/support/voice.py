"""A voice session's other half for tests, all scripted: microphone, STT, TTS with known word times, audio outputs.

Nothing here sleeps or looks at the time: what happens next is up to the test. The models are real ``livekit.agents``
ones behind their own interfaces, so that a real ``AgentSession`` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from livekit import rtc
from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, LanguageCode, stt, tts, utils
from livekit.agents.types import NOT_GIVEN, NotGivenOr, TimedString
from livekit.agents.voice import io

RATE = 24_000
WAIT_S = 20.0  # a hung test fails; nothing waits this long when it works


async def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the loop run until ``condition`` holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what} never came about") from None


# -- TTS ---------------------------------------------------------------------------------------------------------------


class SpokenWord(NamedTuple):
    """A word and when it really sounds, in seconds from the start of its text's audio."""

    text: str
    start_s: float
    end_s: float


def spoken_words(text: str, *, seed: int = 7) -> list[SpokenWord]:
    """``text`` as the voice speaks it: uneven words without gaps, pauses at punctuation, some silence around."""
    uneven = np.random.default_rng(seed)
    now_s, words = 0.08, []
    for word in text.split():
        letters = sum(character.isalnum() for character in word)
        letter_s = uneven.uniform(0.03, 0.095, letters).sum()  # each letter its own: as a real voice was measured
        length_s = 0.01 + float(letter_s) * float(uneven.uniform(0.9, 1.1))
        words.append(SpokenWord(word, now_s, now_s + length_s))
        now_s += length_s
        if word[-1] in ".!?":
            now_s += float(uneven.uniform(0.35, 0.5))
        elif word[-1] in ",;:":
            now_s += float(uneven.uniform(0.2, 0.35))
    return words


def samples_of(words: Sequence[SpokenWord]) -> rtc.AudioFrame:
    """The sound of ``words``: noise where there is voice, near silence elsewhere."""
    noise = np.random.default_rng(3)
    total = round((words[-1].end_s + 0.2 if words else 0.1) * RATE)
    sound = noise.normal(0, 12, total)
    for word in words:
        first, last = round(word.start_s * RATE), round(word.end_s * RATE)
        sound[first:last] += noise.normal(0, 5_000, last - first)
    data = np.clip(sound, -32_000, 32_000).astype(np.int16)
    return rtc.AudioFrame(data.tobytes(), RATE, 1, total)


Alignment = Literal["words", "sentences", "none"]


class WordTTS(tts.TTS[Any]):
    """A voice whose true word times are known (``spoken_words``).

    ``words``: streams, and tells each word's times. ``sentences``: one sentence a call, as most services do, so that
    livekit tells when each begins. ``none``: streams and tells nothing. ``hold``: cleared, no audio comes.
    """

    def __init__(self, alignment: Alignment = "words") -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(
                streaming=alignment != "sentences", aligned_transcript=alignment == "words"
            ),
            sample_rate=RATE,
            num_channels=1,
        )
        self.alignment = alignment
        self.said: list[SpokenWord] = []  # every word, with its time from the start of all audio made so far
        self._made_s = 0.0
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def model(self) -> str:
        return "words"

    @property
    def provider(self) -> str:
        return "test"

    def speak(self, words: Sequence[SpokenWord]) -> bytes:
        """The sound of ``words``, and a note of when each will have been heard."""
        sound = samples_of(words)
        self.said += [SpokenWord(text, start + self._made_s, end + self._made_s) for text, start, end in words]
        self._made_s += sound.duration
        return bytes(sound.data)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return _WordChunks(tts=self, input_text=text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> tts.SynthesizeStream:
        return _WordStream(tts=self, conn_options=conn_options)


class _WordChunks(tts.ChunkedStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        voice = self._tts
        assert isinstance(voice, WordTTS)
        output_emitter.initialize(request_id=utils.shortuuid(), sample_rate=RATE, num_channels=1, mime_type="audio/pcm")
        await voice.hold.wait()
        output_emitter.push(voice.speak(spoken_words(self._input_text)))
        output_emitter.flush()


class _WordStream(tts.SynthesizeStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        voice = self._tts
        assert isinstance(voice, WordTTS)
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=utils.shortuuid())
        text = ""
        async for part in self._input_ch:
            text += part if isinstance(part, str) else ""
        self._mark_started()
        words = spoken_words(text)
        await voice.hold.wait()
        if voice.alignment == "words":
            for word in words:
                output_emitter.push_timed_transcript(
                    TimedString(f"{word.text} ", start_time=word.start_s, end_time=word.end_s)
                )
        output_emitter.push(voice.speak(words))
        output_emitter.end_segment()


# -- STT and microphone ------------------------------------------------------------------------------------------------


class SilentMicrophone(io.AudioInput):
    """A microphone into which nobody speaks: what is heard comes from ``ScriptedSTT``."""

    def __init__(self) -> None:
        super().__init__(label="SilentMicrophone")
        self._never = asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        await self._never.wait()
        raise StopAsyncIteration


class ScriptedSTT(stt.STT[Any]):
    """Hears what the test says, with interims. For ``turn_detection="stt"``: ``turn`` also ends the turn."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self._streams: list[_ScriptedRecognition] = []

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.RecognizeStream:
        stream = _ScriptedRecognition(stt=self, conn_options=conn_options, sample_rate=RATE)
        self._streams.append(stream)
        return stream

    async def turn(
        self,
        final: str,
        *,
        interims: Sequence[str] = (),
        preflight: bool = True,
        language: str = "en",
        confidence: float = 0.9,
    ) -> None:
        """The user says ``final``. ``preflight``: it is guessed before it is final, so that livekit replies early."""
        await self.send(stt.SpeechEventType.START_OF_SPEECH)
        for interim in interims:
            await self.send(stt.SpeechEventType.INTERIM_TRANSCRIPT, interim, language, confidence)
        if preflight:
            await self.send(stt.SpeechEventType.PREFLIGHT_TRANSCRIPT, final, language, confidence)
        await self.send(stt.SpeechEventType.FINAL_TRANSCRIPT, final, language, confidence)
        await self.send(stt.SpeechEventType.END_OF_SPEECH)

    async def send(
        self, kind: stt.SpeechEventType, text: str = "", language: str = "en", confidence: float = 0.9
    ) -> None:
        await eventually(lambda: self._streams, "a session that listens")
        heard = [stt.SpeechData(language=LanguageCode(language), text=text, confidence=confidence)] if text else []
        self._streams[-1].events.put_nowait(stt.SpeechEvent(type=kind, alternatives=heard))
        await asyncio.sleep(0)


class _ScriptedRecognition(stt.RecognizeStream):
    def __init__(self, **options: Any) -> None:
        self.events: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()
        super().__init__(**options)

    async def _run(self) -> None:
        while True:
            self._event_ch.send_nowait(await self.events.get())


# -- audio outputs -----------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """A segment that an output was done with."""

    pushed_s: float
    position_s: float
    interrupted: bool


class ManualOutput(io.AudioOutput):
    """An output whose playing the test decides: a segment ends by ``finish``, or at ``position_s`` when it is cut off.

    ``instant``: a segment is over as soon as it is flushed. ``reports_runs``: tells what it played run by run, as a
    room's output does. ``before_frame`` is awaited before each first frame of a segment is taken.
    """

    def __init__(
        self,
        *,
        instant: bool = False,
        can_pause: bool = True,
        reports_runs: bool = False,
        sample_rate: int | None = RATE,
    ) -> None:
        super().__init__(
            label="ManualOutput",
            capabilities=io.AudioOutputCapabilities(pause=can_pause),
            sample_rate=sample_rate,
        )
        self._instant = instant
        self._reports_runs = reports_runs
        self._flushed = False
        self.position_s = 0.0
        self.pushed_s = 0.0
        self.played: list[Played] = []
        self.on_first_frame: Callable[[int], None] = lambda _: None  # gets how many segments were finished before

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        first = self.pushed_s == 0
        self.pushed_s += frame.duration
        if first:
            self.on_first_frame(len(self.played))
            self.on_playback_started(created_at=0.0)

    def flush(self) -> None:
        super().flush()
        self._flushed = self.pushed_s > 0
        if self._instant:
            self.finish()

    @property
    def whole(self) -> bool:
        """Whether everything of the segment that is to be played has arrived."""
        return self._flushed

    def finish(self) -> None:
        """The segment is played to its end."""
        if self.pushed_s:
            self._end(self.pushed_s, interrupted=False)

    def clear_buffer(self) -> None:
        if self.pushed_s:
            self._end(min(self.position_s, self.pushed_s), interrupted=True)

    def _end(self, position_s: float, *, interrupted: bool) -> None:
        self.played.append(Played(self.pushed_s, position_s, interrupted))
        self.pushed_s, self._flushed = 0.0, False
        if self._reports_runs and position_s:
            self.on_playback_progressed(started_at=0.0, offset=0.0, duration=position_s)
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)


class Lines(io.TextOutput):
    """Keeps the text that a session shows."""

    def __init__(self) -> None:
        super().__init__(label="Lines", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        self.text += "\n"


async def frames_of(text: str) -> AsyncIterator[rtc.AudioFrame]:
    """A recording of ``text`` in the voice, for ``session.say(audio=…)``."""
    yield samples_of(spoken_words(text))
