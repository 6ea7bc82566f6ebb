"""The thinker that is there when no LLM is configured: an ``llm.LLM`` that answers by quoting.

Above: worker, chat, call. Below: extract.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, APIConnectOptions, NotGivenOr, llm, utils

from agent.local.extract import LINE_CHARS_MAX, LINES_MAX, Said, own_words, reply, split_block
from agent.local.words import GREETING

NOTICE = "extractive (no LLM configured)"
_CHARS_PER_TOKEN = 4
_WORD = re.compile(r"\S+\s*")


def _today() -> date:
    return datetime.now(UTC).date()


class ExtractiveLLM(llm.LLM):  # type: ignore[type-arg] # livekit leaves it open too
    """Answers from the memory block and the conversation by quoting them; says so when they hold nothing.

    Needs no key, no network, no model; calls no tools. ``today`` gives the date that "yesterday" is told from.
    """

    notice = NOTICE

    def __init__(self, *, today: Callable[[], date] = _today) -> None:
        super().__init__()
        self.today = today

    @property
    def model(self) -> str:
        return "extractive"

    @property
    def provider(self) -> str:
        return "local"

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,
    ) -> llm.LLMStream:
        return _Quoting(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options, today=self.today())


class _Quoting(llm.LLMStream):
    def __init__(
        self,
        parent: ExtractiveLLM,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        conn_options: APIConnectOptions,
        today: date,
    ) -> None:
        super().__init__(parent, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)
        self._today = today

    async def _run(self) -> None:
        request_id = utils.shortuuid("extract_")
        messages = [(message.role, message.text_content or "") for message in self._chat_ctx.messages()]
        text = await asyncio.to_thread(think, messages, self._today)
        for word in _WORD.findall(text):
            delta = llm.ChoiceDelta(role="assistant", content=word)
            self._event_ch.send_nowait(llm.ChatChunk(id=request_id, delta=delta))
            await asyncio.sleep(0)
        prompt, completion = _tokens("".join(text for _, text in messages)), _tokens(text)
        usage = llm.CompletionUsage(
            completion_tokens=completion, prompt_tokens=prompt, total_tokens=prompt + completion
        )
        self._event_ch.send_nowait(llm.ChatChunk(id=request_id, usage=usage))


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


def think(messages: Sequence[tuple[str, str]], today: date) -> str:
    """The reply to ``messages`` (role, text), oldest first; the last of the user may start with a memory block."""
    newest = max((index for index, (role, _) in enumerate(messages) if role == "user"), default=None)
    if newest is None:
        return GREETING
    block, words = split_block(messages[newest][1])
    earlier = [
        Said(text[:LINE_CHARS_MAX], "user" if role == "user" else "agent", here=True)
        for role, text in messages[:newest]
        if role in ("user", "assistant") and not (role == "assistant" and own_words(text))
    ]
    return reply(block, earlier[-LINES_MAX:], words, today)
