"""A session's turns from the layers that hold them. Above: service. Below: ports, models, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from memory.limits import SESSION_MESSAGES_MAX, STORE_TIMEOUT_S
from memory.models import ConversationContext, MemoryEntry, MemoryEvent, Scope, in_order
from memory.ports import ArchiveStore, SessionState, SessionStore

_LATE_TURNS = 32  # read beyond what is asked for: a transcript that landed late belongs further up

_T = TypeVar("_T")


async def session_history(
    sessions: SessionStore,
    archive: Callable[[], Awaitable[ArchiveStore]],
    scope: Scope,
    session_id: str,
    limit: int,
    *,
    on_archive_failure: Callable[[Exception], None],
) -> list[MemoryEntry]:
    """The newest ``limit`` turns, oldest first, by when they were said; ties by arrival.

    The archive is asked only where the session layer has fewer than ``limit``; it costs its part, not the history.

    Raises:
        StoreUnavailable: the session layer is away.
    """
    if limit <= 0:
        return []
    wanted = limit + _LATE_TURNS
    recent = await sessions.entries(session_id, limit=min(wanted, SESSION_MESSAGES_MAX))
    older: list[MemoryEntry] = []
    if len(recent) < limit:
        try:
            store = await archive()  # has bounds of its own: the first opening may bring a database up to date
            async with asyncio.timeout(STORE_TIMEOUT_S):
                older = await store.history(scope, session_id=session_id, before=None, limit=wanted)
        except Exception as error:  # whatever is wrong with it, the conversation goes on with what there is
            on_archive_failure(error)
    known = {entry.id for entry in recent}
    return in_order([entry for entry in older if entry.id not in known] + recent)[-limit:]


def without_query(history: Sequence[MemoryEntry], query: str) -> list[MemoryEntry]:
    """``history`` without its last turn where that is the query itself, stored before it is answered."""
    last = history[-1] if history else None
    asked = last is not None and last.role == "user" and last.content.strip() == query.strip()
    return list(history[:-1] if asked else history)


def begins(messages: Sequence[MemoryEntry], asked_for: int, query: str) -> bool:
    """Whether ``query`` is the first thing the user says in a session; ``messages``: its newest, of ``asked_for``."""
    earlier = without_query(messages, query)
    return len(messages) < asked_for and all(entry.role != "user" for entry in earlier)


def conversation_context(
    state: SessionState,
    session_id: str,
    messages: Sequence[MemoryEntry],
    switches: Sequence[MemoryEvent],
    *,
    include_rag: bool,
) -> ConversationContext:
    """What a session looks like; passages and sources of its turns each once."""
    last = messages[-1] if messages else None
    shown = messages if include_rag else ()
    return ConversationContext(
        session_id=session_id,
        messages=tuple(messages),
        language=state.language or (last.language if last else ""),
        language_events=tuple(switches),
        mode=state.mode or (last.mode if last else None),
        retrieved_passages=_each_once(text for message in shown for text in message.retrieved_passages),
        sources=_each_once(source for message in shown for source in message.sources),
    )


def _each_once(items: Iterable[_T]) -> tuple[_T, ...]:
    """``items`` without repeats, in order; for values that need not be hashable."""
    seen: dict[str, _T] = {}
    for item in items:
        seen.setdefault(repr(item), item)
    return tuple(seen.values())
