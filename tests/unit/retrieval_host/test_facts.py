"""Facts in recall: what holds now, seen as soon as it is announced, never another's, and never after an erasure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from memory.limits import FACTS_CHECK_S, FOLLOW_POLL_S_MAX, RECALL_FACTS, SNAPSHOT_TURNS_MIN
from memory.models import Recall, Scope
from memory.ports import Selection
from memory.retrieval.engine import RecallEngine
from memory.retrieval.profile import PROFILE_QUERIES
from tests.support.fact_source import Facts, at, fact
from tests.support.recalls import scope_of, settle, texts
from tests.unit.retrieval_host.conftest import Bench

WHERE = "Where is my home?"
LEEDS = fact("The user's home is in Leeds", key="leeds", turns=["t1"], said_at=at(1), valid_at=at(1))
YORK = fact("The user's home is in York", key="york", turns=["t2"], said_at=at(9), valid_at=at(9))
LEEDS_OVER = fact(
    "The user's home is in Leeds", key="leeds", turns=["t1"], said_at=at(1), valid_at=at(1), invalid_at=at(9)
)


class Side:
    """An engine with facts."""

    def __init__(self, bench: Bench, engine: RecallEngine, facts: Facts) -> None:
        self.bench, self.engine, self.facts = bench, engine, facts

    async def commit(self, *changed: object, scope: Scope | None = None, announced: bool = True) -> int:
        version = self.facts.commit(scope or scope_of(), *changed)  # type: ignore[arg-type]
        if announced:
            await self.bench.log.announce(scope or scope_of(), version=version)
        return version

    async def ask(
        self, query: str = WHERE, scope: Scope | None = None, *, exclude: frozenset[str] = frozenset()
    ) -> Recall:
        return await self.engine.recall(scope or scope_of(), query, limit=8, budget_ms=300, exclude_ids=exclude)


@pytest.fixture
async def side(bench: Bench) -> AsyncIterator[Side]:
    facts = Facts()
    engine = bench.another(facts=facts)
    yield Side(bench, engine, facts)
    facts.trouble.open.set()
    await engine.aclose()


def told(recall: Recall) -> list[str]:
    return [one.text for one in recall.facts]


async def test_a_fact_is_recalled_with_its_source_and_its_validity(side: Side) -> None:
    await side.commit(YORK)
    found = await side.ask()
    assert found.facts == (YORK,)
    assert found.degraded == ()


async def test_facts_without_a_single_turn_are_recalled(side: Side) -> None:
    await side.commit(YORK)
    assert told(await side.ask()) == [YORK.text]
    assert told(await side.ask("Is it raining on the moon?")) == []


async def test_what_is_announced_is_in_the_next_recall(side: Side) -> None:
    await side.bench.say("Hello there.")
    assert told(await side.ask()) == []
    await side.commit(YORK)
    assert told(await side.ask()) == [YORK.text]
    reads = len(side.facts.trouble.reads)
    for _ in range(3):
        await side.ask()
    assert len(side.facts.trouble.reads) == reads  # what the log tells costs nothing


@pytest.mark.promise("P-current")
async def test_P_current_a_corrected_fact_replaces_the_old_one(side: Side) -> None:
    await side.bench.say("My home is in Leeds.", id="t1")
    await side.commit(LEEDS)
    assert told(await side.ask()) == [LEEDS.text]
    await side.bench.say("I have moved, my home is in York now.", id="t2")
    await side.commit(YORK, LEEDS_OVER)
    found = await side.ask()
    assert told(found) == [YORK.text]
    changed = {passage.text: passage.changed for passage in found.passages}
    assert changed["My home is in Leeds."]
    assert not changed.get("I have moved, my home is in York now.", False)


@pytest.mark.promise("P-current")
async def test_P_current_a_reply_that_repeated_it_is_out_of_date_too(side: Side) -> None:
    await side.bench.say("My home is in Leeds.", id="t1", session="past", timestamp=at(1))
    await side.bench.say("So your home is in Leeds, nice.", role="assistant", session="past", timestamp=at(1, 13))
    await side.bench.say("So your home is in York, nice.", role="assistant", session="later", timestamp=at(9, 13))
    await side.commit(YORK, LEEDS_OVER)
    changed = {passage.text: passage.changed for passage in (await side.ask()).passages}
    assert changed["So your home is in Leeds, nice."]
    assert not changed["So your home is in York, nice."]


@pytest.mark.promise("P-current")
@pytest.mark.case("L30")
async def test_L30_P_current_what_was_a_joke_is_not_told_as_a_fact(side: Side) -> None:
    yes = {"key": "nuts", "turns": ["d1", "d3"], "said_at": at(1), "valid_at": at(1)}
    await side.bench.say("I am allergic to nuts.", id="d1", timestamp=at(1))
    await side.bench.say("I was joking, I am not allergic to nuts.", id="d2", timestamp=at(2))
    await side.bench.say("Remember when I said I was allergic to nuts? Silly.", id="d3", timestamp=at(3))
    await side.commit(fact("The user is allergic to nuts", **yes, invalid_at=at(2)))  # type: ignore[arg-type]
    await side.commit(fact("The user is not allergic to nuts", turns=["d2"], said_at=at(2), valid_at=at(2)))
    found = await side.ask("Am I allergic to anything?")
    assert told(found) == ["The user is not allergic to nuts"]
    assert {passage.id: passage.changed for passage in found.passages} == {"d1": True, "d3": True}


async def test_a_fact_that_has_not_begun_or_ends_by_itself_is_told_while_it_holds(side: Side) -> None:
    now = side.bench.clock.now()
    soon, later = now.replace(hour=23), now.replace(hour=23, minute=30)
    await side.commit(fact("The user's home is in Rome", valid_at=soon, invalid_at=later))
    assert told(await side.ask()) == []
    await side.bench.clock.advance((soon - now).total_seconds() + 60)
    assert told(await side.ask()) == ["The user's home is in Rome"]
    await side.bench.clock.advance(3_600)
    assert told(await side.ask()) == []


@pytest.mark.promise("P-isolated")
async def test_P_isolated_facts_are_one_users(side: Side) -> None:
    scopes = [scope_of("ana"), scope_of("ben"), scope_of("ana", org="other"), scope_of("Ana")]
    for number, scope in enumerate(scopes):
        await side.commit(fact(f"The user's gate code is canary{number}", key="gate"), scope=scope)
    for number, scope in enumerate(scopes):
        assert told(await side.ask("What is my gate code?", scope)) == [f"The user's gate code is canary{number}"]


async def test_a_turn_and_its_fact_are_not_both_told(side: Side) -> None:
    await side.bench.say("My home is in York.", id="t2", timestamp=at(9))
    await side.commit(YORK)
    found = await side.ask()
    assert (texts(found), told(found)) == ([], [YORK.text])
    more = "My home is in York, above the bakery, with my sister Mia and her old parrot."
    await side.bench.say(more, id="t3", timestamp=at(9))
    await side.commit(fact(YORK.text, key="york", turns=["t3"], said_at=at(9)))
    found = await side.ask()
    assert (more in texts(found), told(found)) == (True, [])


async def test_what_was_said_in_the_call_itself_is_in_its_context_already(side: Side) -> None:
    await side.commit(YORK)
    assert told(await side.ask(exclude=frozenset({"t2"}))) == []
    await side.commit(fact(YORK.text, key="york", turns=["t2", "t9"]))
    assert told(await side.ask(exclude=frozenset({"t2"}))) == [YORK.text]


async def test_only_the_best_are_told(side: Side) -> None:
    await side.commit(*(fact(f"The user's home is in York on day {number}") for number in range(40)))
    assert len(told(await side.ask("Where in York is my home?"))) == RECALL_FACTS


# -- erasure


@pytest.mark.promise("P-erased")
async def test_P_erased_no_fact_outlives_an_erasure(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.commit(YORK)
    assert told(await side.ask()) == [YORK.text]
    side.facts.forget(scope_of())
    await side.bench.archive.erase(scope_of(), Selection("all"))
    await side.bench.log.erase(scope_of(), Selection("all"))
    assert told(await side.ask()) == []
    await side.commit(LEEDS)
    assert told(await side.ask()) == [LEEDS.text]


@pytest.mark.promise("P-erased")
async def test_P_erased_facts_being_read_during_an_erasure_are_not_told(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.ask()
    await side.commit(YORK)
    side.facts.trouble.open.clear()
    waiting = asyncio.create_task(side.ask())
    await settle()
    await side.bench.archive.erase(scope_of(), Selection("all"))
    await side.bench.log.erase(scope_of(), Selection("all"))
    await side.engine.erase(scope_of(), Selection("all"))
    side.facts.forget(scope_of())
    side.facts.trouble.open.set()
    assert told(await waiting) == []
    assert told(await side.ask()) == []


async def test_what_outlives_an_erasure_keeps_its_vectors(side: Side) -> None:
    await side.bench.say("Hello there.", session="drop")
    await side.commit(YORK)
    await side.ask()
    await side.bench.clock.advance(2.0)
    assert side.bench.embedder.asked_for(YORK.text) == 1
    await side.bench.log.erase(scope_of(), Selection("session", session_id="drop"))
    assert told(await side.ask()) == [YORK.text]
    await side.bench.clock.advance(2.0)
    assert side.bench.embedder.asked_for(YORK.text) == 1


# -- late, away, unannounced


@pytest.mark.promise("P-silent")
async def test_P_silent_sql_that_stalls_costs_one_budget_and_what_is_there_is_told(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.commit(LEEDS)
    await side.ask()
    await side.commit(fact("The user's home is near a bakery"))
    side.facts.trouble.open.clear()
    took_ms = []
    for _ in range(4):
        waiting = asyncio.create_task(side.ask())
        while not waiting.done():
            await side.bench.clock.advance(0.01)
        found = await waiting
        assert told(found) == [LEEDS.text]
        assert found.degraded == ("facts",)
        took_ms.append(round(found.elapsed_ms))
    assert took_ms[0] >= 290
    assert max(took_ms[1:]) <= 60
    side.facts.trouble.open.set()
    await settle()
    found = await side.ask()
    assert (len(told(found)), found.degraded) == (2, ())


@pytest.mark.promise("P-silent")
async def test_P_silent_sql_that_is_away_is_told_at_once_and_asked_again_later(side: Side) -> None:
    await side.bench.say("My home is a small house.")
    side.facts.trouble.away = True
    found = await side.ask()
    assert texts(found) == ["My home is a small house."]
    assert found.degraded == ("facts",)
    reads = len(side.facts.trouble.reads)
    await side.ask()
    assert len(side.facts.trouble.reads) == reads
    side.facts.trouble.away = False
    await side.commit(YORK)
    await side.bench.clock.advance(1.0)
    assert told(await side.ask()) == [YORK.text]


async def test_what_nobody_announced_is_found_while_the_user_talks(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.ask()
    await side.commit(YORK, announced=False)
    assert told(await side.ask()) == []
    await side.bench.clock.advance(FACTS_CHECK_S + FOLLOW_POLL_S_MAX)
    assert told(await side.ask()) == [YORK.text]


async def test_a_session_that_starts_finds_what_nobody_announced(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.engine.warm(scope_of())
    await side.commit(YORK, announced=False)
    await side.engine.warm(scope_of())
    assert told(await side.ask()) == [YORK.text]


async def test_an_announcement_that_sql_knows_nothing_of_is_asked_about_once(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.bench.log.announce(scope_of(), version=57)
    assert (await side.ask()).degraded == ()
    reads = len(side.facts.trouble.reads)
    assert (await side.ask()).degraded == ()
    assert len(side.facts.trouble.reads) == reads


async def test_sql_of_an_older_day_is_read_anew(side: Side) -> None:
    await side.bench.say("Hello there.")
    for number in range(3):
        await side.commit(fact(f"The user's home is in town {number}"))
    await side.ask()
    side.facts.forget(scope_of())
    side.facts.commit(scope_of(), LEEDS)
    await side.engine.warm(scope_of())
    assert told(await side.ask()) == [LEEDS.text]


async def test_facts_that_come_in_parts_are_all_read(side: Side) -> None:
    side.facts.part = 2
    for number in range(7):
        await side.commit(fact(f"The user's home is in town {number}"))
    await side.ask()
    index = side.engine._users[scope_of()].facts
    assert (len(index), index.version) == (7, 7)


# -- snapshots


async def saved(side: Side, count: int = SNAPSHOT_TURNS_MIN) -> None:
    """Facts with vectors, in a snapshot of a process that has ended."""
    await side.bench.say("Hello there.")
    await side.commit(*(fact(f"The user's home was in town{number}") for number in range(count)), LEEDS_OVER, YORK)
    engine = side.bench.another(snapshots=side.bench.snapshots(), facts=side.facts)
    await engine.recall(scope_of(), WHERE, limit=8, budget_ms=300)
    for _ in range(count):
        await side.bench.clock.advance(0.5)
        if not engine.stats()["missing_vectors"]:
            break
    await engine.aclose()


async def test_a_restart_reads_the_changes_alone_and_makes_no_vector_anew(side: Side) -> None:
    await saved(side)
    assert side.bench.embedder.asked_for(YORK.text) == 1
    side.bench.embedder.calls.clear()
    side.facts.trouble.reads.clear()
    await side.commit(fact("The user sings in a choir"))
    await side.bench.say("My home is in Leeds.", id="t1")
    engine = side.bench.another(snapshots=side.bench.snapshots(), facts=side.facts)
    found = await engine.recall(scope_of(), "Is my home in York?", limit=8, budget_ms=300)
    assert told(found)[0] == YORK.text
    assert [passage.changed for passage in found.passages if passage.id == "t1"] == [True]
    assert side.facts.trouble.reads == [1]
    await side.bench.clock.advance(2)
    embedded = {text for call in side.bench.embedder.calls for text in call}
    assert embedded <= {"Is my home in York?", "My home is in Leeds.", "The user sings in a choir"}
    await engine.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_the_facts_of_a_snapshot_go_with_it(side: Side) -> None:
    await saved(side)
    side.facts.forget(scope_of())
    await side.bench.log.erase(scope_of(), Selection("all"))
    engine = side.bench.another(snapshots=side.bench.snapshots(), facts=side.facts)
    found = await engine.recall(scope_of(), WHERE, limit=8, budget_ms=300)
    assert found.facts == ()
    assert list((side.bench.data_dir / "snapshots").glob("*.idx")) == []
    await engine.aclose()


async def test_damaged_facts_of_a_snapshot_are_read_anew(side: Side) -> None:
    await saved(side)
    (path,) = (side.bench.data_dir / "snapshots").glob("*.idx")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    side.facts.trouble.reads.clear()
    engine = side.bench.another(snapshots=side.bench.snapshots(), facts=side.facts)
    assert told(await engine.recall(scope_of(), WHERE, limit=8, budget_ms=300))
    assert side.facts.trouble.reads == [0]
    await engine.aclose()


# -- the profile


async def profile(side: Side, *, name: str = "", budget_ms: float = 300) -> Recall:
    return await side.engine.profile(scope_of(), name=name, limit=3, budget_ms=budget_ms)


async def test_the_profile_is_of_facts_alone_and_of_those_that_hold(side: Side) -> None:
    await side.bench.say("My home is in Leeds.", id="t1")
    await side.commit(LEEDS_OVER, YORK, fact("The user prefers email"))
    made = await profile(side)
    assert sorted(told(made)) == ["The user prefers email", YORK.text]
    assert (made.passages, made.degraded) == ((), ())
    assert made.state == (await side.ask()).state
    await side.commit(fact("The user sings"))
    assert made.state != (await side.ask()).state


async def test_a_profile_finds_what_nobody_announced_and_embeds_its_queries_once(side: Side) -> None:
    await side.commit(YORK)
    await profile(side)
    await side.commit(fact("The user prefers email"), announced=False)
    for name in ("", "Zoë"):
        assert len(told(await profile(side, name=name))) == 2
    assert side.bench.embedder.asked_for(PROFILE_QUERIES[0]) == 1
    assert not any("Zoë" in text for call in side.bench.embedder.calls for text in call)


async def test_a_stranger_has_no_profile_and_takes_no_room(side: Side) -> None:
    assert await profile(side) == Recall(state="0/0", elapsed_ms=0.0)
    assert side.engine.stats()["users"] == 0


@pytest.mark.promise("P-silent")
async def test_P_silent_a_profile_takes_no_longer_than_its_budget(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.commit(YORK)
    await side.ask()
    side.facts.trouble.open.clear()
    waiting = asyncio.create_task(profile(side))
    while not waiting.done():
        await side.bench.clock.advance(0.01)
    made = await waiting
    assert (told(made), made.degraded) == ([YORK.text], ("facts",))
    assert made.elapsed_ms <= 300


@pytest.mark.promise("P-erased")
async def test_P_erased_no_profile_outlives_an_erasure(side: Side) -> None:
    await side.commit(YORK)
    assert told(await profile(side)) == [YORK.text]
    side.bench.embedder.hold.clear()
    waiting = asyncio.create_task(profile(side, name="Ana"))
    await settle()
    side.facts.forget(scope_of())
    await side.bench.log.erase(scope_of(), Selection("all"))
    side.bench.embedder.hold.set()
    await waiting
    assert told(await profile(side)) == []


async def test_facts_that_came_just_now_are_embedded_along_with_the_query(side: Side) -> None:
    await side.bench.say("Hello there.")
    await side.commit(*(fact(f"The user's home is near shop {number}") for number in range(30)))
    await side.ask()
    await side.bench.clock.advance(30)
    assert side.engine.stats()["missing_vectors"] == 0
    await side.commit(YORK)
    assert YORK.text in told(await side.ask())
    assert side.engine.stats()["missing_vectors"] == 0


async def test_facts_of_a_user_whose_turns_are_gone_are_kept_in_a_snapshot_too(side: Side) -> None:
    await side.commit(*(fact(f"The user's home was in town{number}") for number in range(SNAPSHOT_TURNS_MIN)), YORK)
    for _ in range(2):
        engine = side.bench.another(snapshots=side.bench.snapshots(), facts=side.facts)
        found = await engine.recall(scope_of(), "Is my home in York?", limit=8, budget_ms=300)
        assert told(found)[0] == YORK.text
        await engine.aclose()
    assert side.facts.trouble.reads == [0, 1]
