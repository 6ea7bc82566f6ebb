"""Agents with an ``llm_node`` of their own, of every kind that livekit permits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from livekit.agents import Agent, ModelSettings, function_tool, llm

from tests.support.remembering import BISCUIT, check_one_block, remembering
from tests.support.scripted_llm import ToolCall
from tests.support.sessions import INSTRUCTIONS, call


class Generator(Agent):
    async def llm_node(
        self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings
    ) -> AsyncIterator[Any]:
        async for chunk in Agent.default.llm_node(self, chat_ctx, tools, model_settings):
            yield chunk


class Coroutine(Agent):
    async def llm_node(self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings) -> Any:
        return Agent.default.llm_node(self, chat_ctx, tools, model_settings)


class Text(Agent):
    """Answers by itself, from what it was given."""

    async def llm_node(self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings) -> str:
        return "I was given: " + (chat_ctx.messages()[-1].text_content or "").splitlines()[-4]


class Plain(Agent):
    def llm_node(  # type: ignore[override] # livekit permits it
        self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings
    ) -> str:
        return "I was given: " + (chat_ctx.messages()[-1].text_content or "").splitlines()[-4]


class OwnHook(Agent):
    async def on_user_turn_completed(self, turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        return None  # without super()


@pytest.mark.case("L11")
@pytest.mark.parametrize("kind", [Generator, Coroutine, OwnHook])
async def test_L11_an_agent_with_nodes_or_hooks_of_its_own_gets_memory(kind: type[Agent]) -> None:
    async with call(agent=kind(instructions=INSTRUCTIONS), retriever=remembering()) as made:
        await made.say("ship it to 12 Elm Road")
        await made.type("same address as last time?")
        assert len(made.llm.requests) == 2
        for request in made.llm.requests:
            check_one_block(request)
        entries = await made.entries()
        assert [(entry.mode, entry.content) for entry in entries if entry.role == "user"] == [
            ("voice", "ship it to 12 Elm Road"),
            ("text", "same address as last time?"),
        ]


@pytest.mark.case("L11")
@pytest.mark.parametrize("kind", [Text, Plain])
async def test_L11_a_node_that_returns_text(kind: type[Agent]) -> None:
    async with call(agent=kind(instructions=INSTRUCTIONS), retriever=remembering()) as made:
        await made.type("What is it called?")
        assert BISCUIT in (await made.texts())[-1][1]


async def test_what_a_node_does_to_its_context_reaches_the_next_step() -> None:
    class Noting(Agent):
        async def llm_node(
            self, chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings
        ) -> AsyncIterator[Any]:
            chat_ctx.add_message(role="system", content="noted")
            async for chunk in Agent.default.llm_node(self, chat_ctx, tools, model_settings):
                yield chunk

        @function_tool
        async def look(self) -> str:
            """Look."""
            return "found"

    async with call(
        [ToolCall("look"), "Done."], agent=Noting(instructions=INSTRUCTIONS), retriever=remembering()
    ) as made:
        await made.type("Look.")
        assert made.llm.requests[1].texts("system").count("noted") == 2
        check_one_block(made.llm.requests[1])
