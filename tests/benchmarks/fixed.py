"""Models that take the same time whatever is said, in place of a job's own: what is measured then is the rest.

Imported where jobs are forked from (``rooms.worker(…, fixed.NAME)``). The listener hears whether there is sound, and
takes a caller's n-th utterance for ``said(n)``. Above: worker. Below: livekit, the agent's job.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from livekit import rtc
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    AgentSession,
    APIConnectOptions,
    LanguageCode,
    NotGivenOr,
    llm,
    stt,
    tts,
    utils,
)

from agent import job
from agent.models import Models
from tests.benchmarks.preload import watch
from tests.support.scripted_llm import Request, ScriptedLLM
from tests.support.voice import samples_of, spoken_words

NAME = "tests.benchmarks.fixed"

RATE = 24_000
INTERIM_S = 0.3  # of speech between two interims
SILENCE_S = 0.3  # of silence end a turn
STT_S, LLM_S, TTS_S = 0.1, 0.3, 0.1
REPLY = "All noted."
_LOUD = 500
_THINGS = ("the garden gate", "the blue chair", "two tickets", "the invoice", "a picnic basket", "the spare keys")
_Event = stt.SpeechEventType


def said(number: int) -> str:
    """What a caller says in the turn ``number``, from 1 on."""
    return f"In turn {number} I ask about {_THINGS[number % len(_THINGS)]}."


class FixedSTT(stt.STT[Any]):
    """Interims while there is sound; a final transcript ``STT_S`` after ``SILENCE_S`` of silence."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.turns = 0

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.RecognizeStream:
        return _Hearing(stt=self, conn_options=conn_options, sample_rate=RATE)


class _Hearing(stt.RecognizeStream):
    async def _run(self) -> None:
        loud_s = silent_s = told_s = 0.0
        async for frame in self._input_ch:
            if not isinstance(frame, rtc.AudioFrame):
                continue
            is_loud = bool(np.frombuffer(frame.data, np.int16).max() > _LOUD)
            if is_loud:
                if not loud_s:
                    self._begin()
                loud_s, silent_s = loud_s + frame.duration, 0.0
                if loud_s - told_s >= INTERIM_S:
                    told_s = loud_s
                    self._interim(loud_s)
            elif loud_s:
                silent_s += frame.duration
                if silent_s >= SILENCE_S:
                    loud_s = silent_s = told_s = 0.0
                    await asyncio.sleep(STT_S)
                    self._end()

    def _begin(self) -> None:
        self._stt.turns += 1  # type: ignore[attr-defined]
        self._event_ch.send_nowait(stt.SpeechEvent(type=_Event.START_OF_SPEECH))

    def _interim(self, loud_s: float) -> None:
        words = self._said().split()
        self._tell(_Event.INTERIM_TRANSCRIPT, " ".join(words[: max(2, round(loud_s * 8))]))

    def _end(self) -> None:
        self._tell(_Event.FINAL_TRANSCRIPT, self._said())
        self._event_ch.send_nowait(stt.SpeechEvent(type=_Event.END_OF_SPEECH))

    def _said(self) -> str:
        return said(self._stt.turns)  # type: ignore[attr-defined]

    def _tell(self, kind: stt.SpeechEventType, text: str) -> None:
        heard = [stt.SpeechData(language=LanguageCode("en"), text=text, confidence=0.9)]
        self._event_ch.send_nowait(stt.SpeechEvent(type=kind, alternatives=heard))


class FixedLLM(ScriptedLLM):
    """Answers ``LLM_S`` after it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: REPLY)

    def take(self, chat_ctx: llm.ChatContext, tools: Any) -> Any:
        self.hold = asyncio.Event()
        asyncio.get_running_loop().call_later(LLM_S, self.hold.set)
        answer = super().take(chat_ctx, tools)
        self.requests: list[Request] = []
        return answer


class FixedTTS(tts.TTS[Any]):
    """Speaks ``TTS_S`` after it was told what."""

    def __init__(self) -> None:
        super().__init__(capabilities=tts.TTSCapabilities(streaming=True), sample_rate=RATE, num_channels=1)

    def synthesize(self, *_: Any, **__: Any) -> tts.ChunkedStream:
        raise NotImplementedError

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> tts.SynthesizeStream:
        return _Speaking(tts=self, conn_options=conn_options)


class _Speaking(tts.SynthesizeStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=utils.shortuuid())
        text = ""
        async for part in self._input_ch:
            text += part if isinstance(part, str) else ""
        self._mark_started()
        await asyncio.sleep(TTS_S)
        output_emitter.push(bytes(samples_of(spoken_words(text)).data))
        output_emitter.end_segment()


def _build(*_: Any, **__: Any) -> Models:
    return Models(FixedLLM(), FixedSTT(), FixedTTS())


def _new_session(models: Models, **_: Any) -> AgentSession[None]:
    assert models.stt is not None
    assert models.tts is not None
    session: AgentSession[None] = AgentSession(
        stt=models.stt,
        llm=models.llm,
        tts=models.tts,
        vad=None,
        turn_handling={"turn_detection": "stt", "endpointing": {"min_delay": 0.0, "max_delay": 0.0}},
    )
    watch(session)
    return session


samples_of(spoken_words(REPLY))  # numpy loads what this needs at its first use: here, not in every job
job.build = _build  # type: ignore[attr-defined]
job.new_session = _new_session  # type: ignore[attr-defined]
