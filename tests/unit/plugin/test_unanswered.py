"""Turns that livekit drops without a word: whose hook raises, says ``StopResponse``, or that no LLM answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from livekit.agents import Agent, StopResponse, function_tool, llm

from memory.plugin.unanswered import around_turn
from tests.support.realtime import ScriptedRealtime
from tests.support.scripted_llm import ToolCall
from tests.support.sessions import INSTRUCTIONS, Call, call
from tests.support.voice import eventually

CAT = "my cat is called biscuit"
Does = Callable[[Agent, llm.ChatMessage], Awaitable[None]]


class Hooked(Agent):
    """An agent whose hook does what the test says, and then counts the turn."""

    def __init__(self, does: Does) -> None:
        super().__init__(instructions=INSTRUCTIONS)
        self.does: Does | None = does
        self.turns = 0

    async def on_user_turn_completed(self, turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        try:
            if self.does is not None:
                await self.does(self, new_message)
        finally:
            self.turns += 1


def raises(error: BaseException) -> Does:
    async def does(agent: Agent, message: llm.ChatMessage) -> None:
        raise error

    return does


async def speak(made: Call, agent: Hooked, text: str) -> None:
    """A turn that nobody answers."""
    before = agent.turns
    await made.stt.turn(text)
    await eventually(lambda: agent.turns > before, "the hook")


@pytest.mark.promise("P-durable")
@pytest.mark.parametrize(
    "error", [StopResponse(), ValueError("x"), asyncio.CancelledError()], ids=["stop", "error", "cancelled"]
)
async def test_P_durable_a_turn_whose_hook_raises_is_stored_once_as_it_was_said(error: BaseException) -> None:
    agent = Hooked(raises(error))
    async with call(agent=agent) as made:
        await speak(made, agent, CAT)
        [entry] = await made.entries()
        assert (entry.role, entry.mode, entry.content, entry.language) == ("user", "voice", CAT, "en")
        assert entry.transcript_confidence == pytest.approx(0.9)
        assert made.output.played == []

        agent.does = None
        await made.say("and my dog is called pepper")
        assert await made.texts() == [
            ("user", CAT),
            ("user", "and my dog is called pepper"),
            ("assistant", "All right."),
        ]
        assert made.retriever.asked[-1] == "and my dog is called pepper"  # nothing of the other turn is left in it
        assert len({entry.id for entry in await made.entries()}) == 3


async def test_what_is_said_again_after_such_a_turn_is_another_turn() -> None:
    agent = Hooked(raises(StopResponse()))
    async with call(agent=agent) as made:
        await speak(made, agent, CAT)
        agent.does = None
        await made.say(CAT)
        assert [text for role, text in await made.texts() if role == "user"] == [CAT, CAT]


async def test_a_hook_that_changes_the_turn_and_stops_has_it_stored_as_changed() -> None:
    async def masks(agent: Agent, message: llm.ChatMessage) -> None:
        message.content = ["my cat is called (a name)"]
        raise StopResponse

    agent = Hooked(masks)
    async with call(agent=agent) as made:
        await speak(made, agent, CAT)
        assert await made.texts() == [("user", "my cat is called (a name)")]


async def test_a_hook_that_empties_the_turn_and_stops_has_it_not_stored() -> None:
    async def discards(agent: Agent, message: llm.ChatMessage) -> None:
        message.content = []
        raise StopResponse

    agent = Hooked(discards)
    async with call(agent=agent) as made:
        await speak(made, agent, CAT)
        assert await made.texts() == []


@pytest.mark.parametrize("as_message", [False, True], ids=["text", "message"])
async def test_a_hook_that_asks_for_the_reply_itself_and_stops_has_the_turn_stored_once(as_message: bool) -> None:
    async def replies(agent: Agent, message: llm.ChatMessage) -> None:
        agent.session.generate_reply(user_input=message if as_message else message.text_content or "")
        raise StopResponse

    agent = Hooked(replies)
    async with call(agent=agent) as made:
        await made.say(CAT)
        assert await made.texts() == [("user", CAT), ("assistant", "All right.")]
        assert (await made.entries())[0].mode == "voice"


async def test_a_hook_that_has_something_else_answered_and_stops_has_both_stored() -> None:
    async def replies(agent: Agent, message: llm.ChatMessage) -> None:
        agent.session.generate_reply(user_input="what is a good name for a cat")
        raise StopResponse

    agent = Hooked(replies)
    async with call(agent=agent) as made:
        await made.say(CAT)
        users = [text for role, text in await made.texts() if role == "user"]
        assert sorted(users) == [CAT, "what is a good name for a cat"]


@pytest.mark.promise("P-both")
async def test_P_both_typed_turns_run_no_hook_and_are_stored_once() -> None:
    agent = Hooked(raises(StopResponse()))
    async with call(agent=agent) as made:
        await made.type("Typed.")
        await made.session.generate_reply(user_input="Typed too.")
        assert agent.turns == 0
        assert [text for role, text in await made.texts() if role == "user"] == ["Typed.", "Typed too."]


async def test_the_next_agent_of_a_handoff_is_looked_after_too() -> None:
    second = Hooked(raises(StopResponse()))

    class First(Agent):
        @function_tool
        async def transfer(self) -> Agent:
            """Hand over."""
            return second

    async with call([ToolCall("transfer")], agent=First(instructions=INSTRUCTIONS)) as made:
        await made.type("Hand me over.")
        await speak(made, second, CAT)
        assert (await made.texts())[-1] == ("user", CAT)
    assert "on_user_turn_completed" not in vars(second)


@pytest.mark.promise("P-durable")
async def test_P_durable_a_session_without_an_llm_stores_what_is_said() -> None:
    agent = Hooked(raises(StopResponse()))
    agent.does = None
    async with call(agent=agent, model=None) as made:
        await speak(made, agent, CAT)
        assert await made.texts() == [("user", CAT)]


async def test_a_realtime_model_tells_its_turns_itself() -> None:
    agent = Hooked(raises(StopResponse()))
    model = ScriptedRealtime("Hello there.", turn_detection=False)
    async with call(agent=agent, model=model) as made:
        await speak(made, agent, CAT)
        model.hear(CAT, began_at=1.0)
        await eventually(made.session.history.messages, "the transcript")
        assert [text for role, text in await made.texts() if role == "user"] == [CAT]


async def test_a_fault_of_our_own_does_not_take_the_place_of_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Hooked(raises(StopResponse()))
    async with call(agent=agent) as made:

        def broken(*_: Any) -> Any:
            raise KeyError(CAT)

        monkeypatch.setattr(made.memory._turns, "user", broken)
        with pytest.raises(StopResponse):
            await agent.on_user_turn_completed(llm.ChatContext.empty(), llm.ChatMessage(role="user", content=[CAT]))
        assert made.memory.counters["plugin.errors"] == 1


async def test_a_hook_that_returns_is_left_to_livekit() -> None:
    dropped: list[llm.ChatMessage] = []

    async def hook(turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        new_message.content = ["changed"]

    message = llm.ChatMessage(role="user", content=[CAT])
    await around_turn(hook, reported=lambda: True, record=dropped.append)(llm.ChatContext.empty(), new_message=message)
    assert (message.content, dropped) == (["changed"], [])
