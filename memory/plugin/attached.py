"""``attach``: the memory of one session, put together and hooked into it. Above: the user's program. Below: the parts.

Hooks, and why these: ``llm_node`` and ``tts_node`` are replaced on the agent's instance, so that subclasses with nodes
or hooks of their own keep working; ``on_user_turn_completed`` too, since livekit reports no turn whose hook raises. The
``agent_handoff`` item, which LiveKit emits for the first agent and each later one before it is entered, is when an
agent and the audio output are there and nothing was said yet; ``speech_created`` comes before every speech, in the
context its tasks inherit. ``generate_reply`` is replaced on the session's instance to know a typed text before livekit
prepares its LLM call; it is only looked at.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from livekit.agents import (
    Agent,
    AgentSession,
    CloseEvent,
    ConversationItemAddedEvent,
    JobContext,
    SpeechCreatedEvent,
    UserInputTranscribedEvent,
    function_tool,
    llm,
)
from livekit.agents.utils import is_given
from livekit.agents.voice import SpeechHandle

from memory.backlog import finished_within
from memory.clock import Clock, SystemClock
from memory.context.block import render_block
from memory.counters import Counters
from memory.errors import InvalidEntry
from memory.heard import Ear, Speech, current_speech
from memory.identity import Assurance
from memory.limits import DURABLE_WAIT_S, SESSION_MESSAGES_DEFAULT, SHUTDOWN_FLUSH_S, STORE_TIMEOUT_S
from memory.models import MemoryEntry, Recall, Record, Scope, new_id
from memory.plugin.caller import Caller, CallerFinder, Given, named_session, session_id_of
from memory.plugin.hooks import Hooks
from memory.plugin.opening import Opening
from memory.plugin.recall import RecallGate
from memory.plugin.resuming import newest_within, put_back
from memory.plugin.turns import Turns
from memory.plugin.unanswered import around_turn, passed_on
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.recorder import Recorder
from memory.retrieval.deadlines import Deadline
from memory.retrieval.right_of_way import RightOfWay
from memory.settings import AssuranceName, Settings, load_settings
from memory.wiring import Backend, open_backend

logger = logging.getLogger("memory.plugin")

RECALL_TOOL = "recall_memory"


def attach(
    session: AgentSession[Any],
    agent: Agent,
    ctx: JobContext | None = None,
    *,
    user_id: str | None = None,
    org_id: str | None = None,
    agent_id: str | None = None,
    session_id: str | None = None,
    assurance: Assurance | AssuranceName | None = None,
    settings: Settings | None = None,
    backend: Backend | None = None,
    clock: Clock | None = None,
    recall_tool: bool = False,
    takes_over: str | None = None,
) -> AttachedMemory:
    """Give ``session`` a memory. Call it before ``session.start``, inside the event loop; it returns at once.

    The user is ``user_id``, else the one that the job's metadata name (``{"user_id": …}``), else the participant that
    the session listens to; nobody in particular where there is none of these. ``session_id`` defaults to the
    metadata's, else to the room's server-made id. ``assurance``: how sure the program is of the user (``signed`` for a
    ``user_id`` it gives). ``takes_over``: the id of a job that is known to be dead, whose session goes on.
    ``backend`` stays the caller's to close; without one, the stores that ``settings`` (the environment) name are
    opened in the background. ``recall_tool`` lets the LLM look things up by itself (``recall_memory``).

    From here on every turn is stored, and each LLM call is given what is remembered. Nothing of it raises into the
    session, holds up its greeting, or takes longer in a turn than ``MEMORY_TURN_BUDGET_MS``.

    Raises:
        SettingsError: the environment's settings are wrong; the message says which and how to mend them.
        RuntimeError: there is no running event loop.
    """
    asyncio.get_running_loop()
    sure = Assurance[assurance.upper()] if isinstance(assurance, str) else assurance
    memory = AttachedMemory(
        session,
        ctx,
        Given(user_id or None, org_id or None, agent_id or None, sure),
        session_id=session_id or session_id_of(ctx) or new_id(),
        settings=settings or load_settings(),
        backend=backend,
        clock=clock or SystemClock(),
        takes_over=takes_over,
    )
    if memory.settings.enabled:
        memory.hook(agent, recall_tool=recall_tool)
    return memory


class AttachedMemory:
    """The memory of one session. Closes by itself with the session, and with the job where ``ctx`` was given."""

    def __init__(
        self,
        session: AgentSession[Any],
        ctx: JobContext | None,
        given: Given,
        *,
        session_id: str,
        settings: Settings,
        backend: Backend | None,
        clock: Clock,
        takes_over: str | None,
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self._session, self._ctx, self._clock, self._backend = session, ctx, clock, backend
        way = RightOfWay(clock)
        self._recorder = Recorder(
            Intake(CardRedactor(), clock),
            clock,
            self.counters,
            session_id=session_id,
            writer=ctx.job.id if ctx is not None and not ctx.is_fake_job() else None,
            takes_over=takes_over,
            # An app's own session may be held in several rooms at once, and heard by one agent in each.
            lease_id=ctx.job.room.sid if ctx is not None and session_id == named_session(ctx) else None,
            way=way,
        )
        self._ear = Ear(clock, self._turn_durable)
        self._turns = Turns(self._ear, prefix=f"{session_id}/")
        self._gate = RecallGate(settings, clock, self.counters, self._turns.entry_id, way)
        self._finder = CallerFinder(session, ctx, settings, clock, given)
        self._hooks = Hooks(session, self.counters)
        self._opening: Opening | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        """The id that the turns are stored under."""
        return self._recorder.session_id

    @property
    def scope(self) -> Scope | None:
        """Whose memory it is; ``None`` until that is known."""
        caller = self._opening.caller if self._opening is not None else None
        return caller.scope if caller is not None else None

    @property
    def caller(self) -> Caller | None:
        """Who it is and how sure that is; ``None`` until it is known."""
        return self._opening.caller if self._opening is not None else None

    @property
    def last_block(self) -> str:
        """The block in front of the latest LLM call; "" where nothing was remembered."""
        return self._gate.last_block

    @property
    def last_recall(self) -> Recall | None:
        """What the latest LLM call's recall found; ``None`` where it found no time."""
        return self._gate.last_recall

    async def identified(self) -> Scope:
        """Wait until it is known whose memory it is.

        Raises:
            RuntimeError: memory is off (``MEMORY_ENABLED``).
            asyncio.CancelledError: the session ended before.
        """
        if self._opening is None:
            raise RuntimeError("Memory is off; set MEMORY_ENABLED=true.")
        return (await self._opening.identified()).scope

    async def silenced(self) -> None:
        """Return once another process records this session: another agent is in this call."""
        await self._recorder.silenced()

    async def resume(self, limit: int = SESSION_MESSAGES_DEFAULT) -> list[MemoryEntry]:
        """Put what was said in this session before, by another process, into the agent's context; returns that, oldest
        first. At most ``limit`` turns and ``MEMORY_CONTEXT_TOKENS``; none where the session is another user's.

        Waits until the stores are there and the caller is known, and needs a session that has started.

        Raises:
            RuntimeError: memory is off (``MEMORY_ENABLED``).
            StoreUnavailable, StoreFault: the store is away; it may be tried again.
            asyncio.CancelledError: the session ended before.
        """
        if self._opening is None:
            raise RuntimeError("Memory is off; set MEMORY_ENABLED=true.")
        backend, caller = await self._opening.opened()
        state = await backend.sessions.find(self.session_id)
        if state is not None and state.scope != caller.scope:
            return []
        # What its last process could not store any more belongs to it as well.
        await finished_within(self._recorder.looked_for_left(patient=False), self._clock, STORE_TIMEOUT_S)
        session_id = self.session_id
        state = await backend.sessions.find(session_id)
        if state is None or state.scope != caller.scope:
            return []
        entries = await backend.sessions.entries(session_id, limit=limit)
        return await put_back(self._session, self._turns, newest_within(entries, self.settings.context_tokens))

    async def flush(self, timeout_s: float = SHUTDOWN_FLUSH_S) -> bool:
        """Wait until everything said so far is stored, ``timeout_s`` at most; whether it is."""
        return await self._recorder.stored(timeout_s)

    async def aclose(self) -> None:
        """Store what is left, within ``SHUTDOWN_FLUSH_S``, and close what was opened. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="memory.close")
        await asyncio.shield(self._closing)

    def hook(self, agent: Agent, *, recall_tool: bool) -> None:
        """Hook into the session and the agent; ``attach`` does."""
        self._opening = Opening(
            self.settings,
            self._clock,
            self.counters,
            recorder=self._recorder,
            gate=self._gate,
            find=lambda seen: self._finder.find(self.session_id, seen),
            backend=self._backend,
            open_backend=open_backend,
        )
        self._hooks.on("conversation_item_added", self._on_item)
        self._hooks.on("speech_created", self._on_speech)
        self._hooks.on("user_input_transcribed", self._on_transcript)
        self._hooks.on("close", self._on_close)
        self._hooks.replace(self._session, "generate_reply", self._around_typing)
        self._around(agent)
        if recall_tool:
            self._session.tools.append(self._tool())
        if self._ctx is not None:
            self._ctx.add_shutdown_callback(self._on_shutdown)

    def _around(self, agent: Agent) -> None:
        self._hooks.replace(agent, "llm_node", self._gate.around)
        self._hooks.replace(agent, "tts_node", self._ear.tap)
        self._hooks.replace(
            agent,
            "on_user_turn_completed",
            lambda hook: around_turn(
                hook, reported=lambda: self._model(agent) is not None, record=lambda turn: self._unanswered(agent, turn)
            ),
        )

    def _around_output(self) -> None:
        output = self._ear.over(self._session.output.audio)
        if output is not None:
            self._session.output.audio = output

    async def _turn_durable(self) -> None:
        if not await self._recorder.durable(DURABLE_WAIT_S):
            self.counters.add("record.late")

    def _on_speech(self, event: SpeechCreatedEvent) -> None:
        handle = event.speech_handle
        speech = Speech("voice" if handle.input_details.modality == "audio" else "text", handle.id)
        current_speech.set(speech)
        if event.source == "generate_reply":  # what is said may be meant not to be kept
            handle.add_done_callback(lambda done: self._on_speech_done(done, speech))
        self._around(self._session.current_agent)
        self._around_output()

    def _on_speech_done(self, handle: SpeechHandle, speech: Speech) -> None:
        with self._hooks.guarded("speech_done"):
            if handle.interrupted and speech.segments:
                for record in self._turns.unreported(speech, self._clock.now()):
                    self._recorder.record(record)

    def _on_transcript(self, event: UserInputTranscribedEvent) -> None:
        self._gate.hint(self._turns.transcribed(event), self._session.current_agent.chat_ctx)

    def _around_typing(self, generate_reply: Callable[..., SpeechHandle]) -> Callable[..., SpeechHandle]:
        """Every typed text comes this way, livekit's own included, some milliseconds before the LLM's call."""

        @functools.wraps(generate_reply)
        def replied(*args: Any, **kwargs: Any) -> SpeechHandle:
            with self._hooks.guarded("typed"):
                typed = kwargs.get("user_input")
                text = typed.text_content if isinstance(typed, llm.ChatMessage) else typed
                if isinstance(text, str):
                    passed_on(text)
                    self._gate.hint(text, self._session.current_agent.chat_ctx)
            return generate_reply(*args, **kwargs)

        return replied

    def _on_item(self, event: ConversationItemAddedEvent) -> None:
        item = event.item
        if item.type == "agent_handoff":
            self._around(self._session.current_agent)
            self._around_output()
            self._finder.started.set()
        elif item.type == "message" and item.role in ("user", "assistant"):
            self._record(item, current_speech.get())

    def _unanswered(self, agent: Agent, message: llm.ChatMessage) -> None:
        """The hook has dropped a spoken turn. A realtime model tells what it has heard by itself."""
        with self._hooks.guarded("on_user_turn_completed"):
            if not isinstance(self._model(agent), llm.RealtimeModel):
                self._record(message, Speech("voice"))

    def _record(self, item: llm.ChatMessage, speech: Speech | None) -> None:
        try:
            records = self._turns.user(item, speech) if item.role == "user" else self._reply(item, speech)
        except InvalidEntry as error:
            self.counters.add("record.invalid")
            logger.error("%s", error)
            return
        for record in records:
            self._recorder.record(record)

    def _reply(self, item: llm.ChatMessage, speech: Speech | None) -> list[Record]:
        return self._turns.assistant(
            item,
            speech,
            spoken=self._session.output.audio is not None and self._session.output.audio_enabled,
            realtime=isinstance(self._model(self._session.current_agent), llm.RealtimeModel),
            about=self._gate.remembered(speech.user_item_id if speech is not None else None),
        )

    def _model(self, agent: Agent) -> object:
        return agent.llm if is_given(agent.llm) else self._session.llm

    def _tool(self) -> llm.Tool:
        async def recall_memory(query: str) -> str:
            """Look up what the user said in earlier conversations.

            Args:
                query: What to look for, in the user's own words.
            """
            recall = await self._gate.ask(query)
            if recall is None:
                return "Memory can't be reached right now."
            block = render_block(recall, max_tokens=self.settings.block_tokens, now=self._clock.now(), query=query)
            return block or "Nothing is remembered about that."

        return function_tool(recall_memory, name=RECALL_TOOL)

    def _on_close(self, _: CloseEvent) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="memory.close")

    async def _on_shutdown(self, _: str) -> None:
        await self.aclose()

    async def _close(self) -> None:
        self._hooks.undo()
        if self._opening is None:
            return
        deadline = Deadline(self._clock, SHUTDOWN_FLUSH_S * 1_000)
        if self._recorder.pending or (self._recorder.spooled and not self._opening.is_away):
            # A call so short that its caller or the stores were not there yet.
            begun = asyncio.create_task(self._opening.begun())
            await deadline.met_by(begun)
            begun.cancel()
        await self._opening.stop()
        await self._recorder.aclose(deadline.remaining_s())
        await self._opening.aclose()
