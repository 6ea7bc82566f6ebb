"""How a call is told: whose turn, and how long after the caller's last sound the reply's first one came."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any, cast

import numpy as np
import pytest
from livekit.agents import ConversationItemAddedEvent, UserInputTranscribedEvent, llm

from agent.commands.calls import CallTeller
from agent.commands.conversation import Conversation
from agent.commands.output import Output
from agent.local.audio import Playing
from agent.local.wav import RATE
from agent.settings import AgentSettings
from memory.models import Recall

END_S = 30
BEGAN_AT = 1_000.0


class Memory:
    """What a teller asks of the memory."""

    last_recall: Recall | None = None
    last_block = ""

    async def flush(self) -> bool:
        return True


class Hall:
    """A teller with a caller who speaks for one second, from ``BEGAN_AT`` on."""

    def __init__(self, *, as_json: bool) -> None:
        self._reading, self._writing = os.pipe()
        self.output = Output(self._writing)
        self.memory = Memory()
        self.teller = CallTeller(self.output, AgentSettings(), as_json=as_json)
        speech = np.concatenate([np.full(RATE, 5_000, np.int16), np.zeros(RATE, np.int16)])
        self.teller.playing = Playing(speech, RATE, started_at=BEGAN_AT)
        talk = cast("Any", Conversation)(
            None, self.memory, None, _SCOPE, "call-1", asyncio.get_running_loop().create_future()
        )
        self.teller.ready(talk, 5.0, {"llm": "local extractive"})

    def add(self, role: str, text: str, **metrics: float) -> None:
        message = llm.ChatMessage(role=cast("Any", role), content=[text], metrics=cast("Any", metrics))
        self.teller._on_item(ConversationItemAddedEvent(item=message))

    def heard(self, text: str) -> None:
        event = UserInputTranscribedEvent(transcript=text, is_final=True, language=cast("Any", "en"))
        self.teller._on_transcript(event)

    def shown(self) -> str:
        self.output.close(timeout_s=END_S)
        os.close(self._writing)
        with open(self._reading, encoding="utf-8") as stream:
            return stream.read()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for line in self.shown().splitlines() if (event := json.loads(line))["event"] == name]


class _Scope:
    user_id = "me"


_SCOPE = _Scope()


async def test_voice_to_voice_is_from_the_last_sound_to_the_first() -> None:
    hall = Hall(as_json=True)
    hall.heard("Hello.")
    # The VAD is sure 0.3 s after the voice has ended.
    hall.add("user", "Hello.", stopped_speaking_at=BEGAN_AT + 1.3)
    hall.teller.on_audible(BEGAN_AT + 1.5)
    hall.memory.last_recall, hall.memory.last_block = Recall(elapsed_ms=3.0), "<memory>"
    hall.add("assistant", "Hello yourself.")
    user, reply = hall.events("turn")
    assert (user["mode"], user["language"]) == ("voice", "en")
    assert reply["voice_to_voice_ms"] == pytest.approx(500, abs=1)
    assert (reply["memory_ms"], reply["block"]) == (3.0, "<memory>")


async def test_a_greeting_answers_nobody() -> None:
    hall = Hall(as_json=True)
    hall.teller.on_audible(BEGAN_AT)
    hall.add("assistant", "Welcome.")
    assert hall.teller.answered.is_set()
    (greeting,) = hall.events("turn")
    assert greeting["voice_to_voice_ms"] is None
    assert greeting["memory_ms"] is None


async def test_a_reply_that_was_not_heard_has_no_time() -> None:
    hall = Hall(as_json=True)
    hall.teller.on_audible(BEGAN_AT)  # of the greeting
    hall.add("user", "Hello.", stopped_speaking_at=BEGAN_AT + 1.3)
    hall.add("assistant", "Hello yourself.")
    assert hall.events("turn")[-1]["voice_to_voice_ms"] is None


async def test_people_get_lines() -> None:
    hall = Hall(as_json=False)
    hall.add("user", "Hello.", stopped_speaking_at=BEGAN_AT + 1.3)
    hall.teller.on_audible(BEGAN_AT + 1.5)
    hall.add("assistant", "Hello yourself.")
    caller, agent = hall.shown().splitlines()
    assert "caller  Hello.  (voice)" in caller
    assert "agent   Hello yourself.  (voice, memory -, voice to voice 500 ms)" in agent


async def test_a_calls_time_begins_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = iter([time.time() - 60])
    monkeypatch.setattr(time, "time", lambda now=time.time: next(loading, None) or now())
    hall = Hall(as_json=False)
    hall.add("user", "Hello.")
    assert hall.shown().startswith("[  0.0 s] caller  Hello.")


async def test_a_call_without_a_word_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    hall = Hall(as_json=True)
    assert hall.teller.end(None) == 1
    assert "Nothing was understood" in capsys.readouterr().err
    assert hall.events("end")[0]["turns"] == 0


async def test_what_was_said_is_told_to_be_durable() -> None:
    hall = Hall(as_json=True)
    hall.add("user", "Hello.", stopped_speaking_at=BEGAN_AT + 1.3)
    async with asyncio.timeout(END_S):
        while hall.teller._tasks:
            await asyncio.gather(*hall.teller._tasks)
    assert len(hall.events("durable")) == 1
