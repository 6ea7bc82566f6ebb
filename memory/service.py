"""UnifiedMemoryService: one memory for voice and text, over the session, long-term and recall layers.

Above: plugin, the agent's API, users' own code. Below: context, privacy, wiring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from memory.clock import Clock, SystemClock
from memory.context.block import render_block
from memory.context.budget import Message
from memory.context.history import begins, conversation_context, session_history, without_query
from memory.context.prompt import DEFAULT_INSTRUCTIONS, build_system_prompt, llm_messages, render_passages
from memory.context.truncation import summarize_with, truncate_context
from memory.counters import Counters
from memory.errors import HostUnavailable, InvalidEntry, StoreUnavailable
from memory.limits import CONTEXT_TOKENS_DEFAULT
from memory.models import ConversationContext, Fact, MemoryEntry, MemoryEvent, Recall, Scope, new_id
from memory.per_loop import BackendPerLoop, WarmedUsers
from memory.ports import Redactor, Selection, SessionState, Summarizer
from memory.privacy.erasure import DeletionScope, ErasureReceipt, beyond_reach, erase, selection
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.retrieval.profile import profile_of, untold
from memory.scopes import Scopes
from memory.settings import Settings, load_settings
from memory.wiring import Backend, open_backend, open_summarizer

logger = logging.getLogger(__name__)

EVENTS_LIMIT_DEFAULT = 50
LANGUAGE_EVENTS_SHOWN = 5
_PASSAGES_SHARE = 4  # retrieved passages take at most a quarter of the context
_OPENING_MESSAGES = 2  # of a session's beginning: a greeting and the query; looked at however few are asked for


class UnifiedMemoryService:
    """Stores what is said, and gives back what an LLM call needs to know.

    ``UnifiedMemoryService()`` reads its settings from the environment and opens the stores on first use, for the
    running event loop; close with ``aclose`` or use it as an async context manager. A ``backend`` that is handed in
    stays its giver's to close. Organisation and agent come from the settings or the constructor, never from entries.

    With a user id a session is that user's; without one it is its own, and its memory ends with it. Its first use
    decides. Methods raise StoreUnavailable where a store is away, SessionOwnership where a session is somebody else's.
    """

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        settings: Settings | None = None,
        org_id: str | None = None,
        agent_id: str | None = None,
        redactor: Redactor | None = None,
        summarizer: Summarizer | None = None,
        clock: Clock | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self._settings = settings
        self._org_id, self._agent_id = org_id, agent_id
        self._clock = clock or SystemClock()
        self._intake = Intake(redactor or CardRedactor(), self._clock)
        self._summarizer = summarizer or open_summarizer()
        self._given = backend
        self._opened = BackendPerLoop(lambda: open_backend(self.settings))
        self._warmed = WarmedUsers()

    @property
    def settings(self) -> Settings:
        """The settings; read from the environment when first needed (raises SettingsError)."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what this service has opened in the running loop. Idempotent; a later call opens it anew."""
        await self._opened.aclose()

    # Storing

    async def add_entry(self, session_id: str, entry: MemoryEntry, user_id: str | None = None) -> MemoryEntry:
        """Store one turn; returns it as it was stored: redacted, of this session and user.

        Durable when this returns, as the session store is. The same entry id again changes nothing. ``user_id``
        defaults to the entry's own.

        Raises:
            InvalidEntry, InvalidIdentity, SessionOwnership, StoreUnavailable.
        """
        if user_id and entry.user_id and user_id != entry.user_id:
            raise InvalidEntry("user_id: the entry names another user than the call does; give it once.")
        backend = await self._backend()
        state = await self.scopes.claim(backend.sessions, session_id, user_id or entry.user_id)
        stored = await self._intake.entry_aside(entry, state.scope, session_id)
        await backend.sessions.append(state.scope, stored)
        self.counters.add("redactions", stored.redactions - entry.redactions)
        return stored

    async def add_event(
        self,
        session_id: str,
        event_type: str,
        data: Mapping[str, Any] | None = None,
        user_id: str | None = None,
        *,
        timestamp: datetime | None = None,
        event_id: str | None = None,
    ) -> MemoryEvent:
        """Store something that happened, such as ``mode_switch``; returns it as it was stored.

        A ``mode_switch`` that an entry has shown already is not stored a second time.

        Raises:
            InvalidEntry, InvalidIdentity, SessionOwnership, StoreUnavailable.
        """
        event = MemoryEvent(
            id=event_id or new_id(),
            timestamp=timestamp or self._clock.now(),
            event_type=event_type,
            data=dict(data or {}),
        )
        backend = await self._backend()
        state = await self.scopes.claim(backend.sessions, session_id, user_id)
        stored = self._intake.event(event, state.scope, session_id)
        await backend.sessions.append(state.scope, stored)
        return stored

    async def handle_mode_switch(
        self, session_id: str, from_mode: str, to_mode: str, user_id: str | None = None
    ) -> ConversationContext:
        """Note the switch, and give the conversation so far to the new mode.

        Raises:
            InvalidEntry: a mode is neither ``voice`` nor ``text``.
        """
        if not {from_mode, to_mode} <= {"voice", "text"}:
            raise InvalidEntry("from_mode, to_mode: must be 'voice' or 'text'.")
        now = self._clock.now()
        data = {"from_mode": from_mode, "to_mode": to_mode, "timestamp": now.isoformat()}
        await self.add_event(session_id, "mode_switch", data, user_id, timestamp=now)
        return await self.get_context(session_id, user_id=user_id)

    async def track_language_switch(
        self, session_id: str, from_language: str, to_language: str, trigger: str, user_id: str | None = None
    ) -> MemoryEvent:
        """Note that the user speaks another language now, and make it the session's.

        ``trigger``: such as ``user_request``, ``auto_detected``, ``explicit_setting``.
        """
        now = self._clock.now()
        data = {"from_language": from_language, "to_language": to_language, "trigger": trigger}
        data["timestamp"] = now.isoformat()
        return await self.add_event(session_id, "language_switch", data, user_id, timestamp=now)

    # Reading

    async def get_history(
        self, session_id: str, max_messages: int = 10, *, user_id: str | None = None
    ) -> list[MemoryEntry]:
        """The newest ``max_messages`` of a session, oldest first, by when they were said; ties by arrival.

        What the session layer no longer holds comes from the archive; after it has forgotten the session altogether,
        ``user_id`` tells whose it was. An unknown session is empty. Never creates anything.
        """
        backend = await self._backend()
        state = await self.scopes.find(backend.sessions, session_id, user_id)
        return await self._history(backend, state.scope, session_id, max_messages)

    async def get_events(
        self,
        session_id: str,
        event_type: str | None = None,
        limit: int = EVENTS_LIMIT_DEFAULT,
        *,
        user_id: str | None = None,
    ) -> list[MemoryEvent]:
        """The newest ``limit`` events the session layer holds, of one type if given, oldest first."""
        backend = await self._backend()
        await self.scopes.find(backend.sessions, session_id, user_id)
        return await backend.sessions.events(session_id, event_type=event_type, limit=max(limit, 0))

    async def get_context(
        self, session_id: str, max_messages: int = 10, include_rag: bool = True, *, user_id: str | None = None
    ) -> ConversationContext:
        """What the session looks like to the next LLM call, whatever mode it goes on in.

        With ``include_rag`` also the passages and sources that the turns shown were answered with, each once.
        """
        backend = await self._backend()
        state = await self.scopes.find(backend.sessions, session_id, user_id)
        return await self._context(backend, state, session_id, max_messages, include_rag)

    async def recall(
        self,
        query: str,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        limit: int | None = None,
        budget_ms: float | None = None,
        exclude_ids: frozenset[str] = frozenset(),
    ) -> Recall:
        """What bears on ``query`` in all sessions of the user (or of the session's user), best first.

        Takes ``budget_ms`` at most, once it is known whose session it is. Without a budget, the first recall of a user
        waits for the recall host to start and to load what it needs, and those after it take ``MEMORY_TURN_BUDGET_MS``
        at most. Never fails for a host that is away or late: the result is empty, says so in ``degraded``, and is
        counted as ``recall.failed``.

        Raises:
            InvalidIdentity: neither a user nor a session is given.
        """
        backend = await self._backend()
        scope = await self._whose(backend, session_id, user_id)
        if budget_ms is None:
            await self._warmed.warm(backend, scope)
        budget_ms = self.settings.turn_budget_ms if budget_ms is None else budget_ms
        return await self._recall(backend, scope, query, limit, budget_ms, exclude_ids)

    async def warm(self, *, session_id: str | None = None, user_id: str | None = None) -> None:
        """Somebody is about to talk: have recall ready for them. Waits for it, within bounds, and never fails for it.

        Worth a task at the start of a session: a recall host that has to be started takes seconds.
        """
        backend = await self._backend()
        await self._warmed.warm(backend, await self._whose(backend, session_id, user_id))

    # Context for an LLM

    async def build_llm_context(
        self,
        session_id: str,
        current_query: str,
        rag_results: Sequence[Any] = (),
        *,
        instructions: str = DEFAULT_INSTRUCTIONS,
        max_messages: int = 10,
        user_id: str | None = None,
    ) -> list[dict[str, Any]]:
        """Messages for an LLM call, at most ``MEMORY_CONTEXT_TOKENS``: system prompt, history, the query.

        What is remembered from other sessions, and retrieved passages with their sources, stand as escaped data in
        front of the query, in the user's message; without any, the last message is the query alone. The first query of
        a session is told the user's profile as well, in what room is left. A store that is away costs its part, not
        the context; it is counted as ``context.degraded``.
        """
        history: list[MemoryEntry] = []
        switches: Sequence[MemoryEvent] = ()
        recall, profile = Recall(), tuple[Fact, ...]()
        try:
            backend = await self._backend()
            state = await self.scopes.find(backend.sessions, session_id, user_id)
            window = max(max_messages + 1, _OPENING_MESSAGES + 1)
            context = await self._context(backend, state, session_id, window, include_rag=False)
            switches = context.language_events
            history = without_query(context.messages, current_query)[-max_messages:] if max_messages > 0 else []
            shown = frozenset(entry.id for entry in context.messages[-max(max_messages + 1, 1) :])
            budget_ms = self.settings.turn_budget_ms
            recalling = self._recall(backend, state.scope, current_query, None, budget_ms, shown)
            if begins(context.messages, window, current_query):
                recall, made = await asyncio.gather(recalling, self._profile(backend, state.scope, budget_ms))
                profile = untold(made, recall, shown)
            else:
                recall = await recalling
        except StoreUnavailable as error:
            self._failed("context.degraded", error)
        limits = self.settings
        block = render_block(
            recall, max_tokens=limits.block_tokens, now=self._clock.now(), query=current_query, profile=profile
        )
        messages = llm_messages(
            build_system_prompt(switches, rag_results, instructions),
            history,
            (block, render_passages(rag_results, max_tokens=limits.context_tokens // _PASSAGES_SHARE)),
            current_query,
        )
        return await self.truncate_context(messages, limits.context_tokens)

    async def truncate_context(
        self, messages: Sequence[Message], max_tokens: int = CONTEXT_TOKENS_DEFAULT
    ) -> list[dict[str, Any]]:
        """``messages`` within ``max_tokens``; see ``memory.context.truncation``. The middle is summed up."""
        return await truncate_context(messages, max_tokens, summarize=summarize_with(self._summarizer))

    # Forgetting

    async def delete_user_memory(
        self, user_id: str, scope: DeletionScope, session_id: str | None = None
    ) -> ErasureReceipt:
        """Delete one session of a user, the last 24 hours (``day``: today, wherever the user is), or everything.

        When this returns, nothing recalls, lists or re-creates it. The receipt is false where nothing was there.

        Raises:
            InvalidIdentity: ``scope`` is ``session``, and ``session_id`` is missing.
            InvalidEntry: an unknown ``scope``.
            StoreUnavailable, HostUnavailable: not finished; call again.
        """
        chosen = selection(scope, session_id=session_id, now=self._clock.now())
        return await self.forget(self.scopes.of_user(user_id), chosen)

    async def forget(self, scope: Scope, what: Selection) -> ErasureReceipt:
        """Erase a part of a scope's memory; see ``memory.privacy.erasure``. Also for sessions without a user.

        Raises:
            SessionOwnership: the scope is another organisation's or agent's.
            StoreUnavailable, HostUnavailable: not finished; call again.
        """
        self.scopes.check(scope)
        backend = await self._backend()
        archive = await backend.archive()
        beyond = () if self._given else (*beyond_reach(self.settings), *await archive.beyond_reach())
        return await erase(
            scope,
            what,
            sessions=backend.sessions,
            archive=archive,
            recall=backend.retriever,
            spool=backend.spool,
            graph=backend.graph,
            beyond_reach=beyond,
        )

    # Who, and where

    @property
    def scopes(self) -> Scopes:
        """The scopes of this service's organisation and agent."""
        return Scopes(self._org_id or self.settings.org_id, self._agent_id or self.settings.agent_id)

    async def _backend(self) -> Backend:
        return self._given or await self._opened.get()

    async def _whose(self, backend: Backend, session_id: str | None, user_id: str | None) -> Scope:
        if session_id is None:
            return self.scopes.of_user(user_id or "")
        return (await self.scopes.find(backend.sessions, session_id, user_id)).scope

    async def _history(self, backend: Backend, scope: Scope, session_id: str, max_messages: int) -> list[MemoryEntry]:
        return await session_history(
            backend.sessions,
            backend.archive,
            scope,
            session_id,
            max_messages,
            on_archive_failure=lambda error: self._failed("history.archive_failed", error),
        )

    async def _context(
        self, backend: Backend, state: SessionState, session_id: str, max_messages: int, include_rag: bool
    ) -> ConversationContext:
        messages = await self._history(backend, state.scope, session_id, max_messages)
        switches = await backend.sessions.events(session_id, event_type="language_switch", limit=LANGUAGE_EVENTS_SHOWN)
        return conversation_context(state, session_id, messages, switches, include_rag=include_rag)

    async def _recall(
        self,
        backend: Backend,
        scope: Scope,
        query: str,
        limit: int | None,
        budget_ms: float,
        exclude_ids: frozenset[str],
    ) -> Recall:
        if backend.retriever is None:
            return Recall(degraded=("host",))
        limit = self.settings.recall_limit if limit is None else limit
        try:
            return await backend.retriever.recall(
                scope, query, limit=limit, budget_ms=budget_ms, exclude_ids=exclude_ids
            )
        except (HostUnavailable, StoreUnavailable) as error:
            self._failed("recall.failed", error)
            return Recall(degraded=("host",))

    async def _profile(self, backend: Backend, scope: Scope, budget_ms: float) -> Recall:
        try:
            return await profile_of(backend.retriever, scope, budget_ms=budget_ms)
        except HostUnavailable as error:
            self._failed("profile.failed", error)
            return Recall()

    def _failed(self, counter: str, error: Exception) -> None:
        self.counters.add(counter)
        logger.warning("Memory goes on without a part: %s (%s)", counter, type(error).__name__)
