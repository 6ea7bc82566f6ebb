"""The livekit STT, its VAD and its speech service scripted: which events come when, and that no speech is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from livekit import rtc
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, stt, vad

from agent.local.client import SpeechBusy
from agent.local.models import LISTEN_RATE, LocalSpeechUnavailable
from agent.local.stt import MORE_S, LocalSpeechStream, LocalSTT
from memory.errors import HostUnavailable
from tests.support.recalls import ManualClock
from tests.unit.agent_local.scripted import ScriptedService

Kind = stt.SpeechEventType
_WINDOW = 512  # samples of one step of the VAD


def _frame(samples: int, rate: int = LISTEN_RATE) -> rtc.AudioFrame:
    return rtc.AudioFrame(np.full(samples, 100, np.int16).tobytes(), rate, 1, samples)


class ScriptedVoice(vad.VAD):
    """A VAD whose events the test pushes."""

    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.032))
        self.streams: list[ScriptedVoiceStream] = []

    def stream(self) -> vad.VADStream:
        self.streams.append(ScriptedVoiceStream(self))
        return self.streams[-1]


class ScriptedVoiceStream(vad.VADStream):
    def __init__(self, parent: vad.VAD) -> None:
        super().__init__(parent)
        self.got: list[object] = []
        self.ended = asyncio.Event()
        self._finished = asyncio.Event()

    async def _main_task(self) -> None:
        async for item in self._input_ch:
            self.got.append(item)
        self.ended.set()
        await self._finished.wait()

    def finish(self) -> None:
        """There will be no more events."""
        self._finished.set()

    def send(self, kind: vad.VADEventType, *, silence_s: float = 0.0, samples: int = _WINDOW) -> None:
        event = vad.VADEvent(kind, 0, 0.0, 0.1, silence_s, [_frame(samples)], raw_accumulated_silence=silence_s)
        self._event_ch.send_nowait(event)


class Call:
    """A stream under test, and its events as they come."""

    def __init__(
        self, service: ScriptedService, *, preflight: bool = True, max_retry: int = 0, more_s: float = MORE_S
    ) -> None:
        self.service = service
        self.vad = ScriptedVoice()
        self.clock = ManualClock()
        self.stt = LocalSTT(service, preflight=preflight, voice=self.vad, clock=self.clock)
        self.stt.more_s = more_s
        self.stream: LocalSpeechStream = self.stt.stream(
            conn_options=APIConnectOptions(max_retry=max_retry, retry_interval=0)
        )

    @property
    def voice(self) -> ScriptedVoiceStream:
        return self.vad.streams[-1]

    async def begin(self) -> None:
        async with asyncio.timeout(5):
            while not self.vad.streams:
                await asyncio.sleep(0)

    async def next(self) -> stt.SpeechEvent:
        async with asyncio.timeout(5):
            return await anext(self.stream)

    async def next_kinds(self, count: int) -> list[stt.SpeechEventType]:
        return [(await self.next()).type for _ in range(count)]

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def start(self) -> None:
        self.voice.send(vad.VADEventType.START_OF_SPEECH, samples=1600)

    def speak(self, seconds: float) -> None:
        self.voice.send(vad.VADEventType.INFERENCE_DONE, samples=int(seconds * LISTEN_RATE))

    def pause(self, silence_s: float) -> None:
        self.voice.send(vad.VADEventType.INFERENCE_DONE, silence_s=silence_s)

    def end(self) -> None:
        self.voice.send(vad.VADEventType.END_OF_SPEECH, silence_s=0.25)


@pytest.fixture
async def call(service: ScriptedService) -> AsyncIterator[Call]:
    call = Call(service)
    await call.begin()
    yield call
    await call.stream.aclose()
    await call.stt.aclose()


async def test_the_guess_in_the_pause_is_the_final(call: Call) -> None:
    call.service.heard = ["My dog is called Biscuit."]
    call.start()
    call.speak(0.4)
    call.pause(0.05)
    call.pause(0.12)
    assert await call.next_kinds(2) == [Kind.START_OF_SPEECH, Kind.PREFLIGHT_TRANSCRIPT]
    call.end()
    events = [await call.next() for _ in range(3)]
    assert [event.type for event in events] == [Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT, Kind.RECOGNITION_USAGE]
    final = events[1].alternatives[0]
    assert (final.text, final.confidence, final.language) == ("My dog is called Biscuit.", 0.9, "en")
    assert events[1].speech_end_time is not None
    assert len(call.service.asked) == 1


async def test_a_guess_is_dropped_when_the_voice_goes_on(call: Call) -> None:
    call.service.heard = ["My dog.", "My dog is called Biscuit."]
    call.start()
    call.speak(0.3)
    call.pause(0.12)
    assert await call.next_kinds(2) == [Kind.START_OF_SPEECH, Kind.PREFLIGHT_TRANSCRIPT]
    call.speak(0.1)
    call.end()
    events = [await call.next() for _ in range(2)]
    assert [event.type for event in events] == [Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]
    assert events[1].alternatives[0].text == "My dog is called Biscuit."


async def test_without_preflight_the_guess_is_kept_to_itself(service: ScriptedService) -> None:
    call = Call(service, preflight=False)
    await call.begin()
    service.heard = ["Yes, please."]
    call.start()
    call.pause(0.12)
    call.end()
    assert await call.next_kinds(3) == [Kind.START_OF_SPEECH, Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]
    assert len(service.asked) == 1
    await call.stream.aclose()


async def test_interims_come_while_somebody_speaks_one_at_a_time(call: Call) -> None:
    call.service.heard = ["My", "My dog"]
    call.service.gate = asyncio.Event()
    call.start()
    call.speak(0.6)
    call.speak(0.6)
    await call.settle()
    assert len(call.service.asked) == 1
    assert call.service.optional == [True]
    call.service.gate.set()
    events = [await call.next() for _ in range(2)]
    assert (events[1].type, events[1].alternatives[0].text) == (Kind.INTERIM_TRANSCRIPT, "My")
    call.speak(0.6)
    assert (await call.next()).alternatives[0].text == "My dog"


async def test_an_interim_never_follows_the_guess(call: Call) -> None:
    call.service.heard = ["My dog", "My dog is called Biscuit."]
    call.service.gate = asyncio.Event()
    call.start()
    call.speak(0.7)
    await call.settle()
    call.pause(0.12)
    await call.settle()
    call.service.gate.set()
    assert await call.next_kinds(2) == [Kind.START_OF_SPEECH, Kind.PREFLIGHT_TRANSCRIPT]
    call.end()
    assert await call.next_kinds(2) == [Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]


async def test_a_failed_interim_or_guess_costs_nothing(call: Call) -> None:
    call.service.heard = [SpeechBusy("busy"), HostUnavailable("away"), "I am here."]
    call.start()
    call.speak(0.7)
    await call.settle()
    call.pause(0.12)
    await call.settle()
    call.end()
    events = [await call.next() for _ in range(3)]
    assert [event.type for event in events] == [Kind.START_OF_SPEECH, Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]
    assert events[2].alternatives[0].text == "I am here."


async def test_a_sentence_that_breaks_off_is_heard_as_one_with_what_follows(call: Call) -> None:
    call.service.heard = ["I would like to...", "I would like to book a table."]
    call.start()
    call.speak(0.2)
    call.pause(0.12)
    call.end()
    events = [await call.next() for _ in range(2)]  # no preflight: nothing is to be replied to
    assert [event.type for event in events] == [Kind.START_OF_SPEECH, Kind.INTERIM_TRANSCRIPT]
    await call.settle()
    call.pause(0.4)
    call.start()
    call.speak(0.2)
    call.pause(0.12)
    call.end()
    events = [await call.next() for _ in range(3)]
    assert [event.type for event in events] == [
        Kind.PREFLIGHT_TRANSCRIPT,
        Kind.END_OF_SPEECH,
        Kind.FINAL_TRANSCRIPT,
    ]
    assert events[2].alternatives[0].text == "I would like to book a table."
    # The pause is part of it, and no sound is heard twice: what livekit's START brings along was there already.
    assert call.service.asked == [1600 + 3200 + _WINDOW, 1600 + 2 * 3200 + 3 * _WINDOW]
    await call.clock.advance(10)
    assert call.service.heard == []


async def test_who_breaks_off_and_says_no_more_is_waited_for_only_so_long(call: Call) -> None:
    call.service.heard = ["I would like to"]
    call.start()
    call.pause(0.12)
    call.end()
    assert await call.next_kinds(2) == [Kind.START_OF_SPEECH, Kind.INTERIM_TRANSCRIPT]
    await call.clock.advance(MORE_S - 0.01)
    waiting = asyncio.ensure_future(call.next())
    await call.settle()
    assert not waiting.done()
    await call.clock.advance(0.01)
    assert (await waiting).type == Kind.END_OF_SPEECH
    assert (await call.next()).alternatives[0].text == "I would like to"
    assert len(call.service.asked) == 1
    call.service.heard = ["What next?"]
    call.start()
    call.end()
    assert (await call.next_kinds(3))[1:] == [Kind.START_OF_SPEECH, Kind.END_OF_SPEECH]
    assert (await call.next()).alternatives[0].text == "What next?"


async def test_nobody_is_waited_for_where_turns_end_without_the_words(service: ScriptedService) -> None:
    call = Call(service, more_s=0.0)
    await call.begin()
    call.service.heard = ["My number is 555-1234."]
    call.start()
    call.pause(0.12)
    call.end()
    assert await call.next_kinds(4) == [
        Kind.START_OF_SPEECH,
        Kind.PREFLIGHT_TRANSCRIPT,
        Kind.END_OF_SPEECH,
        Kind.FINAL_TRANSCRIPT,
    ]
    await call.stream.aclose()
    await call.stt.aclose()


async def test_the_end_of_the_sound_loses_no_sentence_that_broke_off(call: Call) -> None:
    call.service.heard = ["My name is"]
    call.start()
    call.end()
    assert await call.next_kinds(1) == [Kind.START_OF_SPEECH]
    await call.settle()
    call.voice.finish()
    await call.clock.advance(MORE_S)
    assert await call.next_kinds(2) == [Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]


async def test_the_words_are_told_once_the_final_has_arrived(call: Call) -> None:
    call.service.heard = ["My name is...", "My name is Ana.", ""]
    await call.stt.told()
    call.start()
    call.end()
    await call.settle()
    telling = asyncio.ensure_future(call.stt.told())
    call.stt.final_arrived()  # one of before
    await call.settle()
    assert not telling.done()
    call.start()
    call.end()
    assert (await call.next_kinds(3))[2] == Kind.FINAL_TRANSCRIPT
    await call.settle()
    assert not telling.done()
    call.stt.final_arrived()
    await telling
    call.start()  # noise: nothing will arrive
    call.end()
    async with asyncio.timeout(5):
        await call.next_kinds(3)
        await call.stt.told()


async def test_a_stream_that_ends_keeps_nobody_waiting(call: Call) -> None:
    call.start()
    await call.next()
    telling = asyncio.ensure_future(call.stt.told())
    await call.settle()
    assert not telling.done()
    await call.stream.aclose()
    async with asyncio.timeout(5):
        await telling


async def test_noise_is_taken_back(call: Call) -> None:
    call.service.heard = ["You", ""]
    call.start()
    call.speak(0.7)
    assert await call.next_kinds(2) == [Kind.START_OF_SPEECH, Kind.INTERIM_TRANSCRIPT]
    call.end()
    events = [await call.next() for _ in range(3)]
    assert [event.type for event in events] == [Kind.END_OF_SPEECH, Kind.INTERIM_TRANSCRIPT, Kind.RECOGNITION_USAGE]
    assert events[1].alternatives[0].text == ""


async def test_long_speech_is_made_final_in_parts(call: Call) -> None:
    call.service.heard = ["The first part.", "the last part."]
    call.start()
    call.speak(16)
    events = [await call.next() for _ in range(3)]
    assert [event.type for event in events] == [Kind.START_OF_SPEECH, Kind.FINAL_TRANSCRIPT, Kind.RECOGNITION_USAGE]
    call.end()
    await call.next()
    assert (await call.next()).alternatives[0].text == "the last part."
    total = 1600 + 16 * LISTEN_RATE
    assert sum(call.service.asked) == total


async def test_what_was_said_is_heard_again_when_the_host_failed(service: ScriptedService) -> None:
    service.heard = [HostUnavailable("away"), "My dog is called Biscuit."]
    call = Call(service, max_retry=2)
    await call.begin()
    errors: list[object] = []
    call.stt.on("error", errors.append)
    call.start()
    call.end()
    kinds = [event.type for event in [await call.next() for _ in range(4)]]
    assert kinds[:3] == [Kind.START_OF_SPEECH, Kind.END_OF_SPEECH, Kind.FINAL_TRANSCRIPT]
    assert len(errors) == 1
    assert len(call.vad.streams) == 2
    await call.stream.aclose()


async def test_missing_packages_are_not_retried(service: ScriptedService) -> None:
    service.heard = [LocalSpeechUnavailable("pip install …")]
    call = Call(service, max_retry=3)
    await call.begin()
    call.start()
    call.end()
    with pytest.raises(APIError, match="pip install"):
        await call.next_kinds(3)
    assert len(call.vad.streams) == 1


async def test_a_flush_and_the_end_close_what_is_being_said_by_silence(call: Call) -> None:
    call.stream.push_frame(_frame(320))
    call.stream.end_input()
    async with asyncio.timeout(5):
        await call.voice.ended.wait()
    frames = [item for item in call.voice.got if isinstance(item, rtc.AudioFrame)]
    assert [frame.samples_per_channel for frame in frames] == [320, LISTEN_RATE // 2]
    assert not np.frombuffer(frames[1].data, np.int16).any()


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (48_000, 1), (8_000, 2)])
async def test_a_whole_recording_is_recognised(service: ScriptedService, rate: int, channels: int) -> None:
    service.heard = ["Hello."]
    data = np.full(rate * channels, 100, np.int16).tobytes()
    event = await LocalSTT(service, voice=ScriptedVoice()).recognize(rtc.AudioFrame(data, rate, channels, rate))
    assert (event.type, event.alternatives[0].text) == (Kind.FINAL_TRANSCRIPT, "Hello.")
    assert abs(service.asked[0] - LISTEN_RATE) < 500


async def test_a_host_that_is_away_is_a_connection_error(service: ScriptedService) -> None:
    service.heard = [HostUnavailable("away")]
    recogniser = LocalSTT(service, voice=ScriptedVoice())
    with pytest.raises(APIConnectionError, match="away"):
        await recogniser.recognize(_frame(320), conn_options=APIConnectOptions(max_retry=0))


async def test_prewarming_starts_the_host(service: ScriptedService) -> None:
    recogniser = LocalSTT(service, voice=ScriptedVoice())
    recogniser.prewarm()
    async with asyncio.timeout(5):
        await service.ensured.wait()
    await recogniser.aclose()
    assert (recogniser.model, recogniser.provider) == ("whisper-tiny.en", "local")
