"""Vectors in the engine: query and newest turns together, older ones when idle, and nobody waits for a bad embedder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from memory.counters import Counters
from memory.errors import EmbedderUnavailable
from memory.limits import EMBED_BATCH_MAX, EMBED_NEWEST_MAX, EMBED_WAITING_MAX
from memory.models import Recall
from memory.retrieval.deadlines import Deadline
from memory.retrieval.embedding import EmbedDesk
from tests.support.recalls import DIMENSION, ManualClock, WordEmbedder, scope_of, settle, texts
from tests.unit.retrieval_host.conftest import Bench

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"


async def test_what_was_just_said_gets_its_vector_along_with_the_query(bench: Bench) -> None:
    await bench.say(FACT, "It is grey.", role="assistant")
    found = await bench.recall(QUESTION)
    assert found.degraded == ()
    assert bench.embedder.calls[0][0] == QUESTION
    assert sorted(bench.embedder.calls[0][1:]) == ["It is grey.", FACT]
    await bench.recall(QUESTION)
    assert bench.embedder.calls[1] == [QUESTION]


async def known(bench: Bench) -> None:
    """A user whose index is loaded, with a vector for each turn."""
    await bench.say(*(f"Remark {number} on the weather." for number in range(20)))
    while (await bench.recall(QUESTION)).degraded or bench.engine.stats()["missing_vectors"]:
        await bench.clock.advance(1)
    bench.embedder.calls.clear()


async def test_the_query_is_embedded_while_the_log_is_read(bench: Bench) -> None:
    await known(bench)
    bench.log.trouble.open.clear()
    asking = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    assert bench.embedder.calls == [[QUESTION]]
    await bench.say(FACT)
    bench.log.trouble.open.set()
    found = await asking
    assert texts(found)[0] == FACT
    assert found.degraded == ()
    assert bench.embedder.calls == [[QUESTION], [FACT]]


async def test_what_comes_while_the_embedder_is_waited_for_is_found(bench: Bench) -> None:
    await known(bench)
    bench.embedder.hold.clear()
    asking = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    await bench.say(FACT)
    await bench.engine.warm(scope_of())
    bench.embedder.hold.set()
    assert FACT in texts(await asking)


async def test_what_was_just_said_without_a_vector_is_found_by_keywords(bench: Bench) -> None:
    await known(bench)
    bench.log.trouble.open.clear()
    asking = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    await bench.say(FACT)
    bench.embedder.error = EmbedderUnavailable("gone")
    bench.log.trouble.open.set()
    found = await asking
    assert texts(found)[0] == FACT
    assert found.degraded == ("vectors",)


async def test_a_log_that_is_away_costs_one_run_of_the_embedder_not_one_a_turn(bench: Bench) -> None:
    await known(bench)
    bench.log.trouble.away = True
    for _ in range(3):
        assert (await bench.recall(QUESTION)).degraded == ("log",)
    assert bench.embedder.asked_for(QUESTION) <= 1


async def test_a_recall_given_up_while_it_waits_for_the_log_is_not_embedded(bench: Bench) -> None:
    await known(bench)
    bench.embedder.hold.clear()
    first = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    bench.log.trouble.open.clear()
    second = asyncio.create_task(bench.recall("Where is it?"))
    await settle()
    second.cancel()
    await asyncio.wait((second,))
    bench.log.trouble.open.set()
    bench.embedder.hold.set()
    assert (await first).degraded == ()
    await settle()
    assert bench.embedder.calls == [[QUESTION]]


async def test_strangers_are_not_embedded(bench: Bench) -> None:
    await bench.recall(QUESTION, scope_of("nobody"))
    await bench.recall(QUESTION, scope_of("nobody"))
    assert bench.embedder.calls == []


async def test_no_recall_waits_for_the_vectors_of_what_it_excludes(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.recall(QUESTION)
    now = frozenset(await bench.say("What is the weather like?", "It is raining.", session="now"))
    found = await bench.engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300, exclude_ids=now)
    assert bench.embedder.calls[-1] == [QUESTION]
    assert found.degraded == ()
    assert texts(found) == [FACT]


@pytest.mark.promise("P-fresh")
async def test_P_fresh_a_long_turn_said_just_now_is_found_before_it_has_a_vector(bench: Bench) -> None:
    await bench.say(*(f"Remark {number} on the weather." for number in range(30)))
    while (await bench.recall(QUESTION)).degraded:
        await bench.clock.advance(1)
    long = f"{FACT} {'And so it went on and on. ' * 60}"
    await bench.say(long)
    assert texts(await bench.recall(QUESTION))[0] == long
    assert bench.embedder.asked_for(long) == 0
    await bench.clock.advance(1)
    assert bench.embedder.asked_for(long) == 1


async def test_no_recall_waits_for_more_than_the_newest_turns(bench: Bench) -> None:
    await bench.say(*(f"Turn {number} about the cat." for number in range(40)))
    await bench.recall(QUESTION)
    assert len(bench.embedder.calls[0]) == 1 + EMBED_NEWEST_MAX


async def test_older_turns_get_their_vectors_when_nobody_waits(bench: Bench) -> None:
    contents = [f"Turn {number} about the cat." for number in range(40)]
    await bench.say(*contents)
    await bench.archive_all()
    await bench.recall(QUESTION)
    assert sum(bench.embedder.asked_for(text) for text in contents) == 0
    await bench.clock.advance(1)
    while sum(bench.embedder.asked_for(text) for text in contents) < 40:
        await settle()
    assert all(bench.embedder.asked_for(text) == 1 for text in contents)


async def test_while_most_turns_have_no_vector_keywords_decide_alone(bench: Bench) -> None:
    await bench.say(FACT, *(f"Remark number {number} on the weather." for number in range(30)))
    await bench.archive_all()
    found = await bench.recall(QUESTION)
    assert texts(found)[0] == FACT
    assert found.degraded == ("vectors",)
    async with asyncio.timeout(10):
        while (await bench.recall(QUESTION)).degraded:
            await bench.clock.advance(1)


async def test_a_failing_embedder_costs_the_vectors_only(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.say(FACT)
    bench.embedder.error = RuntimeError(FACT)
    found = await bench.recall(QUESTION)
    assert texts(found) == [FACT]
    assert found.degraded == ("vectors",)
    assert "Biscuit" not in caplog.text


async def test_a_failed_embedder_is_left_alone_for_a_while_and_then_used_again(bench: Bench) -> None:
    await bench.say(FACT)
    bench.embedder.error = EmbedderUnavailable("gone")
    await bench.recall(QUESTION)
    calls = len(bench.embedder.calls)
    bench.embedder.error = None
    assert (await bench.recall(QUESTION)).degraded == ("vectors",)
    assert len(bench.embedder.calls) == calls
    await bench.clock.advance(120)
    assert (await bench.recall(QUESTION)).degraded == ()


@pytest.mark.promise("P-silent")
async def test_P_silent_a_slow_embedder_costs_the_vectors_at_the_deadline_and_then_nobody_waits(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.engine.warm(scope_of())
    bench.embedder.hold.clear()
    waiting = asyncio.create_task(bench.recall(QUESTION, budget_ms=300))
    await bench.clock.advance(0.3)
    found = await waiting
    assert texts(found) == [FACT]
    assert found.degraded == ("vectors",)
    assert found.elapsed_ms <= 300
    found = await bench.recall(QUESTION)  # the clock stands still: this one did not wait
    assert texts(found) == [FACT]
    assert found.degraded == ("vectors",)
    bench.embedder.hold.set()
    await settle()
    assert (await bench.recall(QUESTION)).degraded == ()


async def test_without_an_embedder_nothing_is_missing(bench: Bench) -> None:
    engine = bench.another(embedder=None)
    await bench.say(FACT)
    found = await engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300)
    assert texts(found) == [FACT]
    assert found.degraded == ()
    await engine.aclose()


async def test_an_embedder_that_is_still_being_loaded_is_used_once_it_is_ready(bench: Bench) -> None:
    engine = bench.another(embedder_ready=False)
    await bench.say(FACT)

    async def recall() -> Recall:
        return await engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300)

    found = await recall()
    assert texts(found) == [FACT]
    assert found.degraded == ("vectors",)
    assert bench.embedder.calls == []
    engine.embedder_is_ready()
    found = await recall()
    assert texts(found) == [FACT]
    assert found.degraded == ()
    assert bench.embedder.asked_for(FACT) == 1
    await engine.aclose()


async def test_under_load_recalls_go_by_keywords_rather_than_wait(bench: Bench) -> None:
    users = [f"user {number}" for number in range(6)]
    for user in users:
        await bench.say(FACT, scope=scope_of(user), session=user)
        await bench.recall(QUESTION, scope_of(user))
    bench.embedder.hold.clear()
    asking = [asyncio.create_task(bench.recall(QUESTION, scope_of(user))) for user in users]
    await settle()
    bench.embedder.hold.set()
    found = [await each for each in asking]
    assert all(texts(each) == [FACT] for each in found)
    shed = sum(each.degraded == ("vectors",) for each in found)
    assert shed == len(users) - 1 - EMBED_WAITING_MAX
    assert bench.engine.counters["embed.shed"] == shed


class Desk:
    """A desk with an embedder of words, on a manual clock."""

    def __init__(self) -> None:
        self.clock, self.embedder, self.counters = ManualClock(), WordEmbedder(), Counters()
        self.desk = EmbedDesk(self.embedder, self.clock, self.counters)

    def ask(self, *contents: str, budget_ms: float = 300) -> asyncio.Task[object]:
        deadline = Deadline(self.clock, budget_ms)
        return asyncio.create_task(self.desk.for_recall(contents, deadline, reserve_s=0.0))


async def test_requests_that_wait_are_answered_in_one_batch_each_with_its_own() -> None:
    setup = Desk()
    setup.embedder.hold.clear()
    first = setup.ask("a")
    await settle()
    others = [setup.ask("b", "c"), setup.ask("d")]
    await settle()
    setup.embedder.hold.set()
    await asyncio.wait((first, *others))
    assert setup.embedder.calls == [["a"], ["b", "c", "d"]]
    for task, contents in ((first, ["a"]), (others[0], ["b", "c"]), (others[1], ["d"])):
        assert (task.result() == await setup.embedder.embed(contents)).all()
    await setup.desk.aclose()


async def test_what_follows_a_begun_text_is_queued_at_once_and_counts_as_no_other_recall() -> None:
    setup = Desk()
    setup.embedder.hold.clear()
    begun = setup.desk.begin(["query"])
    await settle()
    deadline = Deadline(setup.clock, 300)
    recall = asyncio.create_task(setup.desk.for_recall(["query", "fresh"], deadline, reserve_s=0.0, begun=begun))
    await settle()
    others = [setup.ask(f"other {number}") for number in range(EMBED_WAITING_MAX)]
    await settle()
    setup.embedder.hold.set()
    vectors = await recall
    assert (vectors == await setup.embedder.embed(["query", "fresh"])).all()  # type: ignore[union-attr]
    assert all([await other is not None for other in others])
    assert setup.embedder.calls[:2] == [["query"], ["fresh", *(f"other {n}" for n in range(EMBED_WAITING_MAX))]]
    assert setup.counters["embed.shed"] == 0
    await setup.desk.aclose()


async def test_a_batch_has_a_bound() -> None:
    setup = Desk()
    setup.embedder.hold.clear()
    tasks = [setup.ask("first")]
    await settle()
    tasks += [setup.ask(*(f"{name}{number}" for number in range(5))) for name in "xy"]
    await settle()
    setup.embedder.hold.set()
    await asyncio.wait(tasks)
    assert [len(call) for call in setup.embedder.calls] == [1, 5, 5]
    assert EMBED_BATCH_MAX < 10
    await setup.desk.aclose()


async def test_who_gave_up_waiting_is_not_embedded() -> None:
    setup = Desk()
    setup.embedder.hold.clear()
    first = setup.ask("a", budget_ms=1_000)
    await settle()
    late = setup.ask("late", budget_ms=10)
    await setup.clock.advance(0.02)
    assert await late is None
    setup.embedder.hold.set()
    await first
    await settle()
    assert setup.embedder.asked_for("late") == 0
    await setup.desk.aclose()


async def test_idle_work_waits_for_recalls_and_closing_ends_all_waits() -> None:
    setup = Desk()
    setup.embedder.hold.clear()
    urgent = setup.ask("urgent", budget_ms=10_000)
    await settle()
    idle = asyncio.create_task(setup.desk.when_idle(["old"]))
    await settle()
    assert setup.embedder.calls == [["urgent"]]
    setup.embedder.hold.set()
    assert await idle is not None
    assert await urgent is not None
    setup.embedder.hold.clear()
    urgent = setup.ask("urgent", budget_ms=10_000)
    await settle()
    await setup.desk.aclose()
    assert await urgent is None
    assert await setup.desk.when_idle(["old"]) is None


@pytest.mark.parametrize("wrong", [np.zeros((1, 3)), np.zeros((2, DIMENSION)), np.full((1, DIMENSION), np.nan)])
async def test_what_are_no_vectors_of_its_dimension_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, wrong: NDArray[np.float64]
) -> None:
    setup = Desk()

    async def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        return wrong.astype(np.float32)

    monkeypatch.setattr(setup.embedder, "embed", embed)
    assert await setup.ask("a") is None
    assert setup.counters["embed.failed"] == 1
    await setup.desk.aclose()
