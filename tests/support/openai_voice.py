"""The local models behind the test server: a WAV in, words out; words in, PCM out.

Above: openai_server. Below: agent.local.
"""

from __future__ import annotations

import asyncio
import functools
import io
import wave
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from agent.local.models import LISTEN_RATE, TALK_RATE, SpeechToText, TextToSpeech
from agent.local.wav import Floats, resample

PIECE_BYTES = TALK_RATE // 5 * 2  # 0.2 s


class NoAudio(ValueError):
    """It is no WAV of 16-bit samples."""


class LocalVoice:
    """Loads each model at its first use; each works on a thread of its own, for any event loop."""

    def __init__(self) -> None:
        self._listening = ThreadPoolExecutor(1, "test-listener")
        self._talking = ThreadPoolExecutor(1, "test-talker")
        self._ears: SpeechToText | None = None
        self._mouth: TextToSpeech | None = None

    async def listen(self, wav: bytes) -> tuple[str, float]:
        """The words of a recording, and its seconds.

        Raises:
            NoAudio: it holds none.
        """
        return await asyncio.get_running_loop().run_in_executor(self._listening, self._listen, wav)

    async def speak(self, text: str) -> AsyncIterator[bytes]:
        """``text`` as 16-bit mono PCM at ``TALK_RATE``, in pieces of ``PIECE_BYTES`` at most, as they are ready."""
        loop = asyncio.get_running_loop()
        for sentence in await loop.run_in_executor(self._talking, self._sentences, text):
            pcm = await loop.run_in_executor(self._talking, self._speak, sentence)
            for start in range(0, len(pcm), PIECE_BYTES):
                yield pcm[start : start + PIECE_BYTES]

    def _listen(self, wav: bytes) -> tuple[str, float]:
        samples = _samples(wav)
        if self._ears is None:
            self._ears = SpeechToText()
        return self._ears.transcribe(samples).text, len(samples) / LISTEN_RATE

    def _sentences(self, text: str) -> list[str]:
        if self._mouth is None:
            self._mouth = TextToSpeech()
        return self._mouth.pieces(text)

    def _speak(self, sentence: str) -> bytes:
        assert self._mouth is not None
        return self._mouth.speak(sentence).pcm


@functools.cache
def local_voice() -> LocalVoice:
    """The voice of this process: loading the models takes a second."""
    return LocalVoice()


def _samples(data: bytes) -> Floats:
    try:
        with wave.open(io.BytesIO(data)) as recording:
            width, channels, rate = recording.getsampwidth(), recording.getnchannels(), recording.getframerate()
            pcm = recording.readframes(recording.getnframes())
    except (wave.Error, EOFError) as error:
        raise NoAudio(str(error)) from None
    if width != 2:
        raise NoAudio(f"{8 * width} bits")
    mono = np.frombuffer(pcm, "<i2").reshape(-1, channels).mean(axis=1).astype(np.float32) / np.float32(32768)
    return resample(mono, rate, LISTEN_RATE)
