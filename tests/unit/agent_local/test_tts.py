"""The livekit TTS on a scripted speech service: audio, the time of every word, and texts with nothing to say."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString

from agent.local.models import TALK_RATE, LocalSpeechUnavailable
from agent.local.tts import LocalTTS
from memory.errors import HostUnavailable
from tests.unit.agent_local.scripted import ScriptedService

_NO_RETRY = APIConnectOptions(max_retry=0)


def _times(events: list[tts.SynthesizedAudio]) -> list[TimedString]:
    return [word for event in events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]


def _duration_s(events: list[tts.SynthesizedAudio]) -> float:
    return sum(event.frame.duration for event in events)


async def _stream(talker: LocalTTS, *texts: str) -> list[tts.SynthesizedAudio]:
    async with asyncio.timeout(10), talker.stream(conn_options=_NO_RETRY) as stream:
        for text in texts:
            stream.push_text(text)
        stream.end_input()
        return [event async for event in stream]


async def _synthesize(talker: LocalTTS, text: str) -> list[tts.SynthesizedAudio]:
    async with asyncio.timeout(10), talker.synthesize(text, conn_options=_NO_RETRY) as stream:
        return [event async for event in stream]


async def test_every_word_comes_with_its_time_in_the_segment(service: ScriptedService) -> None:
    events = await _stream(
        LocalTTS(service), "You told me ", "on Monday about it. ", "And then on Tuesday ", "you told me again."
    )
    words = _times(events)
    assert "".join(words) == "You told me on Monday about it. And then on Tuesday you told me again."
    assert [round(word.start_time, 3) for word in words if isinstance(word.start_time, float)] == [
        round(at * 0.1, 3) for at in range(len(words))
    ]
    assert abs(_duration_s(events) - 0.1 * len(words)) < 0.02
    assert len(service.texts) == 2


async def test_a_word_is_announced_no_later_than_its_audio(service: ScriptedService) -> None:
    seen_s = 0.0
    events = await _stream(LocalTTS(service), "One two three four five six seven eight nine ten.")
    assert len(_times(events)) == 10
    for event in events:
        for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):
            assert word.start_time >= seen_s - 1e-6
        seen_s += event.frame.duration


async def test_one_text_is_synthesised(service: ScriptedService) -> None:
    events = await _synthesize(LocalTTS(service), "Hello there. How are you?")
    assert "".join(_times(events)) == "Hello there. How are you?"
    assert events[-1].is_final
    assert (events[0].frame.sample_rate, events[0].frame.num_channels) == (TALK_RATE, 1)


@pytest.mark.parametrize("text", ["…", "123 456!", "🎉"])
async def test_nothing_speakable_is_a_short_silence(service: ScriptedService, text: str) -> None:
    for events in (await _stream(LocalTTS(service), text), await _synthesize(LocalTTS(service), text)):
        assert _duration_s(events) == pytest.approx(0.1, abs=0.011)
        assert not any(event.frame.data.tobytes().strip(b"\0") for event in events)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.sampled_from(["Hello there. ", "and", " so on ", "Dr. Smith! ", "\n\n", "No?", "…"]), max_size=6)
)
async def test_the_timed_words_are_the_text(texts: list[str]) -> None:
    service = ScriptedService()
    events = await _stream(LocalTTS(service), *texts)
    assert "".join(_times(events)).split() == "".join(texts).split()


@pytest.mark.parametrize(
    ("error", "expected", "retryable"),
    [(HostUnavailable("away"), APIConnectionError, True), (LocalSpeechUnavailable("pip install"), APIError, False)],
)
async def test_errors_are_livekits(
    service: ScriptedService, error: Exception, expected: type[APIError], retryable: bool
) -> None:
    service.talk_error = error
    for speaking in (_stream(LocalTTS(service), "Hello."), _synthesize(LocalTTS(service), "Hello.")):
        with pytest.raises(expected, match=str(error)) as caught:
            await speaking
        assert caught.value.retryable is retryable


async def test_what_it_can_do_is_declared(service: ScriptedService) -> None:
    talker = LocalTTS(service)
    assert (talker.capabilities.streaming, talker.capabilities.aligned_transcript) == (True, True)
    assert (talker.model, talker.provider, talker.sample_rate) == ("hibari-heart", "local", 24_000)
    talker.prewarm()
    async with asyncio.timeout(5):
        await service.ensured.wait()
    await talker.aclose()
