"""Chat completions as OpenAI's API has them: what a request says, what is wrong with it, and the answer's wire form.

Above: openai_server. Below: agent.local.thinker.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.local.thinker import think
from tests.support.scripted_llm import ToolCall

Wire = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PIECE = re.compile(r"\S+\s*")
_ARGUMENTS_CHARS = 8
_CREATED = 1_700_000_000
_ids = itertools.count(1)


Answer = str | ToolCall | Sequence[ToolCall]


class BadRequest(ValueError):
    """OpenAI would answer 400 to this; the message says why."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for an answer, checked."""

    body: Wire

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Role and text of each message; "" for one that only calls tools."""
        return [(message["role"], _text(message.get("content"))) for message in self.body["messages"]]

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools", [])]

    @property
    def last_user(self) -> str:
        return self.texts("user")[-1]

    def texts(self, role: str) -> list[str]:
        return [text for found, text in self.messages if found == role]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def tells_usage(self) -> bool:
        return bool((self.body.get("stream_options") or {}).get("include_usage"))


Answerer = Callable[[ChatRequest], Answer]


def extractive(request: ChatRequest) -> Answer:
    """The answer of the agent's own thinker, which quotes what it was told."""
    return think([pair for pair in request.messages if pair[0] != "tool"], datetime.now(UTC).date())


def checked(body: Wire) -> ChatRequest:
    """A request that OpenAI would take.

    Raises:
        BadRequest: it would not.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("[] is too short - 'messages'")
    for message in messages:
        if message.get("role") not in _ROLES:
            raise BadRequest(f"Invalid value: {message.get('role')!r} - 'messages.role'")
        if message.get("content") is None and not message.get("tool_calls"):
            raise BadRequest("Invalid value for 'content': expected a string, got null.")
    _check_tool_steps(messages)
    for tool in body.get("tools", []):
        if not _TOOL_NAME.fullmatch(tool["function"]["name"]):
            raise BadRequest("Invalid 'tools[0].function.name': string does not match pattern.")
    if "tools" in body and not body["tools"]:
        raise BadRequest("[] is too short - 'tools'")
    return ChatRequest(body)


def _check_tool_steps(messages: Sequence[Wire]) -> None:
    """Each call is answered at once, and nothing else is."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise BadRequest(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            break
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    if open_calls:
        raise BadRequest("An assistant message with 'tool_calls' must be followed by tool messages for each of them.")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def completion(request: ChatRequest, answer: Answer) -> Wire:
    """The whole answer at once."""
    message: Wire = {"role": "assistant", "content": answer if isinstance(answer, str) else None, "refusal": None}
    if not isinstance(answer, str):
        message["tool_calls"] = [_call(call) for call in _calls(answer)]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(request, answer)}


def chunks(request: ChatRequest, answer: Answer) -> Iterator[Wire]:
    """The answer word by word; the usage, where it is asked for, in a chunk of its own without choices."""
    head = _head(request, "chat.completion.chunk")
    if request.tells_usage:
        head["usage"] = None
    for delta in ({"role": "assistant", "content": "", "refusal": None}, *_deltas(answer)):
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]}
    if request.tells_usage:
        yield {**head, "choices": [], "usage": _usage(request, answer)}


def _deltas(answer: Answer) -> Iterator[Wire]:
    if isinstance(answer, str):
        yield from ({"content": word} for word in _PIECE.findall(answer))
        return
    for index, call in enumerate(map(_call, _calls(answer))):
        arguments = call["function"]["arguments"]
        call["function"]["arguments"] = ""
        yield {"tool_calls": [{"index": index, **call}]}
        for start in range(0, len(arguments), _ARGUMENTS_CHARS):
            part = arguments[start : start + _ARGUMENTS_CHARS]
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _calls(answer: Answer) -> Sequence[ToolCall]:
    assert not isinstance(answer, str)
    return (answer,) if isinstance(answer, ToolCall) else answer


def _call(call: ToolCall) -> Wire:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": f"call_{next(_ids)}", "type": "function", "function": function}


def _finish(answer: Answer) -> str:
    return "stop" if isinstance(answer, str) else "tool_calls"


def _head(request: ChatRequest, kind: str) -> Wire:
    return {
        "id": f"chatcmpl-{next(_ids)}",
        "object": kind,
        "created": _CREATED,
        "model": request.body["model"],
        "service_tier": "default",
    }


def _usage(request: ChatRequest, answer: Answer) -> Wire:
    prompt = tokens("".join(text for _, text in request.messages))
    said = tokens(answer if isinstance(answer, str) else json.dumps([call.arguments for call in _calls(answer)]))
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def tokens(text: str) -> int:
    """About as many tokens as ``text`` has."""
    return -(-len(text) // 4)
