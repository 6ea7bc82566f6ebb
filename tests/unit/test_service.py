"""UnifiedMemoryService over stores in memory: what it stores, for whom, and what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from memory.context.block import parse_block
from memory.context.budget import count_tokens
from memory.errors import (
    EntryTooLarge,
    InvalidEntry,
    InvalidIdentity,
    SessionOwnership,
)
from memory.ports import Redacted, Selection
from memory.privacy.intake import FUTURE_TIMESTAMP
from memory.privacy.redaction import CARD_MASK
from memory.service import UnifiedMemoryService
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend
from tests.support.services import L02_IDS, archive_all, contents, say, tell_and_read_back

CARD = "4242 4242 4242 4242"


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    opened = in_memory_backend()
    yield opened
    await opened.aclose()


@pytest.fixture
def service(backend: Backend) -> UnifiedMemoryService:
    return UnifiedMemoryService(backend=backend)


# Storing


@pytest.mark.promise("P-redacted")
async def test_P_redacted_nothing_of_a_card_reaches_any_store(service: UnifiedMemoryService, backend: Backend) -> None:
    stored = await service.add_entry("s1", say(f"It is {CARD}.", sources=[{"n": 4242424242424242}]), "ana")
    await service.add_event("s1", "note", {"text": CARD}, "ana")
    assert stored.content == f"It is {CARD_MASK}."
    assert (stored.redactions, service.counters["redactions"]) == (2, 2)
    found = await backend.sessions.read(service.scopes.of_user("ana"), after="", limit=10)
    assert len(found.records) == 2
    assert "4242" not in str([item.record.to_dict() for item in found.records])


async def test_a_redactor_of_ones_own_is_used(backend: Backend) -> None:
    class Shouting:
        def redact(self, text: str) -> Redacted:
            return Redacted(text.upper(), int(text != text.upper()))

    stored = await UnifiedMemoryService(backend=backend, redactor=Shouting()).add_entry("s1", say("hello"))
    assert (stored.content, stored.redactions) == ("HELLO", 1)


@pytest.mark.case("L17")
async def test_L17_the_same_id_again_is_one_entry(service: UnifiedMemoryService, backend: Backend) -> None:
    turn = say("Book a table for six.", id="t-17")
    await asyncio.gather(*(service.add_entry("s1", turn, "ana") for _ in range(3)))
    assert await contents(service, "s1") == ["Book a table for six."]
    await archive_all(backend)
    await service.add_entry("s1", turn, "ana")
    await archive_all(backend)
    assert await contents(service, "s1") == ["Book a table for six."]


async def test_a_time_in_the_future_is_pulled_back(service: UnifiedMemoryService) -> None:
    stored = await service.add_entry("s1", say("Hi", timestamp=datetime.now(UTC) + timedelta(days=400)))
    assert stored.timestamp <= datetime.now(UTC)
    assert stored.degradations == (FUTURE_TIMESTAMP,)


async def test_bad_input_is_refused_and_big_input_taken(service: UnifiedMemoryService) -> None:
    with pytest.raises(InvalidEntry, match="blank"):
        await service.add_entry("s1", say("  "))
    with pytest.raises(EntryTooLarge):
        say("x" * 2_000_000)
    for session_id in ("", "x" * 600, "a\x00b"):
        with pytest.raises(InvalidIdentity):
            await service.add_entry(session_id, say("Hi"))
    with pytest.raises(InvalidIdentity):
        await service.add_entry("s1", say("Hi"), "ana\x00")
    with pytest.raises(InvalidEntry, match="another user"):
        await service.add_entry("s1", say("Hi", user_id="ben"), "ana")
    with pytest.raises(InvalidEntry, match="'voice' or 'text'"):
        await service.handle_mode_switch("s1", "voice", "telepathy")
    assert await service.get_history("s1") == []
    assert len((await service.add_entry("s1", say("x" * 200_000))).content) == 200_000
    assert (await contents(service, "s1"))[0].startswith("xxx")


async def test_big_content_is_redacted_off_the_event_loop(service: UnifiedMemoryService) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    stored = await service.add_entry("s1", say("6 " * 200_000 + CARD))
    ticking.cancel()
    assert stored.redactions >= 1
    assert ticks > 3


async def test_the_entry_may_name_the_user(service: UnifiedMemoryService, backend: Backend) -> None:
    await service.add_entry("s1", say("Hi", user_id="ana"))
    state = await backend.sessions.find("s1")
    assert state is not None
    assert state.scope == service.scopes.of_user("ana")


async def test_a_mode_that_differs_records_a_switch_and_an_explicit_one_adds_none(
    service: UnifiedMemoryService,
) -> None:
    await service.add_entry("s1", say("Spoken."))
    await service.add_entry("s1", say("Typed.", mode="text"))
    context = await service.handle_mode_switch("s1", "voice", "text")
    assert context.mode == "text"
    assert [entry.mode for entry in context.messages] == ["voice", "text"]
    (event,) = await service.get_events("s1", "mode_switch")
    assert (event["from_mode"], event["to_mode"]) == ("voice", "text")


async def test_a_language_switch_becomes_the_sessions_language(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("Hi"))
    event = await service.track_language_switch("s1", "en", "ar", "user_request")
    assert event["trigger"] == "user_request"
    assert datetime.fromisoformat(event["timestamp"]) == event.timestamp
    context = await service.get_context("s1")
    assert (context.language, context.language_events) == ("ar", (event,))


async def test_events_are_bounded_and_by_type(service: UnifiedMemoryService) -> None:
    for number in range(6):
        await service.add_event("s1", ("a", "b")[number % 2], {"n": number}, event_id=f"e-{number}")
    await service.add_event("s1", "a", {"n": 99}, event_id="e-0")
    assert [event["n"] for event in await service.get_events("s1")] == list(range(6))
    assert [event["n"] for event in await service.get_events("s1", "a", limit=2)] == [2, 4]
    assert await service.get_events("s1", "a", limit=0) == await service.get_events("s1", limit=-3) == []


# Whose it is


@pytest.mark.promise("P-isolated")
async def test_P_isolated_a_session_of_another_user_is_refused(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("My word is tulip."), "ana")
    for use in (
        service.add_entry("s1", say("Hi"), "ben"),
        service.add_event("s1", "note", {}, "ben"),
        service.get_history("s1", user_id="ben"),
        service.get_context("s1", user_id="ben"),
        service.get_events("s1", user_id="ben"),
        service.recall("word", session_id="s1", user_id="ben"),
        service.build_llm_context("s1", "word?", user_id="ben"),
    ):
        with pytest.raises(SessionOwnership):
            await use
    assert await contents(service, "s1", user_id="ana") == ["My word is tulip."]


@pytest.mark.promise("P-isolated")
async def test_P_isolated_another_organisation_or_agent_gets_nothing(backend: Backend) -> None:
    ours = UnifiedMemoryService(backend=backend, org_id="acme", agent_id="helper")
    await ours.add_entry("s1", say("My word is tulip."), "ana")
    for org, agent in (("evil", "helper"), ("acme", "other")):
        theirs = UnifiedMemoryService(backend=backend, org_id=org, agent_id=agent)
        for use in (theirs.get_history("s1"), theirs.add_entry("s1", say("Hi")), theirs.add_event("s1", "e")):
            with pytest.raises(SessionOwnership):
                await use
        with pytest.raises(SessionOwnership):
            await theirs.forget(ours.scopes.of_user("ana"), Selection("all"))
        assert (await theirs.recall("word tulip", user_id="ana")).passages == ()
        assert not await theirs.delete_user_memory("ana", "all")
    assert await contents(ours, "s1") == ["My word is tulip."]


@pytest.mark.case("L02")
async def test_L02_each_id_reads_only_its_own_word(service: UnifiedMemoryService) -> None:
    await asyncio.gather(*(tell_and_read_back(service, user, number) for number, user in enumerate(L02_IDS)))


async def test_without_a_user_a_session_is_its_own(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("My word is tulip."))
    await service.add_entry("s2", say("What is my word?"))
    assert [p.text for p in (await service.recall("word tulip", session_id="s2")).passages] == ["What is my word?"]
    assert [p.text for p in (await service.recall("word tulip", session_id="s1")).passages] == ["My word is tulip."]
    with pytest.raises(SessionOwnership):
        await service.add_entry("s1", say("Hi"), "ana")


async def test_a_session_keeps_its_user_when_later_calls_leave_him_out(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("One."), "ana")
    stored = await service.add_entry("s1", say("Two."))
    assert stored.user_id == "ana"
    assert await contents(service, "s1") == ["One.", "Two."]


@pytest.mark.case("L25")
async def test_L25_reads_of_strangers_create_nothing(service: UnifiedMemoryService, backend: Backend) -> None:
    for number in range(50):
        assert await service.get_history(f"s{number}") == []
        assert await service.get_events(f"s{number}") == []
        assert (await service.get_context(f"s{number}")).messages == ()
        assert (await service.recall("anything", user_id=f"u{number}")).passages == ()
        assert await backend.sessions.find(f"s{number}") is None
    assert await backend.sessions.pending(limit=10) == []


@pytest.mark.case("L22")
async def test_L22_fifty_users_at_once_never_meet(service: UnifiedMemoryService) -> None:
    async def talk(number: int) -> None:
        user, session = f"user-{number}", f"session-{number}"
        await service.add_entry(session, say(f"My canary is word{number}x."), user)
        recalled = await service.recall("what is my canary", user_id=user)
        assert [p.text for p in recalled.passages] == [f"My canary is word{number}x."]
        messages = await service.build_llm_context(f"other-{number}", "my canary?", user_id=user)
        assert f"word{number}x" in messages[-1]["content"]
        assert messages[-1]["content"].count("word") == 1

    await asyncio.gather(*(talk(number) for number in range(50)))


# Reading


async def test_history_reaches_beyond_the_session_layer(service: UnifiedMemoryService, backend: Backend) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(12):
        await service.add_entry("s1", say(f"turn {number}", timestamp=start + timedelta(seconds=number)), "ana")
    await archive_all(backend)
    await backend.sessions.erase(service.scopes.of_user("ana"), Selection("all"))  # as if its 24 hours were over
    assert await contents(service, "s1", user_id="ana", max_messages=3) == ["turn 9", "turn 10", "turn 11"]
    await service.add_entry("s1", say("turn 12", timestamp=start + timedelta(seconds=12)), "ana")
    assert await contents(service, "s1", max_messages=4) == ["turn 9", "turn 10", "turn 11", "turn 12"]
    assert len(await contents(service, "s1", max_messages=500)) == 13
    assert await contents(service, "s1", max_messages=0) == []


async def test_a_context_has_the_passages_of_its_turns(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("Old", retrieved_passages=["old"]))
    source = {"title": "WHO"}
    await service.add_entry("s1", say("New", retrieved_passages=["new"], sources=[source]))
    context = await service.get_context("s1", 1)
    assert (context.retrieved_passages, context.sources) == (("new",), (source,))
    assert (await service.get_context("s1", include_rag=False)).retrieved_passages == ()


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_was_said_is_recalled_in_another_session_at_once(service: UnifiedMemoryService) -> None:
    await service.add_entry("call", say("My dog is called Biscuit."), "ana")
    (passage,) = (await service.recall("What is the name of my dog?", user_id="ana")).passages
    assert (passage.text, passage.role, passage.session_id) == ("My dog is called Biscuit.", "user", "call")
    messages = await service.build_llm_context("chat", "What is the name of my dog?", user_id="ana")
    assert [line.text for line in parse_block(messages[-1]["content"])] == ["My dog is called Biscuit."]
    assert messages[-1]["content"].endswith("\n\nWhat is the name of my dog?")
    assert "Biscuit" not in messages[0]["content"]


@pytest.mark.case("L15")
async def test_L15_what_is_in_the_conversation_is_not_recalled_beside_it(service: UnifiedMemoryService) -> None:
    await service.add_entry("call", say("My dog is called Biscuit."), "ana")
    await service.add_entry("call", say("What is the name of my dog?"), "ana")
    messages = await service.build_llm_context("call", "What is the name of my dog?")
    assert [message["content"] for message in messages[1:]] == [
        "My dog is called Biscuit.",
        "What is the name of my dog?",
    ]


async def test_an_llm_context_keeps_to_its_tokens(backend: Backend) -> None:
    settings = Settings(context_tokens=700, block_tokens=200)
    service = UnifiedMemoryService(backend=backend, settings=settings)
    for number in range(30):
        await service.add_entry("s1", say(f"Order {number} is late. " + "And so on. " * 30), "ana")
    await service.add_entry("s2", say("My dog is called Biscuit."), "ana")
    rag = [{"content": "word " * 2_000, "source": "book"}] * 5
    messages = await service.build_llm_context("s1", "What about my dog?", rag, max_messages=20)
    assert count_tokens(messages) <= 700
    assert messages[-1]["content"].endswith("What about my dog?")
    assert messages[0]["role"] == "system"


async def test_instructions_and_the_number_of_messages_are_ones_own(service: UnifiedMemoryService) -> None:
    for number in range(5):
        await service.add_entry("s1", say(f"turn {number}"))
    messages = await service.build_llm_context("s1", "Yes?", instructions="You sell tea.", max_messages=2)
    assert messages[0]["content"].startswith("You sell tea.")
    assert [message["content"] for message in messages[1:]] == ["turn 3", "turn 4", "Yes?"]
    only = await service.build_llm_context("s1", "Yes?", max_messages=0)
    assert [message["role"] for message in only] == ["system", "user"]
