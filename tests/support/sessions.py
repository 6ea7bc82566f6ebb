"""A real ``AgentSession`` without a room, with the memory attached; models and outputs are ``support.voice``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from livekit.agents import Agent, AgentSession
from livekit.agents.voice import io

from memory.models import Fact, MemoryEntry, MemoryEvent, Passage, Recall, Scope
from memory.plugin import AttachedMemory, attach
from memory.ports import Selection
from memory.settings import Settings
from memory.stores.inmemory import InMemoryArchive, InMemorySessionStore
from memory.wiring import Archive, Backend
from tests.support.recalls import ManualClock
from tests.support.scripted_llm import ScriptedLLM
from tests.support.voice import ManualOutput, ScriptedSTT, SilentMicrophone, WordTTS, eventually

INSTRUCTIONS = "You are a helpful voice assistant."


class HandClock(ManualClock):
    """A monotonic clock that tests move; the time of day is the machine's, as the one livekit stamps turns with."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def passage(text: str, name: str = "old-1", *, role: Any = "user") -> Passage:
    return Passage(id=name, session_id="earlier", timestamp=datetime(2026, 1, 2, tzinfo=UTC), role=role, text=text)


@dataclass
class ScriptedRetriever:
    """Recalls what the test says. ``hold`` cleared: never answers. ``error``: raised. Keeps what it was asked."""

    passages: Sequence[Passage] = ()
    error: BaseException | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    excluded: list[frozenset[str]] = field(default_factory=list)
    warmed: list[Scope] = field(default_factory=list)
    facts: Sequence[Fact] = ()
    profiled: Sequence[Fact] = ()
    profile_hold: asyncio.Event = field(default_factory=asyncio.Event)
    profiles: list[str] = field(default_factory=list)  # the names it was asked for with
    state: str = "0/0"
    running: int = 0

    def __post_init__(self) -> None:
        self.hold.set()
        self.profile_hold.set()

    async def recall(
        self, scope: Scope, query: str, *, limit: int, budget_ms: float, exclude_ids: frozenset[str] = frozenset()
    ) -> Recall:
        self.asked.append(query)
        self.excluded.append(exclude_ids)
        self.running += 1
        try:
            await self.hold.wait()
            if self.error is not None:
                raise self.error
            passages = tuple(p for p in self.passages if p.id not in exclude_ids)[:limit]
            return Recall(passages=passages, facts=tuple(self.facts), state=self.state)
        finally:
            self.running -= 1

    async def profile(self, scope: Scope, *, name: str = "", limit: int, budget_ms: float) -> Recall:
        self.profiles.append(name)
        await self.profile_hold.wait()
        if self.error is not None:
            raise self.error
        return Recall(facts=tuple(self.profiled)[:limit], state=self.state)

    async def warm(self, scope: Scope) -> None:
        self.warmed.append(scope)

    async def erase(self, scope: Scope, selection: Selection) -> int:
        return 0


def backend_of(sessions: Any, retriever: Any) -> Backend:
    archive = InMemoryArchive()

    async def opened() -> Archive:
        return archive

    return Backend(sessions, retriever, opened)


@dataclass
class Call:
    """A running session and everything a test looks at."""

    session: AgentSession[Any]
    agent: Agent
    memory: AttachedMemory
    store: InMemorySessionStore
    retriever: ScriptedRetriever
    llm: ScriptedLLM
    tts: WordTTS
    stt: ScriptedSTT
    clock: HandClock
    output: ManualOutput

    async def type(self, text: str) -> None:
        """The user types, and the reply is over."""
        await self.session.run(user_input=text)

    async def say(self, text: str, **how: Any) -> None:
        """The user says it, and the reply is over."""
        before = len(self.output.played)
        await self.stt.turn(text, **how)
        await eventually(lambda: len(self.output.played) > before, "a reply")
        await self.listening()

    async def listening(self) -> None:
        await eventually(lambda: self.session.agent_state == "listening", "the end of a reply")

    async def interrupt_at(self, position_s: float) -> None:
        """Cut the reply that is being played off, after so much of it."""
        await eventually(lambda: self.output.whole, "a reply's audio")
        await self.clock.advance(position_s)
        self.output.position_s = position_s
        await self.session.interrupt()
        await self.listening()

    async def entries(self) -> list[MemoryEntry]:
        assert await self.memory.flush()
        return await self.store.entries(self.memory.session_id, limit=1_000)

    async def events(self, kind: str | None = None) -> list[MemoryEvent]:
        assert await self.memory.flush()
        return await self.store.events(self.memory.session_id, event_type=kind, limit=1_000)

    async def texts(self) -> list[tuple[str, str]]:
        return [(entry.role, entry.content) for entry in await self.entries()]


def new_session(
    model: Any, *, tts: Any = None, stt: Any = None, preemptive: bool = True, **options: Any
) -> AgentSession[Any]:
    """A session whose turns end when the scripted STT says so, without a wait anywhere."""
    turns = {
        "turn_detection": "stt" if stt is not None else "manual",
        "endpointing": {"min_delay": 0.0, "max_delay": 0.0},
        "preemptive_generation": {"enabled": preemptive, "preemptive_tts": False},
        "interruption": {"resume_false_interruption": False},
    }
    extra: dict[str, Any] = {"stt": stt} if stt is not None else {}
    return AgentSession(
        llm=model,
        tts=tts if tts is not None else WordTTS(),
        vad=None,
        turn_handling=turns,  # type: ignore[arg-type] # a plain dict is what users write
        aec_warmup_duration=None,
        user_away_timeout=None,
        session_close_transcript_timeout=0.0,
        **extra,
        **options,
    )


@contextlib.asynccontextmanager
async def call(
    answers: Any = ("All right.",),
    *,
    agent: Agent | None = None,
    user_id: str | None = "ana",
    store: InMemorySessionStore | None = None,
    retriever: ScriptedRetriever | None = None,
    clock: HandClock | None = None,
    tts: WordTTS | None = None,
    output: ManualOutput | None = None,
    over: Any = None,
    settings: Settings | None = None,
    preemptive: bool = True,
    session_options: dict[str, Any] | None = None,
    text_output: io.TextOutput | None = None,
    model: Any = "scripted",
    **attaching: Any,
) -> AsyncIterator[Call]:
    """A started session with the memory attached. ``over``: what the session's audio output is, above ``output``.

    ``model``: what thinks in place of the scripted LLM; ``None``: nothing does.
    """
    clock = clock or HandClock()
    store = store or InMemorySessionStore(clock)
    retriever = retriever or ScriptedRetriever()
    output = output or ManualOutput(instant=True)
    scripted, hearing, voice = ScriptedLLM(answers), ScriptedSTT(), tts or WordTTS()
    thinks = scripted if model == "scripted" else model
    session = new_session(thinks, tts=voice, stt=hearing, preemptive=preemptive, **(session_options or {}))
    session.input.audio = SilentMicrophone()
    session.output.audio = over(output) if over is not None else output
    session.output.transcription = text_output
    agent = agent or Agent(instructions=INSTRUCTIONS)
    memory = attach(
        session,
        agent,
        user_id=user_id,
        backend=backend_of(store, retriever),
        settings=settings,
        clock=clock,
        **attaching,
    )
    await session.start(agent, record=False)
    try:
        yield Call(session, agent, memory, store, retriever, scripted, voice, hearing, clock, output)
    finally:
        await session.aclose()
        await memory.aclose()
