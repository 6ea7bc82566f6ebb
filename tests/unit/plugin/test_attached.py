"""The memory as a whole: opening in the background, failing without a sound, closing in order."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from typing import Any

import pytest
from livekit.agents import Agent
from livekit.agents.ipc.mock_room import create_mock_room
from livekit.agents.testing import fake_job_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from memory.errors import DataDirectoryUnusable, SettingsError, StoreUnavailable
from memory.models import Scope
from memory.plugin import attach
from memory.settings import load_settings
from memory.stores.inmemory import InMemorySessionStore
from memory.wiring import Backend
from tests.support.recalls import settle
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import (
    INSTRUCTIONS,
    HandClock,
    ScriptedRetriever,
    backend_of,
    call,
    new_session,
    passage,
)
from tests.support.voice import ManualOutput, eventually

BISCUIT = "My cat is called Biscuit."


class Opener:
    """Opens the stores as often as it is told to fail first; ``ready`` cleared, it takes its time."""

    def __init__(self, backend: Backend, errors: list[Exception] | None = None) -> None:
        self.backend, self.errors = backend, errors or []
        self.ready = asyncio.Event()
        self.ready.set()
        self.asked = 0

    async def __call__(self, settings: Any) -> Backend:
        self.asked += 1
        await self.ready.wait()
        if self.errors:
            raise self.errors.pop(0)
        return self.backend


async def opened(monkeypatch: pytest.MonkeyPatch, opener: Opener, clock: HandClock, *answers: str) -> Any:
    """A session whose stores are opened by ``opener``."""
    monkeypatch.setattr("memory.plugin.attached.open_backend", opener)
    model = ScriptedLLM(answers or ("All right.",))
    session, agent = new_session(model), Agent(instructions=INSTRUCTIONS)
    session.output.audio = ManualOutput(instant=True)
    memory = attach(session, agent, user_id="ana", session_id="s1", clock=clock)
    await session.start(agent, record=False)
    return session, memory, model


@pytest.mark.promise("P-silent")
async def test_P_silent_the_greeting_does_not_wait_for_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    store = InMemorySessionStore(clock)
    opener = Opener(backend_of(store, ScriptedRetriever([passage(BISCUIT)])))
    opener.ready.clear()
    session, memory, model = await opened(monkeypatch, opener, clock)
    speech = session.say("Welcome!")
    # Only the moment in which a reply waits for its turn to be durable, though nothing can be stored.
    turning = asyncio.create_task(_done(speech))
    await clock.advance(0.3)
    await turning
    assert session.output.audio.next_in_chain.next_in_chain.played
    opener.ready.set()
    assert await memory.flush()
    await session.run(user_input="And my cat?")
    assert BISCUIT in model.requests[-1].last_user
    assert await memory.flush()
    assert [entry.content for entry in await store.entries("s1", limit=9)] == ["Welcome!", "And my cat?", "All right."]
    await session.aclose()
    await memory.aclose()


async def _done(speech: Any) -> None:
    await speech


@pytest.mark.promise("P-silent")
async def test_P_silent_stores_that_cannot_be_opened_are_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    store = InMemorySessionStore(clock)
    errors: list[Exception] = [DataDirectoryUnusable("Set VOICEASSIST_DATA_DIR."), StoreUnavailable("away"), KeyError()]
    opener = Opener(backend_of(store, ScriptedRetriever()), errors)
    session, memory, model = await opened(monkeypatch, opener, clock)
    await settle()
    turn = asyncio.create_task(_run(session, "Are you there?"))
    await clock.advance(0.26)  # no longer than a reply waits to be durable: recall isn't waited for at all
    await turn
    assert model.requests[0].last_user == "Are you there?"
    for _ in range(4):
        await clock.advance(2)
    assert opener.asked == 4
    assert memory.counters["plugin.open_errors"] == 3
    assert caplog.text.count("the stores can't be opened") == 1
    assert "VOICEASSIST_DATA_DIR" in caplog.text
    assert await memory.flush()
    assert [entry.content for entry in await store.entries("s1", limit=9)] == ["Are you there?", "All right."]
    await session.aclose()
    await memory.aclose()


@pytest.mark.promise("P-silent")
async def test_P_silent_stores_that_hang_are_waited_for_once_and_used_when_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = HandClock()
    opener = Opener(backend_of(InMemorySessionStore(clock), ScriptedRetriever([passage(BISCUIT)])))
    opener.ready.clear()
    session, memory, model = await opened(monkeypatch, opener, clock)
    first = asyncio.create_task(_run(session, "Are you there?"))
    await settle()
    assert not first.done()
    while not first.done():
        await clock.advance(0.05)
        await asyncio.sleep(0.001)
    passed_s = clock.monotonic()
    await session.run(user_input="And now?")
    assert clock.monotonic() == passed_s
    assert memory.counters["recall.not_open"] == 2
    assert memory.counters["record.spooled"] >= 2
    opener.ready.set()
    assert await memory.flush()
    await session.run(user_input="And my cat?")
    assert BISCUIT in model.requests[-1].last_user
    await session.aclose()
    await memory.aclose()


async def _run(session: Any, text: str) -> None:
    await session.run(user_input=text)


async def test_a_backend_that_was_opened_here_is_closed_here_and_a_given_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    async def note() -> None:
        closed.append("closed")

    clock = HandClock()
    backend = backend_of(InMemorySessionStore(clock), ScriptedRetriever())
    backend.closers.append(note)
    session, memory, _ = await opened(monkeypatch, Opener(backend), clock)
    await settle()
    await session.aclose()
    await memory.aclose()
    assert closed == ["closed"]

    given = backend_of(InMemorySessionStore(clock), ScriptedRetriever())
    given.closers.append(note)
    session = new_session(ScriptedLLM())
    agent = Agent(instructions=INSTRUCTIONS)
    memory = attach(session, agent, user_id="ana", backend=given, clock=clock)
    await session.start(agent, record=False)
    await session.aclose()
    await memory.aclose()
    assert closed == ["closed"]


async def test_a_call_shorter_than_the_opening_is_stored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    store = InMemorySessionStore(clock)
    opener = Opener(backend_of(store, ScriptedRetriever()))
    opener.ready.clear()
    session, memory, _ = await opened(monkeypatch, opener, clock)
    session.output.audio = None
    turn = asyncio.create_task(_run(session, "Quick."))
    await clock.advance(0.6)
    await turn
    closing = asyncio.create_task(session.aclose())
    await settle()
    opener.ready.set()
    await closing
    await memory.aclose()
    assert [entry.content for entry in await store.entries("s1", limit=9)] == ["Quick.", "All right."]


async def test_the_session_closes_the_memory_by_itself_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with call() as made:
        await made.type("Hello.")
        await made.session.aclose()
        await eventually(lambda: not {"llm_node", "tts_node"} & vars(made.agent).keys(), "the memory's end")
        await made.memory.aclose()
        await made.memory.aclose()
        assert made.memory.counters["record.stored"] == 2
    await settle()
    assert asyncio.all_tasks() == before


async def test_a_job_waits_for_the_memory_at_its_end() -> None:
    with fake_job_context(room=create_mock_room()) as ctx:
        clock = HandClock()
        store = InMemorySessionStore(clock)
        session, agent = new_session(ScriptedLLM()), Agent(instructions=INSTRUCTIONS)
        memory = attach(session, agent, ctx, backend=backend_of(store, ScriptedRetriever()), clock=clock)
        await session.start(agent, record=False)
        await session.run(user_input="Hello.")
        [shutdown] = [one for one in ctx._shutdown_callbacks if "AttachedMemory" in one.__qualname__]
        await shutdown("over")
        assert [entry.content for entry in await store.entries(memory.session_id, limit=9)] == ["Hello.", "All right."]
        assert memory.scope == Scope(org_id="default", agent_id="assistant", user_id="console")
        await session.aclose()


@pytest.mark.case("L17")
async def test_L17_two_agents_in_one_room_store_each_line_once() -> None:
    clock = HandClock()
    store = InMemorySessionStore(clock)
    async with (
        call(["Hi."], store=store, clock=clock, session_id="RM_1") as first,
        call(["Hi."], store=store, clock=clock, session_id="RM_1") as second,
    ):
        await first.type("hello")
        await second.type("hello")
        await first.memory.flush()
        await second.memory.flush()
        entries = await store.entries("RM_1", limit=50)
        assert [entry.content for entry in entries] == ["hello", "Hi."]
        assert {first.memory.counters["record.not_the_writer"], second.memory.counters["record.not_the_writer"]} == {
            0,
            1,
        }


@pytest.mark.promise("P-silent")
@pytest.mark.case("L09")
@pytest.mark.parametrize(
    "error", [ConnectionError("x"), RuntimeError("ResponseError"), TimeoutError(), KeyError("x"), TypeError("x")]
)
@pytest.mark.parametrize("part", ["user", "assistant", "transcribed"])
async def test_L09_P_silent_a_fault_in_a_hook_leaves_the_turn_alone(
    error: Exception, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    async with call() as made:
        monkeypatch.setattr(made.memory._turns, part, broken)
        await made.say("I am diabetic, can I take it?")
        assert [message.role for message in made.session.history.messages()] == ["user", "assistant"]
        assert made.memory.counters["plugin.errors"] >= 1
    ours = [record for record in caplog.records if record.name.startswith("memory")]
    assert ours
    assert all(record.exc_info is None and "diabetic" not in record.getMessage() for record in ours)


async def test_memory_that_is_off_changes_nothing() -> None:
    async with call(settings=load_settings(enabled=False), recall_tool=True) as made:
        await made.type("Hello.")
        assert vars(made.agent).get("llm_node") is None
        assert made.session.output.audio is made.output
        assert made.llm.requests[0].tools == ()
        assert made.memory.scope is None
        assert await made.memory.flush()
        assert await made.store.entries(made.memory.session_id, limit=9) == []
        with pytest.raises(RuntimeError, match="MEMORY_ENABLED"):
            await made.memory.identified()


async def test_wrong_settings_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "soon")
    with pytest.raises(SettingsError, match="MEMORY_TURN_BUDGET_MS"):
        attach(new_session(ScriptedLLM()), Agent(instructions="x"), user_id="ana")


def test_attach_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        attach(None, None, user_id="ana")  # type: ignore[arg-type]


async def test_an_output_that_is_changed_later_is_listened_to_as_well() -> None:
    async with call() as made:
        await made.type("one")
        other = ManualOutput(instant=True)
        made.session.output.audio = other
        await made.type("two")
        assert len(other.played) == 1
        assert type(made.session.output.audio).__name__ == "HeardOutput"
        made.session.output.replace_audio_tail(third := ManualOutput(instant=True))
        await made.type("three")
        assert len(third.played) == 1


async def test_an_agent_used_by_two_sessions_is_left_as_it_was() -> None:
    agent = Agent(instructions=INSTRUCTIONS)
    own = agent.llm_node
    async with call(agent=agent, retriever=ScriptedRetriever([passage(BISCUIT)])) as made:
        await made.type("one")
    assert "llm_node" not in vars(agent)
    agent.llm_node = own  # type: ignore[method-assign]
    async with call(agent=agent, retriever=ScriptedRetriever([passage(BISCUIT)])) as made:
        await made.type("two")
        assert made.llm.requests[0].last_user.count("<memory>") == 1
    assert vars(agent)["llm_node"] is own


async def test_a_node_that_somebody_replaced_in_turn_is_left_alone() -> None:
    agent = Agent(instructions=INSTRUCTIONS)
    async with call(agent=agent):
        ours = agent.llm_node

        def theirs(*given: Any) -> Any:
            return ours(*given)

        setattr(agent, "llm_node", theirs)  # noqa: B010 - as the memory does it
    assert vars(agent)["llm_node"] is theirs


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_was_said_is_recalled_in_another_session_of_the_user_from_the_next_turn_on() -> None:
    from memory.retrieval.engine import RecallEngine
    from memory.stores.inmemory import InMemoryArchive

    clock = HandClock()
    store = InMemorySessionStore(clock)
    engine: Any = RecallEngine(log=store, archive=InMemoryArchive(), embedder=None, clock=clock)
    async with (
        call(store=store, clock=clock, retriever=engine) as first,
        call(store=store, clock=clock, retriever=engine) as second,
        call(store=store, clock=clock, retriever=engine, user_id="ben") as other,
    ):
        await first.say("my cat is called biscuit")
        await second.type("What is the name of my cat?")
        assert "biscuit" in second.llm.requests[-1].last_user
        await other.type("What is the name of my cat?")
        assert "biscuit" not in other.llm.requests[-1].last_user
        await second.say("and my dog is called pepper")
        await first.type("What is my dog called?")
        assert "pepper" in first.llm.requests[-1].last_user
    await engine.aclose()


async def test_the_span_of_a_recall_tells_figures_and_no_words() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    from livekit.agents import telemetry

    telemetry.set_tracer_provider(provider)
    async with call(retriever=ScriptedRetriever([passage(BISCUIT)])) as made:
        await made.type("What is my cat called?")
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    [ours] = [span for span in spans.values() if span.name == "memory.retrieve"]
    assert ours.parent is not None
    assert spans[ours.parent.span_id].name == "llm_node"
    attributes = dict(ours.attributes or {})
    assert attributes["memory.passages"] == 1
    assert attributes["memory.late"] is False
    assert set(attributes) == {"memory.ms", "memory.passages", "memory.facts", "memory.late", "memory.degraded"}


def test_importing_the_plugin_loads_no_model_no_index_and_no_sql() -> None:
    heavy = [
        "sqlalchemy",
        "onnxruntime",
        "Stemmer",
        "faster_whisper",
        "redis",
        "memory.stores",
        "memory.retrieval.index",
        "agent",
    ]
    code = f"import memory.plugin, sys; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


def test_the_public_names() -> None:
    plugin = importlib.import_module("memory.plugin")
    assert plugin.__all__ == ["AttachedMemory", "attach"]
