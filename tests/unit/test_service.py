"""UnifiedMemoryService over stores in memory: what it stores, for whom, and what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import memory.service
from memory.clock import SystemClock
from memory.context.block import parse_block
from memory.context.budget import count_tokens
from memory.errors import (
    EntryTooLarge,
    HostUnavailable,
    InvalidEntry,
    InvalidIdentity,
    SessionOwnership,
    SettingsError,
    StoreUnavailable,
    VoiceMemoryError,
)
from memory.ingestion.archiver import Archiver
from memory.models import MemoryEntry, Recall, Scope
from memory.ports import Redacted, Selection
from memory.privacy.intake import FUTURE_TIMESTAMP
from memory.privacy.redaction import CARD_MASK
from memory.service import UnifiedMemoryService
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend

CARD = "4242 4242 4242 4242"


def say(content: str, **fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"role": "user", "content": content, "mode": "voice", "language": "en", **fields})


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    opened = in_memory_backend()
    yield opened
    await opened.aclose()


@pytest.fixture
def service(backend: Backend) -> UnifiedMemoryService:
    return UnifiedMemoryService(backend=backend)


async def archive_all(backend: Backend) -> None:
    await Archiver(backend.sessions, await backend.archive(), SystemClock()).drain()


async def contents(service: UnifiedMemoryService, session_id: str, **options: Any) -> list[str]:
    return [entry.content for entry in await service.get_history(session_id, **options)]


# Storing


@pytest.mark.promise("P-redacted")
async def test_P_redacted_nothing_of_a_card_reaches_any_store(service: UnifiedMemoryService, backend: Backend) -> None:  # noqa: N802
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
async def test_L17_the_same_id_again_is_one_entry(service: UnifiedMemoryService, backend: Backend) -> None:  # noqa: N802
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
async def test_P_isolated_a_session_of_another_user_is_refused(service: UnifiedMemoryService) -> None:  # noqa: N802
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
async def test_P_isolated_another_organisation_or_agent_gets_nothing(backend: Backend) -> None:  # noqa: N802
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
async def test_L25_reads_of_strangers_create_nothing(service: UnifiedMemoryService, backend: Backend) -> None:  # noqa: N802
    for number in range(50):
        assert await service.get_history(f"s{number}") == []
        assert await service.get_events(f"s{number}") == []
        assert (await service.get_context(f"s{number}")).messages == ()
        assert (await service.recall("anything", user_id=f"u{number}")).passages == ()
        assert await backend.sessions.find(f"s{number}") is None
    assert await backend.sessions.pending(limit=10) == []


@pytest.mark.case("L22")
async def test_L22_fifty_users_at_once_never_meet(service: UnifiedMemoryService) -> None:  # noqa: N802
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
async def test_P_fresh_what_was_said_is_recalled_in_another_session_at_once(service: UnifiedMemoryService) -> None:  # noqa: N802
    await service.add_entry("call", say("My dog is called Biscuit."), "ana")
    (passage,) = (await service.recall("What is the name of my dog?", user_id="ana")).passages
    assert (passage.text, passage.role, passage.session_id) == ("My dog is called Biscuit.", "user", "call")
    messages = await service.build_llm_context("chat", "What is the name of my dog?", user_id="ana")
    assert [line.text for line in parse_block(messages[-1]["content"])] == ["My dog is called Biscuit."]
    assert messages[-1]["content"].endswith("\n\nWhat is the name of my dog?")
    assert "Biscuit" not in messages[0]["content"]


@pytest.mark.case("L15")
async def test_L15_what_is_in_the_conversation_is_not_recalled_beside_it(service: UnifiedMemoryService) -> None:  # noqa: N802
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


# What is away


class AwayRetriever:
    """A recall host that is not there."""

    def __init__(self, error: VoiceMemoryError) -> None:
        self.error = error

    async def recall(self, *_: Any, **__: Any) -> Recall:
        raise self.error

    async def warm(self, scope: Scope) -> None:
        return

    async def erase(self, scope: Scope, selection: Selection) -> int:
        raise self.error


@pytest.mark.promise("P-silent")
@pytest.mark.parametrize("error", [HostUnavailable("away"), StoreUnavailable("away")])
async def test_P_silent_a_recall_host_that_is_away_costs_only_its_part(  # noqa: N802
    backend: Backend, error: VoiceMemoryError, caplog: pytest.LogCaptureFixture
) -> None:
    backend.retriever = AwayRetriever(error)
    service = UnifiedMemoryService(backend=backend)
    await service.add_entry("s1", say("Hello, my secret is xyzzy."), "ana")
    assert (await service.recall("secret", user_id="ana")).degraded == ("host",)
    messages = await service.build_llm_context("s1", "What?", user_id="ana")
    assert [message["content"] for message in messages[1:]] == ["Hello, my secret is xyzzy.", "What?"]
    assert service.counters["recall.failed"] == 2
    assert "xyzzy" not in caplog.text
    assert "ana" not in caplog.text


@pytest.mark.promise("P-silent")
async def test_P_silent_sessions_that_are_away_leave_prompt_and_query(  # noqa: N802
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(session_id: str) -> None:
        raise StoreUnavailable("Redis is away.")

    monkeypatch.setattr(backend.sessions, "find", away)
    service = UnifiedMemoryService(backend=backend)
    messages = await service.build_llm_context("s1", "What?")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert service.counters["context.degraded"] == 1
    with pytest.raises(StoreUnavailable):
        await service.get_history("s1")


async def test_without_a_recall_host_there_is_no_recall(backend: Backend) -> None:
    backend.retriever = None
    service = UnifiedMemoryService(backend=backend)
    await service.warm(user_id="ana")
    assert (await service.recall("x", user_id="ana")).degraded == ("host",)
    await service.add_entry("s1", say("Hi"), "ana")
    assert await service.delete_user_memory("ana", "all")


async def test_a_first_recall_warms_once_and_one_with_a_budget_never_waits(backend: Backend) -> None:
    warmed: list[str] = []

    class Noting(AwayRetriever):
        async def recall(self, *_: Any, **__: Any) -> Recall:
            return Recall()

        async def warm(self, scope: Scope) -> None:
            warmed.append(scope.user_id)

    backend.retriever = Noting(HostUnavailable(""))
    service = UnifiedMemoryService(backend=backend)
    await service.recall("x", user_id="ana", budget_ms=50)
    assert warmed == []
    for _ in range(2):
        await service.recall("x", user_id="ana")
        await service.warm(user_id="ben")
    assert warmed == ["ana", "ben"]
    with pytest.raises(InvalidIdentity):
        await service.recall("whose?")


# Forgetting


@pytest.mark.promise("P-erased")
async def test_P_erased_nothing_recalls_lists_or_recreates_it(service: UnifiedMemoryService, backend: Backend) -> None:  # noqa: N802
    await service.add_entry("s1", say("My dog is called Biscuit."), "ana")
    await archive_all(backend)
    await service.add_entry("s1", say("My cat is called Tulip."), "ana")
    assert len((await service.recall("dog Biscuit cat Tulip", user_id="ana")).passages) == 2
    late = await backend.sessions.read(service.scopes.of_user("ana"), after="", limit=10)

    receipt = await service.delete_user_memory("ana", "all")
    assert (bool(receipt), receipt.sessions, receipt.archive) == (True, 2, 1)

    archive = await backend.archive()
    assert await archive.store(service.scopes.of_user("ana"), late.records) == 0  # one that was on its way
    await archive_all(backend)
    assert await service.get_history("s1", user_id="ana") == []
    assert (await service.recall("dog Biscuit cat Tulip", user_id="ana")).passages == ()

    await service.add_entry("s1", say("Now I have a parrot."), "ana")
    assert await contents(service, "s1", user_id="ana") == ["Now I have a parrot."]
    assert [p.text for p in (await service.recall("parrot Biscuit", user_id="ana")).passages] == [
        "Now I have a parrot."
    ]


@pytest.mark.case("L23")
async def test_L23_deleting_nothing_says_so(service: UnifiedMemoryService) -> None:  # noqa: N802
    await service.add_entry("s1", say("Mine."), "ben")
    for scope in ("all", "day"):
        receipt = await service.delete_user_memory("ana", scope)
        assert not receipt
        assert str(receipt) == "Nothing was stored, so nothing was deleted."
    assert not await service.delete_user_memory("ana", "session", "s1")
    assert await contents(service, "s1") == ["Mine."]
    with pytest.raises(InvalidIdentity):
        await service.delete_user_memory("ana", "session")
    with pytest.raises(InvalidIdentity):
        await service.delete_user_memory("", "all")
    with pytest.raises(InvalidEntry):
        await service.delete_user_memory("ana", "everything")  # type: ignore[arg-type]


async def test_a_session_without_a_user_can_be_forgotten(service: UnifiedMemoryService) -> None:
    await service.add_entry("s1", say("Hi"))
    assert await service.forget(service.scopes.of_session("s1"), Selection("all"))
    assert await service.get_history("s1") == []


async def test_a_deletion_that_did_not_finish_is_no_success(backend: Backend) -> None:
    backend.retriever = AwayRetriever(HostUnavailable("away"))
    service = UnifiedMemoryService(backend=backend)
    await service.add_entry("s1", say("Hi"), "ana")
    with pytest.raises(HostUnavailable):
        await service.delete_user_memory("ana", "all")


# Opening and closing


class Opening:
    """Opens stores in memory, and notes when and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Backend] = []
        self.closed = 0
        self.errors: list[BaseException] = []
        self.wait: asyncio.Event | None = None
        monkeypatch.setattr(memory.service, "open_backend", self.open)

    async def open(self, settings: Settings) -> Backend:
        if self.wait:
            await self.wait.wait()
        if self.errors:
            raise self.errors.pop()
        made = in_memory_backend()
        made.closers.append(self._closing)
        self.opened.append(made)
        return made

    async def _closing(self) -> None:
        self.closed += 1


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    return Opening(monkeypatch)


async def test_stores_are_opened_on_first_use_and_once(opening: Opening) -> None:
    service = UnifiedMemoryService()
    await service.truncate_context([{"role": "user", "content": "x"}])
    assert opening.opened == []
    await asyncio.gather(*(service.get_history(f"s{i}") for i in range(5)))
    assert len(opening.opened) == 1
    await service.aclose()
    await service.aclose()
    assert opening.closed == 1
    await service.get_history("s1")
    assert len(opening.opened) == 2
    async with service:
        pass
    assert opening.closed == 2


async def test_a_failed_opening_is_raised_and_tried_again(opening: Opening) -> None:
    opening.errors = [StoreUnavailable("away")]
    service = UnifiedMemoryService()
    with pytest.raises(StoreUnavailable):
        await service.get_history("s1")
    assert await service.get_history("s1") == []


async def test_who_gives_up_waiting_does_not_take_the_stores_from_others(opening: Opening) -> None:
    opening.wait = asyncio.Event()
    service = UnifiedMemoryService()
    impatient, patient = (asyncio.create_task(service.get_history("s1")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert impatient.cancelled()
    opening.wait.set()
    assert await patient == []
    assert len(opening.opened) == 1


async def test_closing_ends_an_opening_that_hangs(opening: Opening) -> None:
    opening.wait = asyncio.Event()
    service = UnifiedMemoryService()
    waiting = asyncio.create_task(service.get_history("s1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await service.aclose()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.case("S03")
def test_S03_a_new_loop_gets_new_stores_and_the_old_ones_are_let_go(opening: Opening) -> None:  # noqa: N802
    service = UnifiedMemoryService()
    for number in range(3):
        asyncio.run(service.get_history("s1"))
        assert (len(opening.opened), opening.closed) == (number + 1, number)

    async def last() -> None:
        async with service:
            await service.get_history("s1")

    asyncio.run(last())
    assert (len(opening.opened), opening.closed) == (4, 4)


async def test_a_backend_that_was_given_stays_its_givers_to_close(backend: Backend) -> None:
    backend.closers.append(_refuse)
    async with UnifiedMemoryService(backend=backend) as service:
        await service.add_entry("s1", say("Hi"))
    assert backend.closers.pop() is _refuse


async def _refuse() -> None:
    raise AssertionError("closed by somebody it does not belong to")


async def test_wrong_settings_are_told_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "soon")
    service = UnifiedMemoryService()
    with pytest.raises(SettingsError, match="MEMORY_TURN_BUDGET_MS"):
        await service.get_history("s1")


@pytest.mark.promise("P-silent")
async def test_P_silent_a_summary_is_made_by_the_summarizer_that_is_given(backend: Backend) -> None:  # noqa: N802
    class Counting:
        async def summarize(self, entries: Sequence[MemoryEntry]) -> str:
            return f"{len(entries)} turns"

    service = UnifiedMemoryService(backend=backend, summarizer=Counting())
    messages = [{"role": "system", "content": "Be kind."}] + [{"role": "user", "content": "word " * 50}] * 10
    truncated = await service.truncate_context(messages, 300)
    assert truncated[1]["content"] == "[Previous conversation summary: 7 turns]"


def test_the_service_needs_nothing_heavy(run_python: Callable[[str], str]) -> None:
    loaded = run_python("import sys; import memory.service; print(*sys.modules)").split()
    assert not {"livekit", "sqlalchemy", "numpy", "redis", "alembic", "onnxruntime"} & set(loaded)
