"""A livekit TTS that needs no key: sentences are spoken by the speech host, and every word comes with its time.

With ``use_tts_aligned_transcript=True`` the session knows which words of an interrupted reply were heard, exactly.
Above: worker, chat, call. Below: client.
"""

from __future__ import annotations

import asyncio
import contextlib

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, tokenize, tts, utils
from livekit.agents.types import TimedString

from agent.local.client import SpeechService
from agent.local.models import TALK_RATE, LocalSpeechUnavailable
from agent.local.stt import as_api_errors
from memory.errors import HostUnavailable

_SILENCE = b"\0\0" * (TALK_RATE // 10)


class LocalTTS(tts.TTS):  # type: ignore[type-arg] # livekit leaves it open too
    """English text to speech, 24 kHz mono, voice "heart". Text without anything speakable is 100 ms of silence.

    ``client`` stays the caller's to close.
    """

    def __init__(self, client: SpeechService) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=TALK_RATE,
            num_channels=1,
        )
        self.client = client
        self._warming: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        return "hibari-heart"

    @property
    def provider(self) -> str:
        return "local"

    def prewarm(self) -> None:
        """Start the speech host, so that the first reply need not wait for it."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        # A failure shows, with its reason, at the first reply; there is nobody to tell it to before.
        with contextlib.suppress(HostUnavailable, LocalSpeechUnavailable):
            await self.client.ensure()

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> LocalChunkedStream:
        return LocalChunkedStream(tts=self, client=self.client, text=text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> LocalSynthesizeStream:
        return LocalSynthesizeStream(tts=self, client=self.client, conn_options=conn_options)

    async def aclose(self) -> None:
        if self._warming is not None:
            await utils.aio.cancel_and_wait(self._warming)


class _Mouth:
    """Speaks texts one after the other into an emitter, and keeps the time of the segment."""

    def __init__(self, client: SpeechService, emitter: tts.AudioEmitter) -> None:
        self._client = client
        self._emitter = emitter
        self._spoken_s = 0.0

    async def say(self, text: str) -> None:
        async with as_api_errors(), contextlib.aclosing(self._client.talk(text)) as sentences:
            async for speech in sentences:
                for word in speech.words:
                    start_s, end_s = self._spoken_s + word.start_s, self._spoken_s + word.end_s
                    self._emitter.push_timed_transcript(TimedString(word.text, start_time=start_s, end_time=end_s))
                self._push(speech.pcm)

    def finish(self) -> None:
        """A segment without a single frame would be an error that ends the whole turn."""
        if self._spoken_s == 0:
            self._push(_SILENCE)

    def _push(self, pcm: bytes) -> None:
        if pcm:
            self._emitter.push(pcm)
            self._emitter.flush()
            self._spoken_s += len(pcm) / 2 / TALK_RATE


class LocalChunkedStream(tts.ChunkedStream):
    """One text, spoken."""

    def __init__(self, *, tts: LocalTTS, client: SpeechService, text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, input_text=text, conn_options=conn_options)
        self._client = client

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=TALK_RATE, num_channels=1, mime_type="audio/pcm"
        )
        mouth = _Mouth(self._client, output_emitter)
        await mouth.say(self._input_text)
        mouth.finish()


class LocalSynthesizeStream(tts.SynthesizeStream):
    """Text as it comes, spoken as soon as a sentence is whole."""

    def __init__(self, *, tts: LocalTTS, client: SpeechService, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._client = client

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=TALK_RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=utils.shortuuid())
        sentences = tokenize.blingfire.SentenceTokenizer(retain_format=True).stream()
        forwarding = asyncio.create_task(self._forward(sentences))
        mouth = _Mouth(self._client, output_emitter)
        try:
            async for sentence in sentences:
                self._mark_started()
                await mouth.say(sentence.token)
            mouth.finish()
            await forwarding
        finally:
            await utils.aio.cancel_and_wait(forwarding)
            await sentences.aclose()

    async def _forward(self, sentences: tokenize.SentenceStream) -> None:
        async for data in self._input_ch:
            if isinstance(data, str):
                sentences.push_text(data)
            else:
                sentences.flush()
        sentences.end_input()
