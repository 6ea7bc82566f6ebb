"""A realtime (speech to speech) model: its turns are stored, and of a reply what was heard. Its LLM calls are the
provider's own, so memory reaches it by the ``recall_memory`` tool only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from livekit.agents import Agent

from memory.models import MemoryEntry
from memory.plugin import attach
from memory.stores.inmemory import InMemorySessionStore
from tests.support.realtime import ScriptedRealtime
from tests.support.sessions import INSTRUCTIONS, HandClock, ScriptedRetriever, backend_of, new_session
from tests.support.voice import ManualOutput, SilentMicrophone, eventually, spoken_words

REFUND = "Your refund of forty euros is approved, and I have also moved you to the Gold plan."


class RealtimeCall:
    def __init__(self, *messages: str, output: ManualOutput | None = None) -> None:
        self.clock = HandClock()
        self.store = InMemorySessionStore(self.clock)
        self.model = ScriptedRealtime(*messages)
        self.output = output or ManualOutput(instant=True)
        self.session = new_session(self.model)
        self.session.input.audio, self.session.output.audio = SilentMicrophone(), self.output
        self.agent = Agent(instructions=INSTRUCTIONS)
        self.memory = attach(
            self.session,
            self.agent,
            user_id="ana",
            backend=backend_of(self.store, ScriptedRetriever()),
            clock=self.clock,
        )

    async def interrupt_at(self, position_s: float) -> None:
        await eventually(lambda: self.output.whole, "the reply's audio")
        await self.clock.advance(position_s)
        self.output.position_s = position_s
        await self.session.interrupt()
        await eventually(lambda: self.session.agent_state == "listening")

    async def entries(self) -> list[MemoryEntry]:
        assert await self.memory.flush()
        return await self.store.entries(self.memory.session_id, limit=99)


@contextlib.asynccontextmanager
async def realtime(*messages: str, output: ManualOutput | None = None) -> AsyncIterator[RealtimeCall]:
    made = RealtimeCall(*messages, output=output)
    await made.session.start(made.agent, record=False)
    try:
        yield made
    finally:
        await made.session.aclose()
        await made.memory.aclose()


@pytest.mark.promise("P-both")
async def test_P_both_turns_of_a_realtime_model_are_stored() -> None:
    async with realtime("Hello there.") as made:
        await made.session.generate_reply(user_input="Typed.")
        began = datetime(2026, 1, 1, tzinfo=UTC)
        made.model.hear("Spoken.", began_at=began.timestamp())
        await eventually(lambda: len(made.session.history.messages()) == 4, "the second reply")
        entries = await made.entries()
    assert [(entry.role, entry.mode, entry.content) for entry in entries] == [
        ("user", "text", "Typed."),
        ("assistant", "text", "Hello there."),
        ("user", "voice", "Spoken."),
        ("assistant", "voice", "Hello there."),
    ]
    assert entries[2].timestamp == began


@pytest.mark.promise("P-heard")
@pytest.mark.case("L07")
@pytest.mark.parametrize("word", range(0, 17, 2))
async def test_L07_P_heard_of_a_realtime_models_reply(word: int) -> None:
    position_s = spoken_words(REFUND)[word].end_s + 0.03
    async with realtime(REFUND, output=ManualOutput()) as made:
        made.session.generate_reply(user_input="Where is my refund?")
        await made.interrupt_at(position_s)
        replies = [entry for entry in await made.entries() if entry.role == "assistant"]
    stored = replies[0].content.split() if replies else []
    assert word - 1 <= len(stored) <= word + 1
    assert stored == REFUND.split()[: len(stored)]
    assert all(entry.interrupted for entry in replies)


@pytest.mark.promise("P-heard")
async def test_P_heard_of_several_messages_only_the_last_is_cut() -> None:
    async with realtime("First, all of it.", REFUND, output=ManualOutput()) as made:
        made.session.generate_reply(user_input="Where is my refund?")
        await eventually(lambda: made.output.whole, "the first message")
        made.output.finish()
        await made.interrupt_at(spoken_words(REFUND)[4].end_s + 0.05)
        replies = [entry for entry in await made.entries() if entry.role == "assistant"]
    assert [entry.interrupted for entry in replies] == [False, True]
    assert replies[0].content == "First, all of it."
    assert "Gold" not in replies[1].content
    assert 3 <= len(replies[1].content.split()) <= 5
