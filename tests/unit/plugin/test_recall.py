"""Memory in front of the LLM: in each request once, nowhere else, in time or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from livekit.agents import Agent, ModelSettings, function_tool, llm

from memory.context.block import OPEN, strip_block
from memory.settings import load_settings
from tests.support.recalls import settle
from tests.support.remembering import BISCUIT, check_one_block, remembering
from tests.support.scripted_llm import Request, ToolCall
from tests.support.sessions import INSTRUCTIONS, Call, ScriptedRetriever, call
from tests.support.voice import eventually


async def test_P_both_a_typed_turn_is_given_memory() -> None:
    async with call(retriever=remembering()) as made:
        await made.type("What is my cat called?")
        [request] = made.llm.requests
        check_one_block(request)
        assert strip_block(request.last_user) == "What is my cat called?"
        assert made.memory.last_block == request.last_user.removesuffix("\n\nWhat is my cat called?")
        assert made.memory.last_recall is not None


@pytest.mark.promise("P-both")
@pytest.mark.case("L14")
async def test_L14_P_both_a_spoken_turn_makes_one_request_though_it_is_preemptive() -> None:
    early: list[str] = []
    async with call(retriever=remembering()) as made:
        made.session.on("speech_created", lambda _: early.append(made.session.user_state))
        for number in range(20):
            await made.say("book a table for six", interims=["book", "book a table"])
            assert len(made.llm.requests) == number + 1
        for request in made.llm.requests:
            check_one_block(request)
        entries = await made.entries()
    assert [entry.role for entry in entries] == ["user", "assistant"] * 20
    assert early == ["speaking"] * 20  # each reply began before its turn had ended
    assert {entry.content for entry in entries} == {"book a table for six", "All right."}
    assert len({entry.id for entry in entries}) == 40


@pytest.mark.case("L14")
async def test_L14_two_finals_of_one_turn_store_it_once() -> None:
    from livekit.agents import stt

    async with call(retriever=remembering()) as made:
        kinds = stt.SpeechEventType
        await made.stt.send(kinds.START_OF_SPEECH)
        await made.stt.send(kinds.PREFLIGHT_TRANSCRIPT, "book a table")
        await eventually(lambda: len(made.llm.requests) == 1, "a preemptive reply")
        await made.stt.send(kinds.FINAL_TRANSCRIPT, "book a table")
        await made.stt.send(kinds.FINAL_TRANSCRIPT, "for six")
        await made.stt.send(kinds.END_OF_SPEECH)
        await eventually(lambda: made.output.played, "the reply")
        await made.listening()
        assert await made.texts() == [("user", "book a table for six"), ("assistant", "All right.")]
        assert strip_block(made.llm.requests[-1].last_user) == "book a table for six"
        assert len(made.llm.requests) == 2  # one for the speculative half: livekit's own price of being early


@pytest.mark.case("L15")
async def test_L15_thirty_turns_pile_nothing_up() -> None:
    async with call(retriever=remembering()) as made:
        instructions = set()
        for number in range(30):
            await (made.type(f"typed {number}") if number % 2 else made.say(f"spoken {number}"))
        assert len(made.llm.requests) == 30
        for request in made.llm.requests:
            check_one_block(request)
            instructions.add(request.texts("system")[0])
        assert instructions == {INSTRUCTIONS}
        history = [message.text_content or "" for message in made.session.history.messages()]
        assert len(history) == 60
        assert not any(OPEN in text for text in history)
        assert not any(OPEN in text or BISCUIT in text for _, text in await made.texts())
        entries = await made.entries()
        assert len(entries) == 60
        assert not [entry for entry in entries if BISCUIT in entry.model_dump_json()]


@pytest.mark.case("L15")
async def test_L15_after_a_handoff_the_next_agent_remembers_too() -> None:
    class Second(Agent):
        def __init__(self, chat_ctx: llm.ChatContext) -> None:
            super().__init__(instructions="You are the second.", chat_ctx=chat_ctx)

        async def on_enter(self) -> None:
            await self.session.generate_reply(instructions="Say hello.")

    class First(Agent):
        @function_tool
        async def transfer(self) -> Agent:
            """Hand over."""
            return Second(self.chat_ctx.copy())

    async with call(
        [ToolCall("transfer"), "Hello from the second.", "Sure."],
        agent=First(instructions=INSTRUCTIONS),
        retriever=remembering(),
    ) as made:
        await made.type("Hand me over.")
        await eventually(lambda: len(made.llm.requests) == 2, "the second agent's hello")
        await made.listening()
        await made.say("What is my cat called?")
        assert len(made.llm.requests) == 3
        for request in made.llm.requests:
            check_one_block(request)
        assert made.llm.requests[-1].texts("system")[0] == "You are the second."
        assert [text for _, text in await made.texts()] == [
            "Hand me over.",
            "Hello from the second.",
            "What is my cat called?",
            "Sure.",
        ]


async def test_tool_steps_of_a_turn_share_one_block_and_one_recall() -> None:
    class WithTool(Agent):
        @function_tool
        async def weather(self) -> str:
            """The weather."""
            return "sunny"

    answers = [ToolCall("weather"), ToolCall("weather"), "It is sunny."]
    async with call(answers, agent=WithTool(instructions=INSTRUCTIONS), retriever=remembering()) as made:
        await made.type("How is the weather?")
        assert len(made.llm.requests) == 3
        assert len({request.last_user for request in made.llm.requests}) == 1
        for request in made.llm.requests:
            check_one_block(request)
        assert made.retriever.asked == ["How is the weather?"]


async def test_a_message_with_pictures_keeps_them() -> None:
    picture = llm.ImageContent(image="https://example.test/cat.png")
    async with call(retriever=remembering()) as made:
        await made.session.generate_reply(user_input=llm.ChatMessage(role="user", content=[picture, "Is this my cat?"]))
        [request] = made.llm.requests
        first, text = request.contents[-1]
        assert first is picture
        assert text.startswith(OPEN)
        assert strip_block(text) == "Is this my cat?"


async def test_a_turn_without_words_and_one_without_a_user_recall_nothing() -> None:
    picture = llm.ImageContent(image="https://example.test/cat.png")
    async with call(retriever=remembering()) as made:
        await made.session.generate_reply(instructions="Greet the user.")
        await made.session.generate_reply(user_input=llm.ChatMessage(role="user", content=[picture]))
        assert len(made.llm.requests) == 2
        assert made.retriever.asked == []
        assert [role for role, _ in await made.texts()] == ["assistant", "assistant"]


async def test_what_is_in_the_context_is_not_recalled_again() -> None:
    async with call(retriever=remembering()) as made:
        await made.type("I moved to Lyon.")
        await made.type("Where do I live?")
        ids = {entry.id for entry in (await made.entries())[:3]}
        assert ids <= made.retriever.excluded[-1]


async def test_nothing_remembered_changes_nothing() -> None:
    async with call() as made:
        await made.type("Hello.")
        assert made.llm.requests[0].messages == (("system", INSTRUCTIONS), ("user", "Hello."))
        assert made.memory.last_block == ""


# -- in time, or not at all --------------------------------------------------------------------------------------------


async def hangs(made: Call, text: str) -> asyncio.Task[Any]:
    """A typed turn whose recall doesn't come back."""

    async def run() -> None:
        await made.type(text)

    task = asyncio.create_task(run())
    await eventually(lambda: made.retriever.running, "the recall")
    return task


@pytest.mark.promise("P-silent")
@pytest.mark.case("L10")
async def test_L10_P_silent_a_recall_that_never_returns_costs_its_budget_once() -> None:
    retriever = remembering()
    retriever.hold.clear()
    settings = load_settings(turn_budget_ms=300)
    tasks = asyncio.all_tasks()
    async with call(retriever=retriever, settings=settings) as made:
        for text in ("My flight is on Monday", "no sorry, Tuesday"):
            turn = await hangs(made, text)
            await made.clock.advance(0.299)
            before = len(made.llm.requests)
            await made.clock.advance(0.001)
            await turn
            assert len(made.llm.requests) == before + 1
        assert [request.last_user for request in made.llm.requests] == ["My flight is on Monday", "no sorry, Tuesday"]
        users = [text for role, text in await made.texts() if role == "user"]
        assert users == ["My flight is on Monday", "no sorry, Tuesday"]
        reply = (await made.entries())[1]
        assert reply.degradations == ("memory_late",)
        assert made.memory.counters["recall.late"] == 2
        await settle()
        assert retriever.running == 0
    await settle()
    assert asyncio.all_tasks() == tasks


@pytest.mark.promise("P-silent")
async def test_P_silent_a_hung_recall_is_waited_for_once_a_turn_however_many_steps_it_has() -> None:
    class WithTool(Agent):
        @function_tool
        async def look(self) -> str:
            """Look."""
            return "found"

    retriever = remembering()
    retriever.hold.clear()
    async with call([ToolCall("look"), "Done."], agent=WithTool(instructions="x"), retriever=retriever) as made:
        turn = await hangs(made, "Look.")
        await made.clock.advance(0.3)
        await turn
        assert len(made.llm.requests) == 2
        assert made.memory.counters["recall.late"] == 1


@pytest.mark.promise("P-silent")
@pytest.mark.case("L09")
@pytest.mark.parametrize("error", [ConnectionError("x"), RuntimeError("ResponseError"), TimeoutError(), KeyError("x")])
async def test_L09_P_silent_a_failing_recall_leaves_the_turn_alone(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = ScriptedRetriever(error=error)
    async with call(retriever=retriever) as made:
        await made.say("I am diabetic, can I take it?")
        [request] = made.llm.requests
        assert request.last_user == "I am diabetic, can I take it?"
        assert [text for _, text in await made.texts()] == ["I am diabetic, can I take it?", "All right."]
        assert made.memory.counters["recall.failed"] == 1
    ours = [record for record in caplog.records if record.name.startswith("memory")]
    assert ours
    assert all(record.exc_info is None and "diabetic" not in record.getMessage() for record in ours)


@pytest.mark.promise("P-silent")
@pytest.mark.case("L09")
@pytest.mark.parametrize("part", ["render_block", "Deadline"])
async def test_L09_P_silent_a_fault_of_our_own_leaves_the_turn_alone(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("the user's words")

    async with call(retriever=remembering()) as made:
        monkeypatch.setattr(f"memory.plugin.recall.{part}", broken)
        await made.type("Hello.")
        assert made.llm.requests[0].last_user == "Hello."
        assert made.memory.counters["recall.errors"] == 1


async def test_an_llm_error_is_the_sessions_own() -> None:
    """The memory neither hides nor changes what livekit does about a failing node."""

    class Failing(Agent):
        async def llm_node(
            self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings
        ) -> AsyncIterator[Any]:
            if chat_ctx:
                raise ValueError("no")
            yield ""

    async with call(agent=Failing(instructions="x"), retriever=remembering()) as made:
        handle = made.session.generate_reply(user_input="Hello.")
        await handle
        assert isinstance(handle.exception(), ValueError)
        assert await made.texts() == [("user", "Hello.")]


async def test_interims_start_the_recall_that_the_turn_takes() -> None:
    async with call(retriever=remembering()) as made:
        made.retriever.hold.clear()
        from livekit.agents import stt

        await made.stt.send(stt.SpeechEventType.START_OF_SPEECH)
        await made.stt.send(stt.SpeechEventType.INTERIM_TRANSCRIPT, "what is my cat called")
        await eventually(lambda: made.retriever.running, "the prefetch")
        assert made.llm.requests == []
        made.retriever.hold.set()
        await made.stt.send(stt.SpeechEventType.FINAL_TRANSCRIPT, "What is my cat called?")
        await made.stt.send(stt.SpeechEventType.END_OF_SPEECH)
        await eventually(lambda: made.output.played, "the reply")
        check_one_block(made.llm.requests[0])
        assert made.retriever.asked == ["what is my cat called"]


async def test_prefetch_can_be_turned_off() -> None:
    async with call(retriever=remembering(), settings=load_settings(prefetch=False)) as made:
        await made.say("What is my cat called?", interims=["What is"])
        assert made.retriever.asked == ["What is my cat called?"]


# -- who may be remembered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("needed", "given", "recalls"), [("signed", "caller_id", 0), ("signed", "signed", 1)])
async def test_recall_needs_a_sure_enough_identity(needed: Any, given: Any, recalls: int) -> None:
    settings = load_settings(recall_assurance=needed)
    async with call(retriever=remembering(), settings=settings, assurance=given) as made:
        await made.type("What is my cat called?")
        assert len(made.retriever.asked) == recalls
        assert (OPEN in made.llm.requests[0].last_user) == bool(recalls)
        assert len(await made.entries()) == 2


async def test_an_anonymous_caller_is_recorded_and_recalls_nothing() -> None:
    async with call(
        retriever=remembering(), user_id=None, settings=load_settings(recall_assurance="anonymous")
    ) as made:
        await made.type("What is my cat called?")
        assert made.retriever.asked == []
        scope = await made.memory.identified()
        assert (scope.kind, scope.user_id) == ("session", made.memory.session_id)
        assert [entry.user_id for entry in await made.entries()] == ["", ""]
        assert (await made.entries())[1].degradations == ()


async def test_the_user_is_warmed_up_at_the_start() -> None:
    async with call(retriever=remembering()) as made:
        await eventually(lambda: made.retriever.warmed, "the warming")
        assert made.retriever.warmed == [await made.memory.identified()]
        assert made.memory.scope == made.retriever.warmed[0]


# -- the tool ----------------------------------------------------------------------------------------------------------


async def test_the_llm_can_look_things_up_by_itself() -> None:
    results: list[str] = []

    def answer(request: Request) -> Any:
        return ToolCall("recall_memory", {"query": "cat"}) if len(made.llm.requests) == 1 else "It is Biscuit."

    async with call(answer, retriever=remembering(), recall_tool=True) as made:
        made.session.on("function_tools_executed", lambda event: results.append(event.function_call_outputs[0].output))
        await made.type("And my cat?")
        assert "recall_memory" in made.llm.requests[0].tools
        assert BISCUIT in results[0]
        assert made.retriever.asked == ["And my cat?", "cat"]
        assert (await made.texts())[-1] == ("assistant", "It is Biscuit.")


async def test_the_tool_says_so_when_memory_is_away() -> None:
    results: list[str] = []
    answers = [ToolCall("recall_memory", {"query": "cat"}), "I don't know."]
    async with call(answers, retriever=ScriptedRetriever(error=ConnectionError()), recall_tool=True) as made:
        made.session.on("function_tools_executed", lambda event: results.append(event.function_call_outputs[0].output))
        await made.type("And my cat?")
        assert results == ["Memory can't be reached right now."]


async def test_without_the_tool_there_is_none() -> None:
    async with call(retriever=remembering()) as made:
        await made.type("Hello.")
        assert made.llm.requests[0].tools == ()


# -- typed turns start early -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["Do I have a cat?", llm.ChatMessage(role="user", content=["Do I have a cat?"])])
async def test_a_typed_turn_asks_once_and_before_livekit_calls_the_llm(typed: str | llm.ChatMessage) -> None:
    retriever = remembering()
    async with call(retriever=retriever) as made:
        await made.type("Hello.")
        await made.clock.advance(1)
        called = len(made.llm.requests)
        made.session.generate_reply(user_input=typed)
        await asyncio.sleep(0)
        assert retriever.asked == ["Hello.", "Do I have a cat?"]
        assert len(made.llm.requests) == called
        await eventually(lambda: len(made.llm.requests) > called, "the LLM's call")
        await made.listening()
        check_one_block(made.llm.requests[-1])
        assert len(retriever.asked) == 2
        said = {entry.id for entry in await made.entries()}
        assert len(retriever.excluded[1] & said) == 2  # the first turn and its reply are in the context anyhow


async def test_the_sessions_own_way_to_reply_is_back_when_the_memory_is_closed() -> None:
    async with call() as made:
        assert "generate_reply" in vars(made.session)
        await made.memory.aclose()
        assert "generate_reply" not in vars(made.session)
