"""Voice to voice without a key: real models in a real host process, and a whole AgentSession on them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, stt
from livekit.agents.utils import http_context
from numpy.typing import NDArray

from agent.local.audio import SPEAKER_RATE, RecordingSpeaker, WavMicrophone, read_wav, write_call_recording
from agent.local.client import SpeechClient
from agent.local.models import LISTEN_RATE, PACKAGES, TALK_RATE
from agent.local.speech_host import spec
from agent.local.stt import LocalSTT
from agent.local.thinker import ExtractiveLLM
from agent.local.tts import LocalTTS
from agent.local.wav import Floats, resample
from memory.hosting import HostRole

BOUND_S = 30.0  # of any one wait: a loaded machine is slow, a broken one waits for ever


@pytest.fixture
async def client(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[SpeechClient]:
    require(*PACKAGES, extra="local")
    client = SpeechClient(data_dir)
    await client.ensure()
    yield client
    await client.aclose()


async def _spoken(client: SpeechClient, text: str) -> Floats:
    parts = [np.frombuffer(speech.pcm, "<i2") async for speech in client.talk(text)]
    return resample((np.concatenate(parts) / 32768).astype(np.float32), TALK_RATE, LISTEN_RATE)


def _int16(samples: Floats) -> NDArray[np.int16]:
    return (np.clip(samples, -1, 1) * 32767).astype(np.int16)


async def _kill_host(client: SpeechClient) -> int:
    pid = int((await client.state())["pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_what_is_synthesised_is_heard(client: SpeechClient) -> None:
    audio = await _spoken(client, "Welcome back, Sarah. I see your order number 1234 was delayed last week.")
    heard = await client.listen(_int16(audio))
    for word in ("welcome back", "sarah", "order", "1234", "delayed last week"):
        assert word in heard.text.casefold()
    assert heard.confidence > 0.5


async def test_everybody_shares_one_host_which_ends_when_unused(client: SpeechClient, data_dir: Path) -> None:
    other = SpeechClient(data_dir)
    first, second = await asyncio.gather(client.state(), other.state())
    assert first["pid"] == second["pid"] != os.getpid()
    await other.aclose()
    assert (await client.state())["pid"] == first["pid"]
    await client.aclose()
    role = HostRole(spec(data_dir), idle_s=0)
    async with asyncio.timeout(BOUND_S):
        while not role.try_take():
            await asyncio.sleep(0.05)
    role.release()


async def test_a_killed_host_is_replaced_under_way(client: SpeechClient) -> None:
    audio = _int16(await _spoken(client, "My dog is called Biscuit."))
    listening = asyncio.gather(*(client.listen(audio) for _ in range(4)))
    killed = await _kill_host(client)
    for heard in await listening:
        assert "my dog is called" in heard.text.casefold()
    sentences = []
    async for speech in client.talk("This is one. This is two. This is three."):
        sentences.append("".join(word.text for word in speech.words))
        if len(sentences) == 1:
            os.kill(int((await client.state())["pid"]), signal.SIGKILL)
    assert "".join(sentences) == "This is one. This is two. This is three."
    assert (await client.state())["pid"] != killed


async def _transcribed(client: SpeechClient, audio: Floats) -> list[stt.SpeechEvent]:
    """The events of a microphone that closes right after ``audio``, which comes faster than real time."""
    recogniser = LocalSTT(client)
    async with asyncio.timeout(BOUND_S), recogniser.stream() as stream:
        for start in range(0, len(audio), LISTEN_RATE // 50):
            part = _int16(audio[start : start + LISTEN_RATE // 50])
            stream.push_frame(rtc.AudioFrame(part.tobytes(), LISTEN_RATE, 1, len(part)))
        stream.end_input()
        events = [event async for event in stream]
    await recogniser.aclose()
    return events


def _final(events: list[stt.SpeechEvent]) -> str:
    finals = [event for event in events if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT]
    return " ".join(event.alternatives[0].text for event in finals).casefold()


async def test_what_was_said_last_is_heard_when_the_microphone_closes(client: SpeechClient) -> None:
    audio = await _spoken(client, "My dog is called Biscuit.")
    voiced = int(np.flatnonzero(np.abs(audio) > 0.01)[-1])
    assert "my dog is called biscuit" in _final(await _transcribed(client, audio[:voiced]))


async def test_a_long_speech_without_a_pause_is_heard_to_its_end(client: SpeechClient) -> None:
    sentences = [
        "My dog is called Biscuit and he likes to run along the river in the morning",
        "my sister lives in a small village near the mountains with her three children",
        "last summer we went to the sea and it rained for almost the whole of two weeks",
        "the train was late so that we had to wait at the station for more than an hour",
        "in the evening we cooked a large pot of soup and everybody ate two plates of it",
    ]
    parts = [await _spoken(client, sentence) for sentence in sentences]
    voiced = [part[: int(np.flatnonzero(np.abs(part) > 0.02)[-1])] for part in parts]
    audio = np.concatenate(voiced)
    assert len(audio) > 18 * LISTEN_RATE
    events = await _transcribed(client, audio)
    for word in ("biscuit", "river", "village", "children", "summer", "weeks", "station", "hour", "soup", "plates"):
        assert word in _final(events)


class Conversation:
    """A caller with a recording, and an agent of local parts only."""

    def __init__(self, client: SpeechClient) -> None:
        self.client = client
        self.microphone = WavMicrophone()
        self.audible = asyncio.Queue[float]()
        self.speaker = RecordingSpeaker(on_audible=self.audible.put_nowait)
        self.replies = asyncio.Queue[llm.ChatMessage]()
        self.turns: list[llm.ChatMessage] = []
        self.session: AgentSession[None] = AgentSession(
            stt=LocalSTT(client),
            llm=ExtractiveLLM(),
            tts=LocalTTS(client),
            turn_handling={"turn_detection": "vad", "endpointing": {"min_delay": 0.3, "max_delay": 2.5}},
            aec_warmup_duration=None,
            user_away_timeout=None,
            session_close_transcript_timeout=0.1,
            use_tts_aligned_transcript=True,
        )
        self.session.input.audio = self.microphone
        self.session.output.audio = self.speaker
        self.session.on("conversation_item_added", lambda event: self._added(event.item))

    def _added(self, item: object) -> None:
        if isinstance(item, llm.ChatMessage):
            self.turns.append(item)
            if item.role == "assistant":
                self.replies.put_nowait(item)

    async def say(self, text: str) -> tuple[str, float]:
        """Say ``text``; returns the reply and how long after the voice's end it could be heard, in seconds."""
        playing = self.microphone.play(await _spoken(self.client, text))
        async with asyncio.timeout(BOUND_S):
            audible_at = await self.audible.get()
            reply = await self.replies.get()
        assert playing.voice_ended_at is not None
        return reply.text_content or "", audible_at - playing.voice_ended_at


@pytest.fixture
async def conversation(client: SpeechClient) -> AsyncIterator[Conversation]:
    async with http_context.open():
        conversation = Conversation(client)
        await conversation.session.start(Agent(instructions="Answer by quoting."))
        yield conversation
        async with asyncio.timeout(BOUND_S):
            await conversation.session.aclose()
        conversation.speaker.close()


async def test_a_call_is_answered_by_voice_from_what_was_said(conversation: Conversation, tmp_path: Path) -> None:
    noted, _ = await conversation.say("My dog is called Biscuit.")
    assert "biscuit" in noted.casefold()
    answer, voice_to_voice_s = await conversation.say("What is my dog called?")
    assert answer.casefold() == 'you told me a moment ago: "my dog is called biscuit."'
    assert 0 < voice_to_voice_s < BOUND_S

    users = [turn for turn in conversation.turns if turn.role == "user"]
    assert [turn.transcript_confidence is not None for turn in users] == [True, True]
    spoken = conversation.speaker.recorded(conversation.speaker.segments[-1].started_at or 0)
    heard = await conversation.client.listen(_int16(resample(spoken, SPEAKER_RATE, LISTEN_RATE)))
    assert "biscuit" in heard.text.casefold()

    await asyncio.to_thread(write_call_recording, tmp_path / "call.wav", conversation.microphone, conversation.speaker)
    recording = await asyncio.to_thread(read_wav, tmp_path / "call.wav")
    assert recording.channels == 2
    assert recording.duration_s > 4


async def test_a_call_survives_the_death_of_its_speech_host(conversation: Conversation) -> None:
    await conversation.say("My dog is called Biscuit.")
    audio = await _spoken(conversation.client, "What is my dog called?")
    playing = conversation.microphone.play(audio)
    async with asyncio.timeout(BOUND_S):
        while playing.position < len(audio) // 2:
            await asyncio.sleep(0.01)
        await _kill_host(conversation.client)
        await conversation.audible.get()
        reply = await conversation.replies.get()
    assert "biscuit" in (reply.text_content or "").casefold()


async def test_an_interrupted_reply_stops_and_is_marked(conversation: Conversation) -> None:
    text = "This is a long reply, which goes on and on. It has a second sentence. It even has a third one, to be sure."
    stop = await _spoken(conversation.client, "Wait, please stop there.")
    handle = conversation.session.say(text)
    async with asyncio.timeout(BOUND_S):
        await conversation.audible.get()
        conversation.microphone.play(stop)
        await handle.wait_for_playout()
    segment = conversation.speaker.segments[0]
    assert handle.interrupted
    assert segment.interrupted
    assert 0 < segment.played_s < segment.pushed_s
