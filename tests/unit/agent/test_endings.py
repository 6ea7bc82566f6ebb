"""When a turn ends: not before its last words are there, whatever the voice sounded like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from livekit.agents import UserInputTranscribedEvent

from agent import endings
from agent.endings import EndOfTurn
from agent.local.models import PACKAGES
from agent.local.stt import LocalSTT
from agent.models import build, new_session
from agent.settings import load


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_verdict_waits_for_the_words() -> None:
    there = asyncio.Event()
    stream = EndOfTurn(there.wait).stream()
    verdict = stream.predict()
    stream.cancel_inference()  # the model's own verdict is there: unlikely
    await settle()
    assert not verdict.done()
    there.set()
    async with asyncio.timeout(5):
        assert (await verdict).end_of_turn_probability == 0.0
    await stream.aclose()


async def test_words_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "WORDS_S_MAX", 0.0)
    stream = EndOfTurn(asyncio.Event().wait).stream()
    verdict = stream.predict()
    stream.cancel_inference()
    async with asyncio.timeout(5):
        assert (await verdict).end_of_turn_probability == 0.0
    await stream.aclose()


async def test_a_session_tells_the_local_listener_which_finals_have_arrived(
    data_dir: Path, require: Callable[..., None]
) -> None:
    require(*PACKAGES, extra="local")
    models = build(load().agent, data_dir, voice=True)
    session = new_session(models, room=True)
    assert isinstance(models.stt, LocalSTT)
    stream = models.stt.stream()
    stream.told.clear()
    telling = asyncio.ensure_future(models.stt.told())
    session.emit("user_input_transcribed", UserInputTranscribedEvent(transcript="My", is_final=False))
    await settle()
    assert not telling.done()
    session.emit("user_input_transcribed", UserInputTranscribedEvent(transcript="My cat.", is_final=True))
    async with asyncio.timeout(5):
        await telling
    await stream.aclose()
    await models.aclose()
