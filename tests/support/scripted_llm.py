"""An LLM for tests that answers what the test says, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, llm, utils


@dataclass(frozen=True, slots=True)
class ToolCall:
    """An LLM answer that calls a tool."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the LLM: role and text of each message, as it was sent, and the tools it was offered."""

    messages: tuple[tuple[str, str], ...]
    contents: tuple[tuple[Any, ...], ...]
    tools: tuple[str, ...]

    def texts(self, role: str) -> list[str]:
        return [text for found, text in self.messages if found == role]

    @property
    def last_user(self) -> str:
        return self.texts("user")[-1]


Answer = str | ToolCall | Exception
Answers = Sequence[Answer] | Callable[[Request], Answer]


class ScriptedLLM(llm.LLM[Any]):
    """Answers from a list, round and round, or by a function; keeps every request. ``hold`` cleared: it waits."""

    def __init__(self, answers: Answers = ("All right.",)) -> None:
        super().__init__()
        self._answers = answers
        self.requests: list[Request] = []
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def model(self) -> str:
        return "scripted"

    @property
    def provider(self) -> str:
        return "test"

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        **_: Any,
    ) -> llm.LLMStream:
        return _ScriptedStream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)

    def take(self, chat_ctx: llm.ChatContext, tools: Sequence[llm.Tool]) -> Answer:
        messages = chat_ctx.messages()
        request = Request(
            messages=tuple((message.role, message.text_content or "") for message in messages),
            contents=tuple(tuple(message.content) for message in messages),
            tools=tuple(tool.info.name for tool in tools if isinstance(tool, llm.FunctionTool)),
        )
        self.requests.append(request)
        if callable(self._answers):
            return self._answers(request)
        return self._answers[(len(self.requests) - 1) % len(self._answers)]


class _ScriptedStream(llm.LLMStream):
    async def _run(self) -> None:
        scripted = self._llm
        assert isinstance(scripted, ScriptedLLM)
        answer = scripted.take(self._chat_ctx, self._tools)
        await scripted.hold.wait()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, ToolCall):
            call = llm.FunctionToolCall(
                name=answer.name, arguments=json.dumps(answer.arguments), call_id=utils.shortuuid("call_")
            )
            self._send(llm.ChoiceDelta(role="assistant", tool_calls=[call]))
            return
        for number, word in enumerate(answer.split(" ")):
            self._send(llm.ChoiceDelta(role="assistant", content=word if number == 0 else f" {word}"))

    def _send(self, delta: llm.ChoiceDelta) -> None:
        self._event_ch.send_nowait(llm.ChatChunk(id="chunk", delta=delta))
