"""An agent that is interrupted before anybody could hear it is heard all the same from its next reply on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import Agent
from livekit.agents.voice import io

from agent import ready
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import RATE, ManualOutput, eventually


class RoomOutput(ManualOutput):
    """An output that waits for the client to subscribe in the way LiveKit's room output does."""

    def __init__(self) -> None:
        super().__init__(instant=True)
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def capture_frame(self, frame: Any) -> None:
        await self.subscribed
        await super().capture_frame(frame)


async def interrupted_before_it_was_heard(monkeypatch: pytest.MonkeyPatch, *, guarded: bool) -> list[Any]:
    """What is played after a greeting was cut off while the client had not subscribed yet."""
    session, output = new_session(ScriptedLLM(["All right."])), RoomOutput()
    session.output.audio = output
    if guarded:
        monkeypatch.setattr(ready, "_subscribed", lambda _: output.subscribed)  # as a session in a room has it
        ready.keep_audible(session)
    await session.start(Agent(instructions=INSTRUCTIONS), record=False)
    greeting = session.say("Hello there.")
    await eventually(lambda: session._activity is not None and greeting is session._activity.current_speech)
    for _ in range(200):
        await asyncio.sleep(0)
    await session.interrupt()
    if not output.subscribed.done():
        output.subscribed.set_result(None)
    await session.run(user_input="Hello.")
    played = list(output.played)
    await session.aclose()
    return played


async def test_the_next_reply_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(await interrupted_before_it_was_heard(monkeypatch, guarded=True)) == 1


async def test_without_the_guard_nothing_would_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await interrupted_before_it_was_heard(monkeypatch, guarded=False) == []


async def test_without_a_room_nothing_changes() -> None:
    session, output = new_session(ScriptedLLM(["All right."])), ManualOutput(instant=True)
    session.output.audio = output
    ready.keep_audible(session)
    await session.start(Agent(instructions=INSTRUCTIONS), record=False)
    assert session.output.audio is output
    await session.run(user_input="Hello.")
    assert len(output.played) == 1
    await session.aclose()


@pytest.mark.parametrize("pause", [True, False])
async def test_pauses_and_the_rate_are_the_outputs_own(pause: bool) -> None:
    subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    output = ManualOutput(can_pause=pause)
    guard: io.AudioOutput = ready._AfterSubscription(output, subscribed)
    assert (guard.can_pause, guard.sample_rate) == (output.can_pause, output.sample_rate)


async def test_nothing_is_said_before_the_call_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    session, output = new_session(ScriptedLLM(["All right."])), RoomOutput()
    output.subscribed.set_result(None)
    session.output.audio = output
    monkeypatch.setattr(ready, "_subscribed", lambda _: output.subscribed)
    answered, waiting = asyncio.Event(), asyncio.Event()

    async def answer() -> None:
        waiting.set()
        await answered.wait()

    ready.keep_audible(session, answer)
    await session.start(Agent(instructions=INSTRUCTIONS), record=False)
    greeting = session.say("Hello there.")
    async with asyncio.timeout(30):
        await waiting.wait()
    for _ in range(200):
        await asyncio.sleep(0)
    assert (output.played, greeting.done()) == ([], False)
    answered.set()
    async with asyncio.timeout(30):
        await greeting
    assert len(output.played) == 1
    await session.aclose()


async def test_speech_that_is_there_as_a_whole_begins_to_play_with_its_first_frame() -> None:
    subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    subscribed.set_result(None)
    output = ManualOutput()
    begun, taken_then = asyncio.Event(), []

    async def play() -> None:  # as a room's output does, in a task of its own
        await begun.wait()
        taken_then.append(output.pushed_s)

    output.on_first_frame = lambda _: begun.set()
    playing = asyncio.create_task(play())
    await asyncio.sleep(0)
    guard = ready._AfterSubscription(output, subscribed)
    frame = rtc.AudioFrame.create(RATE, 1, RATE // 100)
    for _ in range(10):
        await guard.capture_frame(frame)
    await playing
    assert taken_then == [frame.duration]
