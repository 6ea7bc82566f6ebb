"""A conversation within a number of tokens.

The first message (the system prompt) and the last three stay whole; what is between becomes one message,
``[Previous conversation summary: …]``, in the user's role: what people said is no instruction, summed up or not.
Where not even the protected messages fit, the bound wins: the longest of them are cut in their middles until all
fit, since a short one says more by staying whole than a long one loses; if there isn't room for all of them, the
older of the last three go first, then the system prompt, never the newest.

Above: service. Below: budget, ports, models, limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from memory.context.budget import (
    MESSAGE_TOKENS,
    Message,
    TokenCounter,
    count_tokens,
    cut_end,
    cut_middle,
    estimate_tokens,
    message_tokens,
)
from memory.limits import CONTEXT_PROTECTED_MESSAGES, CONTEXT_TOKENS_DEFAULT, SUMMARY_TIMEOUT_S
from memory.models import MemoryEntry, Role
from memory.ports import Summarizer

logger = logging.getLogger(__name__)

Summarize = Callable[[Sequence[Message]], Awaitable[str]]

SUMMARY_START, SUMMARY_END = "[Previous conversation summary: ", "]"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_CONTENT_TOKENS_MIN = 8  # less than this of a message or a summary says nothing


def summarize_with(summarizer: Summarizer) -> Summarize:
    """A ``Summarizer`` of entries as one of messages; what is no text of a known role is passed over."""

    async def summarize(messages: Sequence[Message]) -> str:
        texts = [(_ROLES.get(message.get("role", "")), message.get("content")) for message in messages]
        entries = [
            MemoryEntry(role=role, content=text, mode="text")
            for role, text in texts
            if role and isinstance(text, str) and text.strip()
        ]
        return await summarizer.summarize(entries)

    return summarize


async def truncate_context(
    messages: Sequence[Message],
    max_tokens: int = CONTEXT_TOKENS_DEFAULT,
    *,
    summarize: Summarize | None = None,
    timeout_s: float = SUMMARY_TIMEOUT_S,
    count: TokenCounter = estimate_tokens,
) -> list[dict[str, Any]]:
    """``messages`` within ``max_tokens`` by ``count``, whatever happens; the input is never changed.

    Without ``summarize``, or when it takes longer than ``timeout_s``, fails, or says nothing, the middle is dropped.
    Where not even a few words of the newest message fit, the result is empty.
    """
    if count_tokens(messages, count) <= max_tokens:
        return [dict(message) for message in messages]
    tail_start = max(1, len(messages) - CONTEXT_PROTECTED_MESSAGES)
    head, middle, tail = messages[:1], messages[1:tail_start], messages[tail_start:]
    room = max_tokens - count_tokens([*head, *tail], count)
    if room < 0:
        return _cut_to_fit([*head, *tail], max_tokens, count)
    summary = await _summary(middle, room, summarize, timeout_s, count)
    return [dict(message) for message in (*head, *summary, *tail)]


async def _summary(
    middle: Sequence[Message], room: int, summarize: Summarize | None, timeout_s: float, count: TokenCounter
) -> list[Message]:
    frame = MESSAGE_TOKENS + count(SUMMARY_START + SUMMARY_END)
    if summarize is None or not middle or room < frame + _CONTENT_TOKENS_MIN:
        return []
    try:
        async with asyncio.timeout(timeout_s):
            text = await summarize(middle)
    except Exception as error:  # a summary is never worth a turn, whatever its maker does
        logger.warning("The summary was left out: %s", type(error).__name__)
        return []
    text = cut_end(" ".join(text.split()), room - frame, count)
    message = {"role": "user", "content": f"{SUMMARY_START}{text}{SUMMARY_END}"}
    return [message] if text and message_tokens(message, count) <= room else []


def _cut_to_fit(protected: list[Message], max_tokens: int, count: TokenCounter) -> list[dict[str, Any]]:
    """The protected messages, cut; the last of the list is the newest."""
    for kept in _fewer_and_fewer(protected):
        cut = _level(kept, max_tokens, count)
        if cut is not None:
            return cut
    return []


def _fewer_and_fewer(protected: list[Message]) -> list[list[Message]]:
    system, rest = protected[:1], protected[1:]
    return [[*system, *rest[start:]] for start in range(len(rest))] + [protected[-1:]]


def _level(messages: list[Message], max_tokens: int, count: TokenCounter) -> list[dict[str, Any]] | None:
    """Cut every message that is longer than one common length, the greatest that fits; ``None`` where none does."""
    low, high = _CONTENT_TOKENS_MIN, max_tokens
    best = None
    while low <= high:
        level = (low + high) // 2
        cut = [_cut_message(message, level, count) for message in messages]
        if count_tokens(cut, count) <= max_tokens:
            best, low = cut, level + 1
        else:
            high = level - 1
    return best


def _cut_message(message: Message, tokens_max: int, count: TokenCounter) -> dict[str, Any]:
    content = message.get("content")
    # Only plain text can be cut: half a picture or half a tool call is none.
    return {**message, "content": cut_middle(content, tokens_max, count)} if isinstance(content, str) else dict(message)
