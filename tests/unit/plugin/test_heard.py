"""P-heard: what is stored of an interrupted reply is what was played of it, whatever the voice and the audio output.

The voice's true word times are known, so that each result is compared with the words that had really sounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import Agent, ModelSettings, llm
from livekit.agents.voice import io
from livekit.agents.voice.transcription import TranscriptSynchronizer

from memory.heard import Ear, HeardOutput, Segment, Speech, Utterance, current_speech
from tests.support.scripted_llm import ToolCall
from tests.support.sessions import INSTRUCTIONS, HandClock, call
from tests.support.voice import (
    Alignment,
    ManualOutput,
    SpokenWord,
    WordTTS,
    eventually,
    frames_of,
    samples_of,
    spoken_words,
)

pytestmark = pytest.mark.promise("P-heard")

REFUND = "Your refund of forty euros is approved, and I have also moved you to the Gold plan."
LONG = (
    "We have three tables free tonight, one by the window and two on the terrace. "
    "The one by the window is for four people; the others are smaller. Which one would you like me to book for you?"
)


def check(stored: str, text: str, position_s: float, said: Sequence[SpokenWord] | None = None) -> None:
    """At most two words behind what was heard, never ahead of it, and word for word the text."""
    words = stored.split()
    true = sum(word.end_s <= position_s for word in (said or spoken_words(text)))
    assert true - 2 <= len(words) <= true, f"{len(words)} words stored, {true} heard at {position_s:.2f} s"
    assert words == text.split()[: len(words)]


def points(text: str, count: int) -> list[float]:
    """Moments spread over the whole reply."""
    end = spoken_words(text)[-1].end_s
    return [end * (number + 0.5) / count for number in range(count)]


def synchronized(output: ManualOutput) -> io.AudioOutput:
    return TranscriptSynchronizer(next_in_chain_audio=output, next_in_chain_text=None).audio_output


OUTPUTS: dict[str, Callable[[], ManualOutput]] = {
    "room-like": lambda: ManualOutput(reports_runs=True),
    "no pause": lambda: ManualOutput(can_pause=False),
    "other rate": lambda: ManualOutput(sample_rate=16_000),
    "any rate": lambda: ManualOutput(sample_rate=None),
}


async def cut_off(text: str, voice: Alignment, output: ManualOutput, position_s: float, **how: Any) -> None:
    """Have ``text`` spoken in answer to a turn, interrupt it at ``position_s``, and check what is stored of it."""
    async with call((text,), tts=WordTTS(voice), output=output, **how) as made:
        made.session.generate_reply(user_input="Tell me.")
        await made.interrupt_at(position_s)
        replies = [entry for entry in await made.entries() if entry.role == "assistant"]
        assert all(entry.interrupted for entry in replies)
        check(replies[0].content if replies else "", text, position_s, made.tts.said)


@pytest.mark.parametrize("voice", ["words", "sentences", "none"])
async def test_P_heard_at_any_moment(voice: Alignment) -> None:
    for position_s in points(LONG, 24):
        await cut_off(LONG, voice, ManualOutput(), position_s)


@pytest.mark.parametrize("kind", list(OUTPUTS))
@pytest.mark.parametrize("voice", ["words", "sentences", "none"])
async def test_P_heard_with_every_kind_of_output(kind: str, voice: Alignment) -> None:
    for position_s in points(REFUND, 5):
        await cut_off(REFUND, voice, OUTPUTS[kind](), position_s)


async def test_P_heard_below_a_transcript_synchronizer() -> None:
    for position_s in points(REFUND, 5):
        await cut_off(REFUND, "sentences", ManualOutput(), position_s, over=synchronized)


@pytest.mark.case("L07")
@pytest.mark.parametrize("voice", ["words", "sentences", "none"])
@pytest.mark.parametrize("by", ["reply", "say"])
async def test_L07_the_gold_plan_was_never_heard_of(voice: Alignment, by: str) -> None:
    barge_in_s = spoken_words(REFUND)[4].end_s + 0.05  # right after "forty euros"
    async with call((REFUND,), tts=WordTTS(voice), output=ManualOutput()) as made:
        if by == "say":
            made.session.say(REFUND)
        else:
            made.session.generate_reply(user_input="Where is my refund?")
        await made.interrupt_at(barge_in_s)
        [reply] = [entry for entry in await made.entries() if entry.role == "assistant"]
    assert reply.interrupted
    assert "Gold" not in reply.content
    check(reply.content, REFUND, barge_in_s)


@pytest.mark.case("L07")
async def test_L07_a_recording_that_is_said() -> None:
    for position_s in points(REFUND, 6):
        async with call(output=ManualOutput()) as made:
            made.session.say(REFUND, audio=frames_of(REFUND))
            await made.interrupt_at(position_s)
            replies = await made.texts()
        check(replies[0][1] if replies else "", REFUND, position_s)


@pytest.mark.case("L07")
async def test_L07_a_recording_that_is_cut_off_while_it_still_arrives() -> None:
    words = spoken_words(REFUND)
    arrived = samples_of(words[:8])

    async def recording() -> AsyncIterator[rtc.AudioFrame]:
        yield arrived
        await asyncio.Event().wait()

    async with call(output=ManualOutput()) as made:
        made.session.say(REFUND, audio=recording())
        await eventually(lambda: made.output.pushed_s, "the recording's beginning")
        cut_s = words[6].end_s
        await made.clock.advance(cut_s)
        made.output.position_s = cut_s
        await made.session.interrupt()
        await made.listening()
        texts = await made.texts()
    assert len(" ".join(text for _, text in texts).split()) <= 7


async def test_interrupted_before_any_sound_nothing_is_stored() -> None:
    voice = WordTTS("words")
    voice.hold.clear()
    async with call((REFUND,), tts=voice, output=ManualOutput()) as made:
        made.session.generate_reply(user_input="Tell me.")
        await eventually(lambda: made.llm.requests, "the LLM call")
        await made.session.interrupt()
        await made.listening()
        assert await made.texts() == [("user", "Tell me.")]


async def test_a_reply_that_was_played_is_stored_whole_and_not_interrupted() -> None:
    async with call(("**Sure**, here you go: one & two.",)) as made:
        await made.type("Go on.")
        reply = (await made.entries())[-1]
        assert (reply.content, reply.interrupted) == ("**Sure**, here you go: one & two.", False)


async def test_a_reply_of_several_segments_is_stored_up_to_the_cut() -> None:
    class InParts(Agent):
        async def llm_node(
            self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings
        ) -> AsyncIterator[Any]:
            from livekit.agents.types import FlushSentinel

            yield "First part, spoken whole."
            yield FlushSentinel()
            yield REFUND

    async with call(agent=InParts(instructions=INSTRUCTIONS), output=ManualOutput()) as made:
        made.session.generate_reply(user_input="Tell me.")
        await eventually(lambda: made.output.whole, "the first part")
        made.output.finish()
        await eventually(lambda: made.output.pushed_s == 0 or made.output.whole)
        cut_s = spoken_words(REFUND)[4].end_s + 0.01
        await made.interrupt_at(cut_s)
        reply = (await made.entries())[-1]
    assert reply.content.startswith("First part, spoken whole. Your refund")
    check(reply.content.removeprefix("First part, spoken whole. "), REFUND, cut_s)


async def test_each_step_of_a_tool_reply_counts_its_own_audio() -> None:
    from livekit.agents import function_tool

    class WithTool(Agent):
        @function_tool
        async def look(self) -> str:
            """Look."""
            return "found"

    answers = [ToolCall("look"), REFUND]
    async with call(answers, agent=WithTool(instructions=INSTRUCTIONS), output=ManualOutput()) as made:
        made.session.say("One moment, please.")
        await eventually(lambda: made.output.whole, "the greeting")
        made.output.finish()
        await made.listening()
        made.session.generate_reply(user_input="Look it up.")
        cut_s = spoken_words(REFUND)[7].end_s + 0.02
        await made.interrupt_at(cut_s)
        texts = await made.texts()
    assert texts[0] == ("assistant", "One moment, please.")
    check(texts[-1][1], REFUND, cut_s)


async def test_a_voice_that_fails_midway_leaves_what_it_said() -> None:
    class Breaking(Agent):
        async def tts_node(
            self, text: AsyncIterable[str], model_settings: ModelSettings
        ) -> AsyncIterator[rtc.AudioFrame]:
            async for _ in text:
                pass
            frame = samples_of(spoken_words(REFUND)[:5])
            yield frame
            raise RuntimeError("the voice broke")

    async with call((REFUND,), agent=Breaking(instructions=INSTRUCTIONS)) as made:
        await made.session.generate_reply(user_input="Tell me.")
        await made.listening()
        reply = (await made.entries())[-1]
    assert reply.role == "assistant"
    assert reply.interrupted
    assert len(reply.content.split()) <= 5
    assert REFUND.startswith(reply.content)


# -- the parts, on their own -------------------------------------------------------------------------------------------


class _Sink(ManualOutput):
    """An output that is cancelled before it takes its first frame, as a room's is until somebody subscribes."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribed = asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await self.subscribed.wait()
        await super().capture_frame(frame)


async def _open() -> None:
    return None


async def test_a_frame_that_the_output_never_took_is_not_waited_for() -> None:
    sink = _Sink()
    output = Ear(HandClock(), _open).over(sink)
    assert isinstance(output, HeardOutput)
    task = asyncio.create_task(output.capture_frame(samples_of(spoken_words("Hello."))))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    output.flush()
    output.clear_buffer()
    async with asyncio.timeout(5):
        await output.wait_for_playout()
    assert output.captured_playout_segments == 0


async def test_an_output_that_counts_dry_time_is_not_believed() -> None:
    clock = HandClock()
    sink = ManualOutput()
    output = Ear(clock, _open).over(sink)
    assert output is not None
    speech = Speech()
    token = current_speech.set(speech)
    frame = samples_of(spoken_words("One two three."))
    await output.capture_frame(frame)
    await clock.advance(5.0)  # played long ago; then nothing came for a while
    await output.capture_frame(frame)
    await clock.advance(0.25)
    sink.position_s = 5.25  # what a console reports: the time since it began
    output.clear_buffer()
    current_speech.reset(token)
    assert speech.segments[0].heard_s == pytest.approx(frame.duration + 0.25)


async def test_an_output_under_another_ear_is_wrapped_once() -> None:
    ear = Ear(HandClock(), _open)
    once = ear.over(ManualOutput())
    assert once is not None
    assert ear.over(once) is None
    assert ear.over(None) is None
    assert Ear(HandClock(), _open).over(once) is not None
    assert once.sample_rate == ManualOutput().sample_rate
    assert once.can_pause


def test_utterances_are_taken_in_the_order_they_were_made() -> None:
    speech = Speech()
    silent, first, second = speech.begin_utterance(), speech.begin_utterance(), speech.begin_utterance()
    for utterance in (first, second):
        utterance.take(samples_of(spoken_words("Hi.")))
    assert (speech.next_played(), speech.next_played(), speech.next_played()) == (first, second, None)
    assert not silent.played


def test_a_text_whose_audio_is_unknown_is_kept_as_livekit_has_it() -> None:
    ear = Ear(HandClock(), _open)
    assert ear.heard_of(None, "Half a", interrupted=True, realtime=False) == "Half a"
    assert ear.heard_of(Speech(), "Half a", interrupted=True, realtime=True) == "Half a"


def test_a_realtime_models_replies_each_take_their_own_segment() -> None:
    """They are all reported after the last was played; only the last can be cut off."""
    ear = Ear(HandClock(), _open)
    speech = Speech()
    words = spoken_words(REFUND)
    for whole in (True, False):
        segment = Segment(None)
        segment.take(samples_of(words), 0.0)
        segment.flushed = True
        segment.finish(segment.pushed_s if whole else words[4].end_s + 0.05, interrupted=not whole, now_s=1e9)
        speech.segments.append(segment)
    assert ear.heard_of(speech, REFUND, interrupted=False, realtime=True) == REFUND
    check(ear.heard_of(speech, REFUND, interrupted=True, realtime=True), REFUND, words[4].end_s + 0.05)
    assert speech.segments == []


async def test_structured_output_passes_through_the_tap() -> None:
    utterance = Utterance()

    async def parts() -> AsyncIterator[Any]:
        yield "Hello "
        yield {"not": "text"}
        yield "there."

    assert [part async for part in utterance.hearing(parts())] == ["Hello ", {"not": "text"}, "there."]
    assert utterance.text == "Hello there."
