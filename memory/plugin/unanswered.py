"""The user's turns that livekit drops without a word: it reports none whose ``on_user_turn_completed`` hook raises
(``StopResponse`` included), and none where there is no LLM. They were said, so they are stored all the same.

Above: attached. Below: livekit.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from livekit.agents import llm

from memory.retrieval.prefetch import plain

TurnHook = Callable[..., Awaitable[None]]

# What the hook that is running has handed to ``generate_reply`` in the user's name: livekit reports that itself.
_passed_on: ContextVar[list[str] | None] = ContextVar("memory_passed_on", default=None)


def passed_on(text: str) -> None:
    """A reply to ``text``, as the user's, is being asked for."""
    if (passed := _passed_on.get()) is not None:
        passed.append(plain(text))


def around_turn(hook: TurnHook, *, reported: Callable[[], bool], record: Callable[[llm.ChatMessage], None]) -> TurnHook:
    """``hook``, with ``record`` called for a turn that livekit won't report, as the hook has left it.

    ``reported``: whether livekit reports a turn whose hook returns. ``record`` must not raise.
    """

    @functools.wraps(hook)
    async def on_user_turn_completed(turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        passed: list[str] = []
        token = _passed_on.set(passed)
        dropped = True
        try:
            await hook(turn_ctx, new_message=new_message)
            dropped = not reported()
        finally:
            _passed_on.reset(token)
            if dropped and plain(new_message.text_content or "") not in passed:
                record(new_message)

    return on_user_turn_completed
