"""A session that is gone on with: what was said in it before this process came is put back into the agent's context.

Above: attached. Below: turns, models.
"""

from __future__ import annotations

from collections.abc import Sequence

from livekit.agents import AgentSession, llm

from memory.limits import CHARS_PER_TOKEN
from memory.models import MemoryEntry
from memory.plugin.turns import Turns


def newest_within(entries: Sequence[MemoryEntry], max_tokens: int) -> list[MemoryEntry]:
    """The newest entries that fit into ``max_tokens``, oldest first; at least the newest one."""
    room = max_tokens * CHARS_PER_TOKEN
    kept: list[MemoryEntry] = []
    for entry in reversed(entries):
        room -= len(entry.content)
        if kept and room < 0:
            break
        kept.append(entry)
    return kept[::-1]


async def put_back(session: AgentSession[None], turns: Turns, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """Put ``entries`` into the current agent's context, before what was said since; what wasn't there yet.

    Nothing of it is stored again, and what is in the context isn't recalled beside it.
    """
    agent = session.current_agent
    context = agent.chat_ctx.copy()
    present = {turns.entry_id(item.id) for item in context.items}
    missing = [entry for entry in entries if entry.id not in present and entry.role != "system"]
    messages = [_message(entry) for entry in missing]
    for message, entry in zip(messages, missing, strict=True):
        turns.adopt(message.id, entry.id)
    begin = next((at for at, item in enumerate(context.items) if not _is_instruction(item)), len(context.items))
    context.items[begin:begin] = messages
    await agent.update_chat_ctx(context)
    return missing


def _message(entry: MemoryEntry) -> llm.ChatMessage:
    return llm.ChatMessage(
        role=entry.role,
        content=[entry.content],
        interrupted=entry.interrupted,
        created_at=entry.timestamp.timestamp(),
    )


def _is_instruction(item: llm.ChatItem) -> bool:
    return item.type == "message" and item.role in ("system", "developer")
