"""A livekit STT that needs no key: VAD here, words by the speech host.

While somebody speaks, what was said so far is heard every 0.6 s (interims). As soon as the voice pauses, the whole is
heard at once, without waiting for the end: that guess is sent as a preflight transcript, and is the final one if the
pause turns out to be the end. Who evidently has not said everything (``unfinished``) is given more time, and what comes
in it is heard as one with what was before; not where turns end without waiting for the words, whose first half would
else be answered. Above: worker, chat, call. Below: client, unfinished.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from livekit import rtc
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectionError,
    APIConnectOptions,
    APIError,
    LanguageCode,
    NotGivenOr,
    inference,
    stt,
    utils,
    vad,
)
from numpy.typing import NDArray

from agent.local.client import SpeechService
from agent.local.models import LISTEN_RATE, LISTEN_S_MAX, LocalSpeechUnavailable, Transcript, quiet_cut
from agent.local.unfinished import is_unfinished
from memory.clock import Clock, SystemClock
from memory.errors import HostUnavailable

INTERIM_EVERY_S = 0.6
GUESS_AFTER_S = 0.06
SILENCE_S = 0.25  # of the VAD: this long a pause ends an utterance
MORE_S = 0.45  # and so much longer a one, where it breaks off
_ENGLISH = LanguageCode("en")
_Event = stt.SpeechEventType


@asynccontextmanager
async def as_api_errors() -> AsyncIterator[None]:
    """Turn this package's errors into those livekit knows how to retry and report."""
    try:
        yield
    except LocalSpeechUnavailable as error:
        raise APIError(str(error), retryable=False) from error
    except HostUnavailable as error:
        raise APIConnectionError(str(error)) from error


class LocalSTT(stt.STT):  # type: ignore[type-arg] # livekit leaves it open too
    """English speech to text, streaming, with interims, preflight transcripts and confidence.

    ``client`` stays the caller's to close; ``voice`` finds speech (default: the bundled silero). ``preflight=False``
    keeps the guess to itself: a reply comes about 80 ms later, and a speaker who pauses and goes on never costs a
    second LLM call.
    """

    def __init__(
        self,
        client: SpeechService,
        *,
        preflight: bool = True,
        voice: vad.VAD | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.client = client
        self.clock = clock or SystemClock()
        self.preflight = preflight
        self.more_s = MORE_S  # 0 where nobody waits for ``told``
        self.vad = voice or inference.VAD(min_silence_duration=SILENCE_S)
        self._warming: asyncio.Task[None] | None = None
        self._streams: weakref.WeakSet[LocalSpeechStream] = weakref.WeakSet()

    @property
    def model(self) -> str:
        return "whisper-tiny.en"

    @property
    def provider(self) -> str:
        return "local"

    def prewarm(self) -> None:
        """Start the speech host, so that the first words need not wait for it."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        # A failure shows, with its reason, at the first words; there is nobody to tell it to before.
        with contextlib.suppress(HostUnavailable, LocalSpeechUnavailable):
            await self.client.ensure()

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        async with as_api_errors():
            transcript = await self.client.listen(await asyncio.to_thread(_samples, buffer))
        return _event(_Event.FINAL_TRANSCRIPT, transcript)

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> LocalSpeechStream:
        stream = LocalSpeechStream(self, conn_options)
        self._streams.add(stream)
        return stream

    async def told(self) -> None:
        """Return once whoever listens to this has the words of all that was said: at once, when nobody speaks. It has
        to say for itself that a final has arrived (``final_arrived``)."""
        for stream in list(self._streams):
            await stream.told.wait()

    def final_arrived(self) -> None:
        """A final transcript is where it is needed."""
        for stream in list(self._streams):
            stream.final_arrived()

    async def aclose(self) -> None:
        if self._warming is not None:
            await utils.aio.cancel_and_wait(self._warming)


def _event(kind: stt.SpeechEventType, transcript: Transcript, *, end_time: float | None = None) -> stt.SpeechEvent:
    data = stt.SpeechData(language=_ENGLISH, text=transcript.text, confidence=transcript.confidence)
    return stt.SpeechEvent(type=kind, alternatives=[data], speech_end_time=end_time)


def _samples(buffer: utils.AudioBuffer) -> NDArray[np.int16]:
    frame = utils.merge_frames(buffer)
    frames = [frame]
    if frame.sample_rate != LISTEN_RATE:
        resampler = rtc.AudioResampler(frame.sample_rate, LISTEN_RATE, num_channels=frame.num_channels)
        frames = resampler.push(frame) + resampler.flush()
    audio = np.concatenate([np.frombuffer(f.data, np.int16) for f in frames] or [np.zeros(0, np.int16)])
    mono: NDArray[np.int16] = audio.reshape(-1, frame.num_channels).mean(axis=1).astype(np.int16)
    return mono


class _Utterance:
    """What has been said since the VAD heard somebody start."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.int16]] = []
        self.samples = 0
        self.heard = 0  # samples there were when the last interim began
        self.shown = False  # whether an interim or preflight of it went out

    def add(self, frames: list[rtc.AudioFrame]) -> None:
        for frame in frames:
            self._parts.append(np.frombuffer(frame.data, np.int16))
            self.samples += frame.samples_per_channel

    def audio(self) -> NDArray[np.int16]:
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.zeros(0, np.int16)]
        return self._parts[0]

    def take_head(self) -> NDArray[np.int16]:
        """The speech up to the quietest moment of its last seconds; the rest stays."""
        audio = self.audio()
        cut = quiet_cut(audio.astype(np.float32))
        self._parts, self.samples, self.heard = [audio[cut:]], len(audio) - cut, 0
        return audio[:cut]


class LocalSpeechStream(stt.RecognizeStream):
    """One microphone. What was said is never lost: an utterance whose host failed is heard when the stream retries."""

    def __init__(self, parent: LocalSTT, conn_options: APIConnectOptions) -> None:
        super().__init__(stt=parent, conn_options=conn_options, sample_rate=LISTEN_RATE)
        self._client = parent.client
        self._clock = parent.clock
        self._vad = parent.vad
        self._preflight = parent.preflight
        self._more_s = parent.more_s
        self._utterance: _Utterance | None = None
        self._interim: asyncio.Task[None] | None = None
        self._interim_took_s = 0.0
        self._guess: asyncio.Task[Transcript | None] | None = None
        self._waiting: asyncio.Task[None] | None = None  # for more of an utterance that breaks off
        self.told = asyncio.Event()
        self.told.set()

    def final_arrived(self) -> None:
        if self._utterance is None:  # else it was a part
            self.told.set()

    async def _run(self) -> None:
        voice = self._vad.stream()
        feeding = asyncio.create_task(self._feed(voice))
        try:
            async with as_api_errors():
                if self._utterance is not None:
                    self.told.clear()
                    self._finish(self._utterance, await self._heard(self._utterance), time.time())
                async for event in voice:
                    await self._on_voice(event)
                if self._waiting is not None:
                    await self._waiting
        finally:
            running = [task for task in (feeding, self._interim, self._guess, self._waiting) if task is not None]
            self._interim = self._guess = self._waiting = None
            self.told.set()  # should this have been the end
            await utils.aio.cancel_and_wait(*running)
            await voice.aclose()

    async def _feed(self, voice: vad.VADStream) -> None:
        silence = utils.audio.silence_frame(SILENCE_S * 2, LISTEN_RATE)
        async for item in self._input_ch:
            if isinstance(item, rtc.AudioFrame):
                voice.push_frame(item)
            else:
                # A flush: silence ends what is being said by the same way as a pause would, and in order.
                voice.push_frame(silence)
        voice.end_input()

    async def _on_voice(self, event: vad.VADEvent) -> None:
        if event.type == vad.VADEventType.START_OF_SPEECH:
            if self._waiting is not None:  # here is more of it, and its sound is there already
                waiting, self._waiting = self._waiting, None
                await utils.aio.cancel_and_wait(waiting)
                return
            self.told.clear()
            self._utterance = _Utterance()
            self._utterance.add(event.frames)
            started = time.time() - event.speech_duration - event.inference_duration
            self._event_ch.send_nowait(stt.SpeechEvent(type=_Event.START_OF_SPEECH, speech_start_time=started))
        elif self._utterance is None:
            return
        elif event.type == vad.VADEventType.INFERENCE_DONE:
            self._utterance.add(event.frames)
            if self._waiting is None:
                await self._while_speaking(self._utterance, event.raw_accumulated_silence)
        elif event.type == vad.VADEventType.END_OF_SPEECH:
            ended = time.time() - event.silence_duration - event.inference_duration
            transcript = await self._heard(self._utterance)
            if self._breaks_off(transcript):
                self._waiting = asyncio.create_task(self._wait_for_more(self._utterance, transcript, ended))
            else:
                self._finish(self._utterance, transcript, ended)

    def _breaks_off(self, transcript: Transcript) -> bool:
        return self._more_s > 0 and is_unfinished(transcript.text)

    async def _wait_for_more(self, utterance: _Utterance, transcript: Transcript, ended: float) -> None:
        await self._clock.sleep(self._more_s)
        self._waiting = None
        self._finish(utterance, transcript, ended)

    async def _while_speaking(self, utterance: _Utterance, silence_s: float) -> None:
        if silence_s >= GUESS_AFTER_S:
            if self._guess is None:
                self._guess = asyncio.create_task(self._make_guess(utterance))
        elif silence_s == 0:
            await self._drop_guess()  # the voice went on
            if utterance.samples >= LISTEN_S_MAX * LISTEN_RATE:
                self._send_final(utterance, await self._client.listen(utterance.take_head()), None)
            elif self._interim_is_due(utterance):
                utterance.heard = utterance.samples
                self._interim = asyncio.create_task(self._make_interim(utterance))

    def _interim_is_due(self, utterance: _Utterance) -> bool:
        # Long speech takes longer to hear: at most half of the time goes into interims.
        every_s = max(INTERIM_EVERY_S, 2 * self._interim_took_s)
        idle = self._interim is None or self._interim.done()
        return idle and utterance.samples - utterance.heard >= every_s * LISTEN_RATE

    async def _make_interim(self, utterance: _Utterance) -> None:
        started_s = time.monotonic()
        try:
            transcript = await self._client.listen(utterance.audio(), optional=True)
        except (HostUnavailable, LocalSpeechUnavailable):
            return  # an interim is a courtesy: the final is asked for again, and tells
        self._interim_took_s = time.monotonic() - started_s
        # After a guess an interim would only unsettle the reply that is being prepared.
        if transcript.text and self._utterance is utterance and self._guess is None:
            utterance.shown = True
            self._event_ch.send_nowait(_event(_Event.INTERIM_TRANSCRIPT, transcript))

    async def _make_guess(self, utterance: _Utterance) -> Transcript | None:
        try:
            transcript = await self._client.listen(utterance.audio())
        except (HostUnavailable, LocalSpeechUnavailable):
            return None
        if self._preflight and transcript.text and self._utterance is utterance:
            utterance.shown = True
            # What breaks off is worth remembering something for, and no reply.
            kind = _Event.INTERIM_TRANSCRIPT if self._breaks_off(transcript) else _Event.PREFLIGHT_TRANSCRIPT
            self._event_ch.send_nowait(_event(kind, transcript))
        return transcript

    async def _drop_guess(self) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            await utils.aio.cancel_and_wait(guess)

    async def _heard(self, utterance: _Utterance) -> Transcript:
        guess, self._guess = self._guess, None
        transcript = await guess if guess is not None else None
        return transcript if transcript is not None else await self._client.listen(utterance.audio())

    def _finish(self, utterance: _Utterance, transcript: Transcript, ended: float) -> None:
        self._utterance = None
        self._event_ch.send_nowait(stt.SpeechEvent(type=_Event.END_OF_SPEECH, speech_end_time=ended))
        self._send_final(utterance, transcript, ended)

    def _send_final(self, utterance: _Utterance, transcript: Transcript, ended: float | None) -> None:
        if transcript.text:
            self._event_ch.send_nowait(_event(_Event.FINAL_TRANSCRIPT, transcript, end_time=ended))
        else:
            self.final_arrived()
            if utterance.shown:
                # It was noise after all: take back what was shown of it.
                self._event_ch.send_nowait(_event(_Event.INTERIM_TRANSCRIPT, Transcript("", 0.0)))
        usage = stt.RecognitionUsage(audio_duration=utterance.samples / LISTEN_RATE)
        self._event_ch.send_nowait(stt.SpeechEvent(type=_Event.RECOGNITION_USAGE, recognition_usage=usage))
