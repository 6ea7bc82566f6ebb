"""UnifiedMemoryService when something is away, when it forgets, and when its stores open and close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

import memory.service
from memory.errors import (
    HostUnavailable,
    InvalidEntry,
    InvalidIdentity,
    SettingsError,
    StoreUnavailable,
    VoiceMemoryError,
)
from memory.models import MemoryEntry, Recall, Scope
from memory.ports import Selection
from memory.service import UnifiedMemoryService
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend
from tests.support.services import archive_all, contents, say


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    opened = in_memory_backend()
    yield opened
    await opened.aclose()


@pytest.fixture
def service(backend: Backend) -> UnifiedMemoryService:
    return UnifiedMemoryService(backend=backend)


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
async def test_P_silent_a_recall_host_that_is_away_costs_only_its_part(
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
async def test_P_silent_sessions_that_are_away_leave_prompt_and_query(
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
async def test_P_erased_nothing_recalls_lists_or_recreates_it(service: UnifiedMemoryService, backend: Backend) -> None:
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
async def test_L23_deleting_nothing_says_so(service: UnifiedMemoryService) -> None:
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
def test_S03_a_new_loop_gets_new_stores_and_the_old_ones_are_let_go(opening: Opening) -> None:
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
async def test_P_silent_a_summary_is_made_by_the_summarizer_that_is_given(backend: Backend) -> None:
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
