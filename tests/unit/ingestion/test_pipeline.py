"""The pipeline: what becomes of a chunk, whoever is away, refuses or answers nonsense; nothing lost or paid twice."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from memory.errors import (
    EmbedderUnavailable,
    EmbeddingChanged,
    ProviderAnswerInvalid,
    ProviderRefused,
    ProviderUnavailable,
    StoreFault,
    StoreUnavailable,
)
from memory.ingestion.tools import Outcome
from memory.knowledge import ChunkState, Knowledge
from memory.limits import (
    BREAKER_FAILURES,
    BREAKER_OPEN_S_MAX,
    CHUNK_TOKENS_DEFAULT,
    INGEST_ATTEMPTS_MAX,
    KEY_MOMENTS_MAX,
)
from memory.models import Scope
from memory.ports import Selection
from memory.stores.knowledge_sql import SqlKnowledgeStore
from tests.support.archives import entry, new_scope
from tests.support.ingesting import DIMENSION, Plant

SAID = ("I live in Leeds.", "I am allergic to peanuts.")
FACTS = ["User is allergic to peanuts", "User lives in Leeds"]


async def heard(plant: Plant, scope: Scope, *texts: str, start: int = 1, session: str = "s1") -> int:
    records = [entry(text, session=session, minute=start + place) for place, text in enumerate(texts)]
    return await plant.said(scope, records, start=start)


@pytest.mark.case("L25")
async def test_L25_a_call_that_says_nothing_makes_no_graph_until_there_is_a_fact(plant: Plant, scope: Scope) -> None:
    greeting = entry("Hello, how can I help?", role="assistant", minute=0)
    user = await plant.said(scope, [greeting, entry("mm-hm", minute=1)])
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert plant.llm.usage.calls == 0
    assert scope not in plant.graph.graphs
    await heard(plant, scope, *SAID, start=10, session="s2")
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == FACTS
    await plant.assert_projected(scope)
    later = [entry("Thank you.", session="s3", minute=30)]
    await plant.said(scope, later, start=30)
    assert await plant.ingest_all(user) == [Outcome.DONE]
    await plant.assert_projected(scope)


async def test_the_extraction_of_each_chunk_brings_its_part_of_the_digest_along(plant: Plant, scope: Scope) -> None:
    records = [entry(f"My order {number} is late.", minute=number) for number in range(1, 9)]
    user = await plant.said(scope, records, tokens=40)
    outcomes = await plant.ingest_all(user)
    assert len(outcomes) > 1
    [digest] = await plant.stores.digests.digests(scope, limit=10)
    assert "order 1 " in digest.summary
    assert "order 5 " in digest.summary
    assert 0 < len(digest.key_moments) <= KEY_MOMENTS_MAX
    assert (digest.first_at, digest.last_at) == (records[0].timestamp, records[-1].timestamp)
    assert not await plant.stores.digests.undigested(before=plant.stores.clock.now() + timedelta(1), limit=10)


async def test_what_was_said_is_in_sql_in_the_graph_and_announced(
    plant: Plant, scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    user = await heard(plant, scope, *SAID)
    with caplog.at_level(logging.INFO):
        assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == FACTS
    await plant.assert_projected(scope)
    assert plant.notices.versions == [(scope, 1)]
    assert plant.llm.answered == ["extraction"]
    told = next(record.getMessage() for record in caplog.records if "Ingested" in record.getMessage())
    assert "2 turns, 2 facts" in told
    assert "1 LLM calls" in told
    assert "USD" in told
    assert "Leeds" not in caplog.text
    assert "peanut" not in caplog.text


async def test_facts_have_their_sources(plant: Plant, scope: Scope) -> None:
    records = [entry(text, minute=place) for place, text in enumerate(SAID)]
    await plant.ingest_all(await plant.said(scope, records))
    found = (await plant.stores.knowledge.changes(scope, after=0, limit=10)).facts
    leeds = next(fact for fact in found if "Leeds" in fact.text)
    assert [(source.session_id, source.turns) for source in leeds.sources] == [("s1", (records[0].id,))]


async def test_a_later_call_replaces_what_has_changed_and_asks_about_doubts_once(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    await plant.ingest_all(user)
    plant.llm.answered.clear()
    await heard(plant, scope, "I moved to York.", start=100, session="s2")
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert len(plant.llm.answered) <= 2
    facts = await plant.facts(scope)
    assert not any("Leeds" in fact for fact in facts)
    assert any("York" in fact for fact in facts)
    await plant.assert_projected(scope)


async def test_small_talk_is_done_without_facts(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, "Hello there.", "Thank you, bye.")
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == []
    assert plant.embedder.calls == 0


async def test_chunks_are_ingested_in_their_order_one_by_one(plant: Plant, scope: Scope) -> None:
    texts = [f"My order {1000 + number} is delayed." for number in range(12)]
    user = await plant.said(scope, [entry(text, minute=place) for place, text in enumerate(texts)], tokens=60)
    outcomes = await plant.ingest_all(user)
    assert len(outcomes) > 2
    assert set(outcomes) == {Outcome.DONE}
    _, known = await plant.stores.knowledge.read(scope)
    assert [episode.ordinal for episode in known.episodes] == list(range(len(outcomes)))
    assert len(await plant.facts(scope)) == 12


async def test_erased_turns_are_ingested_by_nobody(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)

    async def erase(_: str) -> None:
        await plant.stores.archive.erase(scope, Selection("all", through="9"))

    plant.llm.on_asked = erase
    assert await plant.ingestor.ingest_next(user) in (Outcome.GONE, Outcome.NOTHING)
    assert await plant.facts(scope) == []
    assert scope not in plant.graph.graphs


# -- providers


@pytest.mark.promise("P-durable")
async def test_P_durable_an_llm_that_is_down_for_an_hour_costs_nothing_but_time(plant: Plant) -> None:
    scopes = [new_scope() for _ in range(5)]
    users = [await heard(plant, scope, *SAID) for scope in scopes]
    plant.llm.fault = lambda: ProviderUnavailable("The LLM can't be reached.")
    begun = plant.stores.clock.seconds
    looks = 0
    while plant.stores.clock.seconds < begun + 3_600:
        for user in await plant.stores.chunks.due(now=plant.stores.clock.now(), limit=100):
            assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
        plant.stores.clock.seconds += 5
        looks += 1
    assert len(plant.llm.asked) < 40, "nobody storms an LLM that is away"
    counts = await plant.stores.chunks.counts()
    assert (counts["dead"], counts["waiting"]) == (0, 5)
    waiting = await plant.stores.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert {(one.chunk.attempts, bool(one.chunk.reason)) for one in waiting} == {(0, True)}

    plant.llm.fault = lambda: None
    for _ in range(2 * int(BREAKER_OPEN_S_MAX)):
        plant.stores.clock.seconds += 5
        for user in await plant.stores.chunks.due(now=plant.stores.clock.now(), limit=100):
            await plant.ingestor.ingest_next(user)
        if (await plant.stores.chunks.counts())["done"] == len(users):
            break
    for scope in scopes:
        assert await plant.facts(scope) == FACTS
        await plant.assert_projected(scope)
    assert looks == 720


@pytest.mark.case("L28")
async def test_L28_retry_after_is_heeded_and_the_chunk_is_ingested_once(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.embedder.fault = lambda: ProviderUnavailable("limited", retry_after_s=20.0)
    assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
    plant.stores.clock.seconds += 19
    assert await plant.ingestor.ingest_next(user) is Outcome.NOTHING
    plant.embedder.fault = lambda: None
    plant.stores.clock.seconds += 6
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert plant.llm.answered == ["extraction"], "what the LLM had answered is not paid for twice"
    assert plant.counters["ingest.reused"] == 1
    assert await plant.facts(scope) == FACTS


@pytest.mark.case("L28")
async def test_L28_a_refused_key_is_told_to_the_operator_and_counts_for_nothing(
    plant: Plant, scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    user = await heard(plant, scope, *SAID)
    plant.llm.fault = lambda: ProviderRefused("The LLM refuses with 401; check OPENAI_API_KEY.")
    with caplog.at_level(logging.INFO):
        for _ in range(60):
            await plant.ingestor.ingest_next(user)
            plant.stores.clock.seconds += 60
    assert len(plant.llm.asked) <= 8
    assert "OPENAI_API_KEY" in plant.ingestor.problem
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    [status] = await plant.stores.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert status.chunk.attempts == 0
    assert "OPENAI_API_KEY" in status.chunk.reason
    plant.llm.fault = lambda: None
    plant.stores.clock.seconds += 2 * BREAKER_OPEN_S_MAX
    assert await plant.ingest_all(user) == [Outcome.DONE]
    plant.stores.clock.seconds += 2 * BREAKER_OPEN_S_MAX
    assert plant.ingestor.problem == ""


@pytest.mark.case("L28")
async def test_L28_vectors_of_a_wrong_length_are_not_stored_and_count_for_nothing(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.embedder.length = DIMENSION + 1
    for _ in range(2 * INGEST_ATTEMPTS_MAX):
        assert await plant.ingestor.ingest_next(user) is not Outcome.DONE
        plant.stores.clock.seconds += 2 * BREAKER_OPEN_S_MAX
    assert (await plant.stores.chunks.counts())["dead"] == 0
    assert await plant.stores.rows("facts") == 0
    plant.embedder.length = DIMENSION
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == FACTS


@pytest.mark.case("L28")
async def test_L28_a_limit_of_a_minute_then_a_refused_key_then_a_wrong_length_cost_time_and_nothing_else(
    plant: Plant, scope: Scope
) -> None:
    user, clock, embedder = await heard(plant, scope, *SAID), plant.stores.clock, plant.embedder

    async def look_for(seconds: float) -> int:
        """Look every second; how often the endpoint was asked."""
        asked_before, until = embedder.calls, clock.seconds + seconds
        while clock.seconds < until:
            for due in await plant.stores.chunks.due(now=clock.now(), limit=10):
                assert await plant.ingestor.ingest_next(due) is Outcome.WAITS
            clock.seconds += 1
        return embedder.calls - asked_before

    embedder.fault = lambda: ProviderUnavailable("limited (429)", retry_after_s=20.0)
    assert await look_for(60) <= 3
    embedder.fault = lambda: ProviderRefused("401: check OPENAI_API_KEY")
    assert await look_for(600) <= 5, "no storm"
    assert plant.ingestor.embedder_breaker.state.refused
    embedder.fault, embedder.length = lambda: None, DIMENSION + 1
    assert await look_for(1_200) <= 10
    assert await plant.stores.rows("facts") == 0
    [status] = await plant.stores.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert status.chunk.attempts == 0
    embedder.length = DIMENSION
    clock.seconds += 2 * BREAKER_OPEN_S_MAX
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert plant.llm.answered == ["extraction"]
    assert await plant.facts(scope) == FACTS
    await plant.assert_projected(scope)


async def test_a_missing_embedder_is_the_operators_to_mend(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.embedder.fault = lambda: EmbedderUnavailable("The local embedder is missing: pip install …")
    assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
    assert "pip install" in plant.ingestor.problem
    assert plant.ingestor.embedder_breaker.state.refused


@pytest.mark.case("S04")
async def test_S04_vectors_of_another_model_are_never_mixed(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    await plant.ingest_all(user)
    stores = plant.stores
    other = SqlKnowledgeStore(stores.archive.database, stores.archive.users, stores.clock, vectors="another/1024")
    plant.ingestor = plant.another(knowledge=other)
    await heard(plant, scope, "I moved to York.", start=100, session="s2")
    assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
    assert "reindex" in plant.ingestor.problem
    assert await plant.facts(scope) == FACTS
    assert issubclass(EmbeddingChanged, ProviderRefused)


# -- chunks that are poison


async def test_a_chunk_that_fails_by_itself_is_given_up_on_and_holds_up_nothing(
    plant: Plant, scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    user = await heard(plant, scope, *SAID)
    await heard(plant, scope, "I work as a nurse.", start=100, session="s2")
    poison = True
    plant.llm.fault = lambda: ProviderAnswerInvalid("The LLM's answer is no JSON.") if poison else None
    outcomes, waits = [], []
    for _ in range(INGEST_ATTEMPTS_MAX):
        outcomes.append(await plant.ingestor.ingest_next(user))
        chunks = [told.chunk for told in await plant.stores.chunks.statuses(state=None, limit=10)]
        first = min(chunks, key=lambda chunk: chunk.span.first_cursor)
        if first.not_before:
            waits.append((first.not_before - plant.stores.clock.now()).total_seconds())
        assert await plant.ingestor.ingest_next(user) in (Outcome.NOTHING, Outcome.FAILED)
        plant.stores.clock.seconds += 3_600
    assert outcomes == [Outcome.FAILED] * (INGEST_ATTEMPTS_MAX - 1) + [Outcome.DEAD]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    poison = False
    [dead] = await plant.stores.chunks.statuses(state=ChunkState.DEAD, limit=10)
    assert dead.chunk.reason == "The LLM's answer is no JSON."
    assert any("ingestion retry" in record.getMessage() for record in caplog.records)
    plant.stores.clock.seconds += 3_600
    assert Outcome.DONE in await plant.ingest_all(user)
    assert any("nurse" in fact for fact in await plant.facts(scope))

    assert await plant.stores.chunks.move([dead.chunk.id], to=ChunkState.WAITING, from_=[ChunkState.DEAD]) == 1
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert set(FACTS) <= set(await plant.facts(scope))
    await plant.assert_projected(scope)


async def test_an_error_of_the_program_says_where_and_not_what(
    plant: Plant, scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    user = await heard(plant, scope, *SAID)
    plant.llm.fault = lambda: KeyError("I am allergic to peanuts.")
    assert await plant.ingestor.ingest_next(user) is Outcome.FAILED
    [status] = await plant.stores.chunks.statuses(state=ChunkState.WAITING, limit=10)
    assert "KeyError at answer:" in status.chunk.reason
    assert "peanuts" not in caplog.text + status.chunk.reason


async def test_a_worker_that_dies_over_a_chunk_again_and_again_comes_to_an_end(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    for _ in range(INGEST_ATTEMPTS_MAX):
        last = await plant.ingestor.interrupted(user)
        plant.stores.clock.seconds += 3_600
    assert last is Outcome.DEAD
    assert await plant.ingestor.interrupted(user) is Outcome.NOTHING


@pytest.mark.case("S06")
async def test_S06_an_answer_that_was_cut_off_is_asked_for_in_halves(plant: Plant, scope: Scope) -> None:
    texts = [f"My order {1000 + number} is delayed." for number in range(40)]
    user = await plant.said(scope, [entry(text, minute=place) for place, text in enumerate(texts)])
    left = 1

    def cut_off_once() -> Exception | None:
        nonlocal left
        left -= 1
        return ProviderAnswerInvalid("cut off", cut_off=True) if left >= 0 else None

    plant.llm.fault = cut_off_once
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert plant.llm.asked.count("extraction") == 3
    assert len(await plant.facts(scope)) == 40


@pytest.mark.case("S06")
async def test_S06_a_monologue_of_6000_words_is_ingested_whole(plant: Plant, scope: Scope) -> None:
    filler = "And then we talked for a while about nothing in particular. "
    monologue = "I live in Leeds. " + filler * 550 + "I am allergic to peanuts."
    user = await plant.said(scope, [entry(monologue)])
    assert len(await plant.stores.chunks.statuses(state=ChunkState.WAITING, limit=100)) > 2
    assert set(await plant.ingest_all(user)) == {Outcome.DONE}
    assert await plant.facts(scope) == FACTS
    assert len(monologue.split()) > 5_500
    assert CHUNK_TOKENS_DEFAULT < 6_000


# -- the graph


async def test_a_graph_that_is_away_is_waited_for_and_left_alone(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.graph.fault = lambda: StoreUnavailable("FalkorDB can't be reached.")
    for _ in range(200):
        assert await plant.ingestor.ingest_next(user) in (Outcome.WAITS, Outcome.NOTHING)
        plant.stores.clock.seconds += 5
    assert len(plant.graph.calls) <= BREAKER_FAILURES + 8
    assert plant.llm.answered == ["extraction"]
    plant.graph.fault = lambda: None
    plant.stores.clock.seconds += 2 * BREAKER_OPEN_S_MAX
    assert await plant.ingest_all(user) == [Outcome.DONE]
    await plant.assert_projected(scope)


async def test_what_the_graph_refuses_is_not_in_sql_either(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.graph.save_fault = lambda: StoreUnavailable("FalkorDB is too busy.")
    assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
    assert await plant.facts(scope) == []
    plant.graph.save_fault = lambda: None
    plant.stores.clock.seconds += 60
    assert await plant.ingest_all(user) == [Outcome.DONE]
    await plant.assert_projected(scope)


async def test_a_graph_that_refuses_everything_kills_no_chunk(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.graph.fault = lambda: StoreFault("FalkorDB refuses the credentials. Check FALKORDB_PASSWORD.")
    for _ in range(3 * INGEST_ATTEMPTS_MAX):
        await plant.ingestor.ingest_next(user)
        plant.stores.clock.seconds += 3_600
    assert (await plant.stores.chunks.counts())["dead"] == 0
    plant.graph.fault = lambda: None
    assert await plant.ingest_all(user) == [Outcome.DONE]


async def test_a_chunk_that_the_graph_alone_refuses_is_given_up_on(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.graph.save_fault = lambda: StoreFault("FalkorDB refuses this query.")
    outcomes = []
    for _ in range(INGEST_ATTEMPTS_MAX):
        outcomes.append(await plant.ingestor.ingest_next(user))
        plant.stores.clock.seconds += 3_600
    assert outcomes[-1] is Outcome.DEAD


@pytest.mark.promise("P-durable")
async def test_P_durable_a_graph_that_is_gone_is_restored_from_sql_without_an_llm(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    await plant.ingest_all(user)
    plant.graph.graphs.clear()
    plant.llm.asked.clear()
    await heard(plant, scope, "My dog is called Rex.", start=100, session="s2")
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert plant.graph.calls.count("restore") == 1
    assert set(FACTS) < set(await plant.facts(scope))
    await plant.assert_projected(scope)
    assert len(plant.llm.asked) <= 2


async def test_a_commit_whose_answer_was_lost_is_repeated_without_a_second_effect(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    lost = [StoreUnavailable("The answer was lost.")]
    plant.graph.after_save = lambda: lost.pop() if lost else None
    assert await plant.ingestor.ingest_next(user) is Outcome.WAITS
    plant.stores.clock.seconds += 60
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == FACTS
    await plant.assert_projected(scope)


# -- several workers


@pytest.mark.promise("P-durable")
async def test_P_durable_two_workers_over_one_chunk_ingest_it_once(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    other = plant.another()
    outcomes = await asyncio.gather(plant.ingestor.ingest_next(user), other.ingest_next(user))
    assert sorted(outcomes) == [Outcome.DONE, Outcome.GONE]
    assert await plant.facts(scope) == FACTS
    await plant.assert_projected(scope)
    assert (await plant.stores.chunks.counts())["done"] == 1


async def test_facts_that_could_not_be_announced_are_there_all_the_same(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    plant.notices.fault = lambda: StoreUnavailable("Redis is away.")
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == FACTS
    assert plant.counters["ingest.unannounced"] == 1


async def test_a_user_who_was_forgotten_has_nothing_to_ingest(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    await plant.stores.archive.erase(scope, Selection("all", through="9"))
    assert await plant.ingestor.ingest_next(user) is Outcome.NOTHING
    assert await plant.ingestor.ingest_next(user + 1_000) is Outcome.NOTHING
    assert plant.graph.graphs.get(scope, (0, Knowledge()))[1] == Knowledge()


async def test_what_lies_in_the_future_is_not_tried_before(plant: Plant, scope: Scope) -> None:
    user = await heard(plant, scope, *SAID)
    [status] = await plant.stores.chunks.statuses(state=None, limit=1)
    later = plant.stores.clock.now() + timedelta(seconds=30)
    await plant.stores.chunks.failed(status.chunk, reason="waits", not_before=later, counts=False)
    assert await plant.ingestor.ingest_next(user) is Outcome.NOTHING
    plant.stores.clock.seconds += 31
    assert await plant.ingest_all(user) == [Outcome.DONE]
