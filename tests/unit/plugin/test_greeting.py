"""The profile: in the first LLM calls of a session, if it comes in time; afterwards never again."""

from __future__ import annotations

import pytest
from livekit.agents import Agent, function_tool

from memory.context.block import CLOSE, OPEN, parse_block, strip_block
from memory.context.budget import estimate_tokens
from memory.models import Fact
from memory.settings import load_settings
from tests.support.fact_source import fact
from tests.support.recalls import settle
from tests.support.scripted_llm import Request, ToolCall
from tests.support.sessions import INSTRUCTIONS, ScriptedRetriever, call, passage

EMAIL, YORK = fact("The user prefers email", turns=["old-7"]), fact("The user lives in York", turns=["old-8"])


def profiled(*facts: Fact, **fields: object) -> ScriptedRetriever:
    return ScriptedRetriever(profiled=facts or (EMAIL, YORK), **fields)  # type: ignore[arg-type]


def lines(request: Request) -> list[str]:
    """What the block in front of the last user message tells."""
    assert "\n".join(text for _, text in request.messages).count(OPEN) <= 1
    return [line.text for line in parse_block(request.last_user)]


async def test_the_first_turn_is_told_the_profile_and_later_ones_are_not() -> None:
    async with call(retriever=profiled()) as made:
        await made.type("Hello.")
        await made.type("How are you?")
        first, second = made.llm.requests
        assert lines(first) == [EMAIL.text, YORK.text]
        assert strip_block(first.last_user) == "Hello."
        assert lines(second) == []
        assert made.memory.last_block == ""


async def test_a_greeting_is_told_it_in_a_message_of_its_own_that_is_in_no_history() -> None:
    async with call(retriever=profiled()) as made:
        await made.session.generate_reply(instructions="Greet the user.")
        await made.say("Hello.")
        greeting, turn = made.llm.requests
        assert lines(greeting) == lines(turn) == [EMAIL.text, YORK.text]
        assert strip_block(greeting.last_user) == ""
        assert [role for role, text in greeting.messages if OPEN in text] == ["user"]
        history = [message.text_content for message in made.session.history.messages()]
        assert history == ["All right.", "Hello.", "All right."]
        assert [text for _, text in await made.texts()] == history


async def test_a_profile_that_comes_late_is_told_in_the_next_turn_and_nobody_waits_for_it() -> None:
    retriever = profiled()
    retriever.profile_hold.clear()
    async with call(retriever=retriever) as made:
        await made.session.generate_reply(instructions="Greet the user.")
        await made.type("Hello.")
        retriever.profile_hold.set()
        await settle()
        await made.type("How are you?")
        assert [lines(request) for request in made.llm.requests[1:]] == [[], [EMAIL.text, YORK.text]]
        assert OPEN not in made.llm.requests[0].messages[-1][1]


async def test_what_the_turn_finds_itself_comes_first_and_is_told_once() -> None:
    retriever = profiled(EMAIL, YORK, fact("The user has a cat", turns=["old-1"]))
    retriever.facts, retriever.passages = [YORK], [passage("My cat is called Biscuit.", "old-1")]
    async with call(retriever=retriever) as made:
        await made.type("Where does my cat live?")
        assert lines(made.llm.requests[0]) == [YORK.text, "My cat is called Biscuit.", EMAIL.text]


async def test_tool_steps_and_early_replies_of_the_first_turn_are_told_it_too() -> None:
    class WithTool(Agent):
        @function_tool
        async def weather(self) -> str:
            """The weather."""
            return "sunny"

    agent = WithTool(instructions=INSTRUCTIONS)
    async with call([ToolCall("weather"), "Sunny.", "Fine."], agent=agent, retriever=profiled()) as made:
        await made.say("How is the weather?", interims=["How is"])
        await made.say("And now?")
        assert [bool(lines(request)) for request in made.llm.requests] == [True, True, False]


@pytest.mark.promise("P-erased")
async def test_P_erased_a_profile_of_before_a_change_is_not_told_and_made_anew() -> None:
    retriever = profiled(state="0/1")
    async with call(retriever=retriever) as made:
        await settle()
        retriever.profiled, retriever.state = [YORK], "1/2"
        await made.type("Hello.")
        await settle()
        await made.type("How are you?")
        assert [lines(request) for request in made.llm.requests] == [[], [YORK.text]]


@pytest.mark.promise("P-erased")
async def test_P_erased_an_old_profile_is_told_in_no_greeting() -> None:
    async with call(retriever=profiled()) as made:
        await settle()
        await made.clock.advance(11.0)
        await made.session.generate_reply(instructions="Greet the user.")
        assert OPEN not in "".join(text for _, text in made.llm.requests[0].messages)


@pytest.mark.promise("P-silent")
async def test_P_silent_a_profile_that_fails_costs_nothing() -> None:
    async with call(retriever=profiled(error=RuntimeError("gone"))) as made:
        await made.session.generate_reply(instructions="Greet the user.")
        await made.type("Hello.")
        assert len(made.llm.requests) == 2
        assert made.memory.counters["profile.failed"] == 1


async def test_without_facts_or_recall_there_is_no_block() -> None:
    async with call(retriever=ScriptedRetriever()) as made:
        await made.session.generate_reply(instructions="Greet the user.")
        await made.type("Hello.")
        assert len(made.llm.requests) == 2
        assert all(OPEN not in text for request in made.llm.requests for _, text in request.messages)
        assert made.memory.counters["profile.empty"] == 1


@pytest.mark.promise("P-isolated")
async def test_P_isolated_nobody_in_particular_has_no_profile() -> None:
    retriever = profiled()
    async with call(retriever=retriever, user_id="ana", assurance="anonymous") as made:
        await made.type("Hello.")
        assert retriever.profiles == []
        assert lines(made.llm.requests[0]) == []


async def test_a_large_profile_stays_within_the_blocks_tokens() -> None:
    facts = [fact(f"The user has told us about matter number {number} at some length") for number in range(20)]
    settings = load_settings(block_tokens=200)
    async with call(retriever=profiled(*facts), settings=settings) as made:
        await made.type("Hello.")
        [request] = made.llm.requests
        assert 0 < estimate_tokens(request.last_user.partition(CLOSE)[0] + CLOSE) <= 200
        assert lines(request)[0] == facts[0].text
