"""What a look finds, cuts and queues; and what the worker's tasks do with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from memory.errors import (
    InvalidEntry,
    ProviderAnswerInvalid,
    ProviderRefused,
    ProviderUnavailable,
    StoreFault,
    StoreUnavailable,
)
from memory.ingestion import scan
from memory.ingestion.asked import LanguageModels
from memory.ingestion.breaker import Breaker
from memory.ingestion.chunking import cutter
from memory.ingestion.confidential import Confidential
from memory.ingestion.digesting import Digester, Teller
from memory.ingestion.graph_upkeep import settle_pending
from memory.ingestion.worker import FactsPart, IngestWork, Knowledge
from memory.knowledge_ports import Cutter, SessionRef
from memory.limits import (
    CHUNK_TURNS_MAX,
    INGEST_CHUNKS_MAX,
    INGEST_OPEN_PATIENCE_S,
    INGEST_OPEN_RETRY_S,
    INGEST_USERS_MAX,
)
from memory.ports import Selection
from memory.providers.summarizer import ExtractiveSummarizer
from tests.support.archives import entry, new_scope
from tests.support.ingesting import MemoryGraph, Plant

IDLE_S = 60.0


class MemoryQueue:
    """scan's ``Queue``, emptied by the test."""

    def __init__(self) -> None:
        self.ingestion: dict[int, None] = {}
        self.digests: dict[int, None] = {}
        self.most = 0

    async def waiting(self) -> int:
        return len(self.ingestion) + len(self.digests)

    async def add_ingestion(self, users: Sequence[int]) -> None:
        self.ingestion.update(dict.fromkeys(users))
        self.most = max(self.most, await self.waiting())

    async def add_digests(self, users: Sequence[int]) -> None:
        self.digests.update(dict.fromkeys(users))
        self.most = max(self.most, await self.waiting())

    def emptied(self) -> list[int]:
        users = list(self.ingestion)
        self.ingestion.clear()
        self.digests.clear()
        return users


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()


# -- looking


@pytest.mark.promise("P-durable")
async def test_P_durable_a_session_that_nobody_ended_is_cut_and_queued(plant: Plant, queue: MemoryQueue) -> None:
    ref = await plant.stores.store(new_scope(), [entry("I live in Leeds.")])
    scanner = plant.scanner(idle_s=IDLE_S)
    await scanner.look(queue)
    assert not queue.ingestion, "somebody may still be talking"
    plant.stores.clock.seconds += IDLE_S + 1
    assert not await scanner.look(queue)
    assert list(queue.ingestion) == [ref.user]
    assert list(queue.digests) == [ref.user]
    await scanner.look(queue)
    assert (await plant.stores.chunks.counts())["waiting"] == 1, "looking again cuts nothing again"


@pytest.mark.promise("P-durable")
async def test_P_durable_a_session_that_ends_twice_is_ingested_once(plant: Plant, queue: MemoryQueue) -> None:
    scope = new_scope()
    ref = await plant.stores.store(scope, [entry("I live in Leeds.")])
    plant.stores.clock.seconds += IDLE_S + 1
    await plant.scanner().look(queue)
    await plant.ingest_all(ref.user)
    await plant.stores.store(scope, [entry("I am allergic to peanuts.", minute=90)], start=2)
    plant.stores.clock.seconds += IDLE_S + 1
    await plant.scanner().look(queue)
    await plant.ingest_all(ref.user)
    assert await plant.facts(scope) == ["User is allergic to peanuts", "User lives in Leeds"]
    assert (await plant.stores.chunks.counts())["done"] == 2
    assert plant.llm.answered.count("extraction") == 2


async def test_chunks_are_cut_and_wait_where_nothing_can_ingest_them(plant: Plant, queue: MemoryQueue) -> None:
    await plant.stores.store(new_scope(), [entry("I live in Leeds.")])
    plant.stores.clock.seconds += IDLE_S + 1
    await plant.scanner(ready=lambda: False).look(queue)
    assert not queue.ingestion
    assert queue.digests
    assert (await plant.stores.chunks.counts())["waiting"] == 1


async def test_a_burst_of_ended_sessions_waits_in_sql(
    plant: Plant, queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INGEST_SESSIONS_MAX", "INGEST_USERS_MAX"):
        monkeypatch.setattr(scan, name, 10)
    for number in range(35):
        await plant.stores.store(new_scope(user_id=f"u{number}"), [entry("Hello there.", session=f"s{number}")])
    plant.stores.clock.seconds += IDLE_S + 1
    scanner, ingested, looks = plant.scanner(tells=lambda: False), set[int](), 0
    while await scanner.look(queue):
        looks += 1
        assert looks < 10
        assert len(queue.ingestion) <= 10
        ingested |= set(queue.ingestion)
        for user in queue.emptied():
            await plant.ingest_all(user)
    assert len(ingested | set(queue.ingestion)) == 35


async def test_digests_that_can_not_be_made_now_are_not_queued(plant: Plant, queue: MemoryQueue) -> None:
    await plant.stores.store(new_scope(), [entry("Hello there.")])
    plant.stores.clock.seconds += IDLE_S + 1
    assert not await plant.scanner(tells=lambda: False).look(queue)
    assert not queue.digests
    assert queue.ingestion


async def test_nothing_is_queued_while_the_queue_is_full(plant: Plant, queue: MemoryQueue) -> None:
    queue.ingestion.update(dict.fromkeys(range(10_000, 10_000 + INGEST_USERS_MAX)))
    await plant.stores.store(new_scope(), [entry("Hello there.")])
    plant.stores.clock.seconds += IDLE_S + 1
    assert await plant.scanner().look(queue), "there is more to do"
    assert len(queue.ingestion) == INGEST_USERS_MAX


@pytest.mark.parametrize(
    ("error", "faults"),
    [
        (StoreFault("The archive refused."), 1),
        (InvalidEntry("a row of a newer version"), 1),
        (ValueError("my secret"), 1),
        (StoreUnavailable("The archive did not answer."), 0),
    ],
)
async def test_a_session_that_can_not_be_cut_holds_up_no_other(
    plant: Plant,
    queue: MemoryQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    faults: int,
) -> None:
    first = await plant.stores.store(new_scope(), [entry("Hello there.", session="broken")])
    await plant.stores.store(new_scope(), [entry("Hello there.", session="whole")])
    plant.stores.clock.seconds += IDLE_S + 1
    cut = plant.stores.chunks.cut

    async def refusing(ref: SessionRef, cutter: Cutter, *, limit: int) -> int:
        if ref == first:
            raise error
        return await cut(ref, cutter, limit=limit)

    monkeypatch.setattr(plant.stores.chunks, "cut", refusing)
    await plant.scanner().look(queue)
    assert len(queue.ingestion) == 1
    assert plant.counters["scan.faults"] == faults
    assert "my secret" not in caplog.text


async def test_an_archive_that_is_away_is_not_asked_for_every_session(
    plant: Plant, queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await plant.stores.store(new_scope(), [entry("Hello there.", session=f"s{number}")])
    plant.stores.clock.seconds += IDLE_S + 1
    asked: list[SessionRef] = []

    async def away(ref: SessionRef, cutter: Cutter, *, limit: int) -> int:
        asked.append(ref)
        raise StoreUnavailable("The archive did not answer.")

    monkeypatch.setattr(plant.stores.chunks, "cut", away)
    with pytest.raises(StoreUnavailable):
        await plant.scanner().look(queue)
    assert len(asked) == 2


# -- what the tasks do


def facts_part(plant: Plant, *, fails: int = 0) -> FactsPart:
    left = [StoreUnavailable("FalkorDB can't be reached.")] * fails

    async def check() -> str:
        await plant.graph.state(new_scope())
        return "FalkorDB connected"

    async def opening() -> Knowledge:
        if left:
            raise left.pop()
        return Knowledge(plant.ingestor, LanguageModels(lambda: plant.llm), lambda _: 0.25, check)

    return FactsPart(plant.stores.clock, opening, "")


def digester(plant: Plant, teller: Teller | None = None) -> Digester:
    return Digester(
        plant.stores.digests,
        ExtractiveSummarizer(),
        plant.stores.clock,
        plant.counters,
        confidential=Confidential(["secret"]),
        idle_s=IDLE_S,
        teller=lambda: teller,
    )


def work(plant: Plant, facts: FactsPart) -> IngestWork:
    scanner = plant.scanner(ready=lambda: facts.ready, tells=facts.tells)
    return IngestWork(scanner, facts, digester(plant), plant.counters, drain=nothing, settle=nothing)


async def nothing() -> int:
    """There is nothing to do."""
    return 0


async def test_a_user_with_many_chunks_lets_others_have_their_turn(plant: Plant) -> None:
    scope = new_scope()
    texts = [f"My order {1000 + number} is delayed." for number in range(3 * INGEST_CHUNKS_MAX)]
    user = await plant.said(scope, [entry(text, minute=place) for place, text in enumerate(texts)], tokens=25)
    task = work(plant, facts_part(plant))
    assert await task.ingest(user), "there is more"
    assert plant.counters["ingest.done"] == INGEST_CHUNKS_MAX
    while await task.ingest(user):
        pass
    assert (await plant.stores.chunks.counts())["waiting"] == 0


async def test_what_can_not_be_opened_yet_is_tried_again(plant: Plant, queue: MemoryQueue) -> None:
    scope = new_scope()
    ref = await plant.stores.store(scope, [entry("I live in Leeds.")])
    plant.stores.clock.seconds += IDLE_S + 1
    facts = facts_part(plant, fails=2)
    task = work(plant, facts)
    await task.look(queue)
    assert not queue.ingestion
    assert (await facts.parts())["graphiti"].message == "FalkorDB can't be reached."
    assert await task.ingest(ref.user) is False
    for _ in range(3):
        plant.stores.clock.seconds += INGEST_OPEN_RETRY_S
        await task.look(queue)
    assert list(queue.ingestion) == [ref.user]
    await task.ingest(ref.user)
    assert await plant.facts(scope) == ["User lives in Leeds"]


@pytest.mark.promise("P-durable")
async def test_P_durable_what_a_dead_machine_left_in_logs_is_moved_first(plant: Plant, queue: MemoryQueue) -> None:
    scope, moved = new_scope(), list[int]()

    async def drain() -> None:
        moved.append((await plant.stores.store(scope, [entry("I live in Leeds.")])).user)
        plant.stores.clock.seconds += IDLE_S + 1

    facts = facts_part(plant)
    task = IngestWork(plant.scanner(), facts, digester(plant), plant.counters, drain=drain, settle=nothing)
    await task.look(queue)
    await task.look(queue)
    assert set(queue.ingestion) == set(moved)


@pytest.mark.parametrize("error", [StoreFault("The archive refused."), StoreUnavailable("away"), KeyError("x")])
async def test_a_log_that_can_not_be_moved_stops_no_look(plant: Plant, queue: MemoryQueue, error: Exception) -> None:
    async def drain() -> None:
        raise error

    ref = await plant.stores.store(new_scope(), [entry("I live in Leeds.")])
    plant.stores.clock.seconds += IDLE_S + 1
    task = IngestWork(plant.scanner(), facts_part(plant), digester(plant), plant.counters, drain=drain, settle=nothing)
    await task.look(queue)
    assert list(queue.ingestion) == [ref.user]
    assert plant.counters["scan.logs_failed"] == 1


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_that_could_not_reach_the_graph_reaches_it_with_the_next_look(
    plant: Plant, queue: MemoryQueue
) -> None:
    scope = new_scope()
    user = await plant.said(scope, [entry("I live in Leeds.")])
    await plant.ingest_all(user)
    await plant.stores.archive.erase(scope, Selection("all", through="9"))
    assert scope in plant.graph.graphs, "nobody has told the graph yet"

    async def graphs(_: str) -> MemoryGraph:
        return plant.graph

    async def settle() -> int:
        return await settle_pending(plant.stores.knowledge, graphs)

    task = IngestWork(plant.scanner(), facts_part(plant), digester(plant), plant.counters, drain=nothing, settle=settle)
    plant.graph.fault = lambda: StoreUnavailable("FalkorDB can't be reached.")
    await task.look(queue)
    assert plant.counters["scan.graphs_failed"] == 1
    plant.graph.fault = lambda: None
    await task.look(queue)
    assert scope not in plant.graph.graphs


async def test_health_names_the_parts_as_users_know_them(plant: Plant) -> None:
    facts = facts_part(plant)
    assert (await facts.parts())["graphiti"].status == "unhealthy"
    await facts.get()
    parts = await facts.parts()
    assert (parts["graphiti"].status, parts["graphiti"].message) == ("healthy", "FalkorDB connected")
    assert parts["llm"].details["cost_usd"] == 0.25
    plant.llm.fault = lambda: ProviderRefused("The LLM refuses with 401; check OPENAI_API_KEY.")
    user = await plant.said(new_scope(), [entry("I live in Leeds.")])
    await plant.ingestor.ingest_next(user)
    llm = (await facts.parts())["llm"]
    assert llm.status == "unhealthy"
    assert "the operator has to act" in llm.message
    assert "OPENAI_API_KEY" in llm.message
    plant.graph.fault = lambda: StoreUnavailable("FalkorDB can't be reached.")
    assert (await facts.parts())["graphiti"].status == "unhealthy"


async def test_what_is_skipped_says_why(plant: Plant) -> None:
    facts = FactsPart(plant.stores.clock, None, "GRAPHITI_ENABLED is off")
    assert await facts.get() is None
    assert {(part.status, part.message) for part in (await facts.parts()).values()} == {
        ("skipped", "GRAPHITI_ENABLED is off")
    }
    assert facts.teller() is None


# -- digests


async def given_up_on(plant: Plant, user: int) -> None:
    """The user's first chunk, so that no ingestion brings its digest along."""
    chunk = await plant.stores.chunks.next(user, now=plant.stores.clock.now())
    assert chunk is not None
    await plant.stores.chunks.failed(chunk, reason="a test", not_before=None)


async def digested(plant: Plant, *texts: str, teller: Teller | None = None) -> tuple[str, tuple[str, ...], str]:
    scope = new_scope()
    ref = await plant.stores.store(scope, [entry(text, minute=place) for place, text in enumerate(texts)])
    if teller is not None:
        await plant.stores.chunks.cut(ref, cutter(), limit=CHUNK_TURNS_MAX)
        await given_up_on(plant, ref.user)
    plant.stores.clock.seconds += IDLE_S + 1
    await digester(plant, teller).digest(ref.user)
    [found] = await plant.stores.digests.digests(scope, limit=10)
    assert not await plant.stores.digests.undigested(before=plant.stores.clock.now(), limit=10)
    return found.summary, found.key_moments, found.made_by


async def test_a_session_is_told_in_short_without_an_llm(plant: Plant) -> None:
    summary, moments, made_by = await digested(plant, "I live in Leeds.", "The secret is swordfish.")
    assert "Leeds" in summary
    assert "swordfish" not in summary + "".join(moments)
    assert made_by == "extractive"


async def test_and_by_the_llm_where_there_is_one(plant: Plant) -> None:
    teller = Teller(LanguageModels(lambda: plant.llm), Breaker("The LLM", plant.stores.clock))
    _, _, made_by = await digested(plant, "I live in Leeds.", teller=teller)
    assert made_by == "grammar"
    assert plant.counters["digests.by_llm"] == 1


async def test_a_session_that_waits_to_be_ingested_is_not_asked_about_twice(plant: Plant) -> None:
    scope = new_scope()
    teller = Teller(LanguageModels(lambda: plant.llm), Breaker("The LLM", plant.stores.clock))
    ref = await plant.stores.store(scope, [entry("I live in Leeds.")])
    plant.stores.clock.seconds += IDLE_S + 1
    await digester(plant, teller).digest(ref.user)
    await plant.stores.chunks.cut(ref, cutter(), limit=CHUNK_TURNS_MAX)
    await digester(plant, teller).digest(ref.user)
    assert await plant.stores.digests.digests(scope, limit=10) == []
    await plant.ingest_all(ref.user)
    asked = plant.llm.usage.calls
    await digester(plant, teller).digest(ref.user)
    assert plant.llm.usage.calls == asked == 1
    [found] = await plant.stores.digests.digests(scope, limit=10)
    assert (found.made_by, "Leeds" in found.summary) == ("grammar", True)


async def test_an_llm_that_answers_nonsense_costs_the_session_no_digest(plant: Plant) -> None:
    plant.llm.fault = lambda: ProviderAnswerInvalid("not JSON")
    teller = Teller(LanguageModels(lambda: plant.llm), Breaker("The LLM", plant.stores.clock))
    assert (await digested(plant, "I live in Leeds.", teller=teller))[2] == "extractive"


async def test_an_llm_that_is_away_is_waited_for(plant: Plant) -> None:
    scope = new_scope()
    ref = await plant.stores.store(scope, [entry("I live in Leeds.")])
    await plant.stores.chunks.cut(ref, cutter(), limit=CHUNK_TURNS_MAX)
    await given_up_on(plant, ref.user)
    plant.stores.clock.seconds += IDLE_S + 1
    plant.llm.fault = lambda: ProviderUnavailable("The LLM can't be reached.")
    teller = Teller(LanguageModels(lambda: plant.llm), Breaker("The LLM", plant.stores.clock))
    with pytest.raises(ProviderUnavailable):
        await digester(plant, teller).digest(ref.user)
    assert await plant.stores.digests.undigested(before=plant.stores.clock.now() + timedelta(1), limit=10) == [ref]
    task = IngestWork(
        plant.scanner(), facts_part(plant), digester(plant, teller), plant.counters, drain=nothing, settle=nothing
    )
    await task.digest(ref.user)
    assert plant.counters["digests.waiting"] == 1


async def test_an_llm_that_can_not_be_opened_is_waited_for_but_not_for_ever(plant: Plant) -> None:
    facts = facts_part(plant, fails=1_000)
    await facts.get()
    with pytest.raises(ProviderUnavailable):
        facts.teller()
    assert not facts.tells()
    plant.stores.clock.seconds += INGEST_OPEN_PATIENCE_S
    assert facts.teller() is None
    assert facts.tells()
