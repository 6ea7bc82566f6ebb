"""The engine: what was said before the call is found, what was erased is not, and no budget is outlasted."""

from __future__ import annotations

import asyncio

import pytest

from memory.errors import HostUnavailable, StoreFault
from memory.limits import (
    FOLLOW_POLL_S,
    FOLLOW_POLL_S_MAX,
    RECALL_QUIET_S,
    RECALL_TURNS_MAX,
    RECALL_YIELD_S_MAX,
)
from memory.models import MemoryEvent, Record, Scope
from memory.ports import ArchivedRecord, DamagedRecord, LogSlice, Selection
from memory.retrieval import following
from tests.support.recalls import TroubledLog, scope_of, settle, texts
from tests.unit.retrieval_host.conftest import Bench

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"
ALL = Selection("all")


def filler(count: int) -> list[str]:
    return [f"Remark number {number} on the weather in town {number}." for number in range(count)]


async def erase_everywhere_else(bench: Bench, selection: Selection = ALL) -> None:
    """An erasure that somebody else made: archive, then log; this engine is not told."""
    await bench.archive.erase(scope_of(), selection)
    await bench.log.erase(scope_of(), selection)


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_was_appended_before_the_call_is_found_in_any_session(bench: Bench) -> None:
    await bench.say(FACT, session="monday")
    assert texts(await bench.recall(QUESTION))[0] == FACT
    for number in range(5):
        await bench.say(f"My dog number {number} is called Rex{number}.", session=f"day {number}")
        assert texts(await bench.recall(f"Who is Rex{number}?"))[0].endswith(f"Rex{number}.")


@pytest.mark.promise("P-fresh")
async def test_P_fresh_a_call_that_joins_a_running_catch_up_still_sees_what_was_appended_before_it(
    bench: Bench,
) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    bench.log.trouble.open.clear()
    first = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    await bench.say(FACT)
    second = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    bench.log.trouble.open.set()
    await first
    assert texts(await second)[0] == FACT


async def test_a_passage_is_the_turn_as_it_was_stored(bench: Bench) -> None:
    text = "  My café — “Zoë’s” — ists  أحمد "
    (turn_id,) = await bench.say(text, session="s9", language="de", name="Ana", mode="text")
    (passage,) = (await bench.recall("Which café was it?")).passages
    assert (passage.id, passage.session_id, passage.role, passage.text) == (turn_id, "s9", "user", text)
    assert (passage.mode, passage.language, passage.name) == ("text", "de", "Ana")


async def test_only_what_users_and_assistants_said_is_recalled(bench: Bench) -> None:
    await bench.say(FACT, role="system")
    await bench.log.append(
        scope_of(), MemoryEvent(session_id="s1", user_id="ana", event_type="note", data={"text": FACT})
    )
    assert texts(await bench.recall(QUESTION)) == []
    await bench.say(FACT, role="assistant")
    assert texts(await bench.recall(QUESTION)) == [FACT]


async def test_excluded_entries_and_blank_queries_give_nothing(bench: Bench) -> None:
    (turn_id,) = await bench.say(FACT)
    found = await bench.engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300, exclude_ids=frozenset({turn_id}))
    assert found.passages == ()
    assert (await bench.recall("  ")).passages == ()
    assert (await bench.recall(QUESTION, limit=0)).passages == ()


@pytest.mark.promise("P-isolated")
async def test_P_isolated_users_orgs_and_agents_see_only_their_own(bench: Bench) -> None:
    scopes = [scope_of("ana"), scope_of("ben"), scope_of("ana", org="other"), scope_of("Ana")]
    for number, scope in enumerate(scopes):
        await bench.say(f"My password hint is canary{number}.", scope=scope, session=f"session {number}")
    for number, scope in enumerate(scopes):
        found = texts(await bench.recall("What is my password hint?", scope))
        assert found == [f"My password hint is canary{number}."]


# -- gaps between log and archive


async def test_what_was_trimmed_from_the_log_is_read_from_the_archive(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say(FACT)
    await bench.archive_all()
    await bench.say("Something later.")
    assert FACT in texts(await bench.recall(QUESTION))


async def test_a_log_that_was_trimmed_to_its_end_is_known_to_have_had_more(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say(FACT)
    await bench.archive_all()
    assert FACT in texts(await bench.recall(QUESTION))


async def test_the_archive_is_asked_once_for_a_gap_it_can_not_fill(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say("Never archived.")
    await bench.log.confirm(scope_of(), through="9")
    await bench.recall(QUESTION)
    reads = len(bench.archive.trouble.reads)
    for _ in range(3):
        await bench.recall(QUESTION)
    assert len(bench.archive.trouble.reads) == reads


async def test_an_archive_without_its_log_is_still_recalled(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.archive_all()
    lost = TroubledLog(bench.clock)
    engine = bench.another()
    engine._sources = following.Sources(lost, bench.archive, None, engine._desk, bench.clock)
    found = await engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300)
    assert texts(found) == [FACT]
    await engine.aclose()


async def test_damaged_records_are_stepped_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.say("Hello there.", FACT, "Goodbye.")
    whole = await bench.log.read(scope_of(), after="", limit=10)
    broken = whole.records[0]
    part = LogSlice(
        whole.records[1:], whole.last, whole.epoch, (DamagedRecord(broken.position, broken.previous, "cut off", "{"),)
    )

    async def read(scope: object, *, after: str, limit: int) -> LogSlice:
        if limit == 0:
            return LogSlice((), part.last, part.epoch)
        kept = tuple(each for each in part.records if each.position > after)
        return LogSlice(kept, part.last, part.epoch, tuple(each for each in part.damaged if each.position > after))

    monkeypatch.setattr(bench.log, "read", read)
    assert FACT in texts(await bench.recall(QUESTION))
    reads = len(bench.archive.trouble.reads)
    await bench.recall(QUESTION)
    assert len(bench.archive.trouble.reads) == reads


async def test_more_than_one_read_of_log_and_archive_can_hold(bench: Bench) -> None:
    await bench.say(FACT, *filler(520))
    await bench.archive_all()
    await bench.say(*filler(520), "My dog is called Rex.")
    found = await bench.recall(QUESTION)
    assert "history" not in found.degraded
    assert texts(found)[0] == FACT
    assert texts(await bench.recall("What is my dog called?"))[0] == "My dog is called Rex."


# -- erasure


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_made_elsewhere_is_seen_by_the_next_recall(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.archive_all()
    assert texts(await bench.recall(QUESTION)) == [FACT]
    await erase_everywhere_else(bench)
    assert texts(await bench.recall(QUESTION)) == []
    await bench.say("My cat is called Crumb.")
    assert texts(await bench.recall(QUESTION)) == ["My cat is called Crumb."]


@pytest.mark.promise("P-erased")
async def test_P_erased_after_one_session_is_erased_the_rest_keeps_its_vectors(bench: Bench) -> None:
    await bench.say(FACT, session="keep")
    await bench.say("My card ends with 4242.", session="drop")
    await bench.recall(QUESTION)
    await bench.archive_all()
    await erase_everywhere_else(bench, Selection("session", session_id="drop"))
    assert texts(await bench.recall("What does my card end with?")) == []
    found = await bench.recall(QUESTION)
    assert texts(found) == [FACT]
    assert found.degraded == ()
    assert bench.embedder.asked_for(FACT) == 1


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_while_the_log_is_away_leaves_nothing_to_recall(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.recall(QUESTION)
    bench.log.trouble.away = True
    found = await bench.recall(QUESTION)
    assert found.passages == ()
    assert found.degraded == ("log",)
    bench.log.trouble.away = False
    assert texts(await bench.recall(QUESTION)) == [FACT]


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize(
    ("selection", "left"),
    [(ALL, []), (Selection("session", session_id="s1"), ["My cat is called Crumb as well."]), (Selection("since"), [])],
)
async def test_P_erased_erase_drops_what_is_meant_and_says_how_much_was_loaded(
    bench: Bench, selection: Selection, left: list[str]
) -> None:
    await bench.say(FACT, "My cat is grey.")
    await bench.say("My cat is called Crumb as well.", session="s2")
    await bench.recall(QUESTION)
    await erase_everywhere_else(bench, selection)
    assert await bench.engine.erase(scope_of(), selection) == 3 - len(left)
    assert await bench.engine.erase(scope_of(), selection) == 0
    assert texts(await bench.recall(QUESTION)) == left


@pytest.mark.promise("P-erased")
async def test_P_erased_a_recall_that_waits_for_the_embedder_does_not_tell_what_is_erased_meanwhile(
    bench: Bench,
) -> None:
    await bench.say(FACT)
    await bench.recall(QUESTION)
    bench.embedder.hold.clear()
    waiting = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    await erase_everywhere_else(bench)
    await bench.engine.erase(scope_of(), ALL)
    bench.embedder.hold.set()
    assert texts(await waiting) == []


@pytest.mark.promise("P-erased")
async def test_P_erased_a_load_under_way_does_not_bring_back_what_is_erased_meanwhile(bench: Bench) -> None:
    await bench.say(FACT, *filler(450))
    await bench.archive_all()
    bench.archive.trouble.open.clear()
    waiting = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    await erase_everywhere_else(bench)
    bench.archive.trouble.open.set()
    assert texts(await waiting) == []


# -- loading, budgets, room


async def test_a_user_is_loaded_once_for_all_who_ask_at_once(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.archive_all()
    bench.archive.trouble.open.clear()
    asking = [asyncio.create_task(bench.recall(QUESTION)) for _ in range(10)]
    await settle()
    bench.archive.trouble.open.set()
    assert [texts(await each) for each in asking] == [[FACT]] * 10
    assert bench.archive.trouble.reads == [0]


@pytest.mark.case("L37")
async def test_L37_very_long_turns_are_loaded_a_few_at_a_time_and_all_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory.stores.inmemory", "memory.retrieval.following"):
        monkeypatch.setattr(f"{module}.ARCHIVE_READ_CHARS_MAX", 1_000)
    await bench.say(*(f"Turn {number}. " + "Well, you know. " * 25 for number in range(6)), FACT)
    await bench.archive_all()
    assert texts(await bench.recall(QUESTION))[0] == FACT
    assert bench.archive.trouble.reads == [0, 2, 4, 7]


@pytest.mark.promise("P-silent")
async def test_P_silent_a_store_that_stalls_costs_the_budget_and_no_more(bench: Bench) -> None:
    await bench.say(FACT)
    bench.log.trouble.open.clear()
    waiting = asyncio.create_task(bench.recall(QUESTION, budget_ms=200))
    await bench.clock.advance(0.15)
    assert not waiting.done()
    await bench.clock.advance(0.05)
    found = await waiting
    assert found.passages == ()
    assert found.degraded == ("history",)
    assert found.elapsed_ms <= 200
    bench.log.trouble.open.set()
    assert texts(await bench.recall(QUESTION)) == [FACT]


async def test_while_the_archive_is_away_what_the_log_has_is_found_and_afterwards_all(bench: Bench) -> None:
    await bench.say("My dog is called Pepper.")
    await bench.archive_all()
    await bench.say(FACT)
    bench.archive.trouble.away = True
    found = await bench.recall(QUESTION)
    assert (texts(found), found.degraded) == ([FACT], ("log",))
    await bench.say("My cat is called Biscuit the Second.")
    found = await bench.recall("Is my cat called Biscuit the Second?")
    assert texts(found)[0] == "My cat is called Biscuit the Second."
    assert bench.engine.stats()["turns"] == 2
    bench.archive.trouble.away = False
    found = await bench.recall("What is the name of my dog?")
    assert texts(found)[0] == "My dog is called Pepper."
    assert "log" not in found.degraded
    index = bench.engine._users[scope_of()].index
    assert index is not None
    assert [index.turns.text(place) for place in range(3)] == [  # in the order they were said
        "My dog is called Pepper.",
        FACT,
        "My cat is called Biscuit the Second.",
    ]


async def test_an_erasure_while_the_archive_is_away_is_heeded(bench: Bench) -> None:
    await bench.say("My dog is called Pepper.")
    await bench.archive_all()
    await bench.say(FACT)
    bench.archive.trouble.away = True
    assert texts(await bench.recall(QUESTION)) == [FACT]
    await bench.log.erase(scope_of(), Selection("all"))
    assert texts(await bench.recall(QUESTION)) == []


@pytest.mark.promise("P-silent")
@pytest.mark.parametrize("store", ["log", "archive"])
async def test_P_silent_a_store_that_stalls_costs_one_budget_not_one_a_turn(bench: Bench, store: str) -> None:
    await bench.say(FACT)
    await bench.archive_all()
    trouble = bench.log.trouble if store == "log" else bench.archive.trouble
    trouble.open.clear()
    took_ms = []
    for _ in range(5):
        waiting = asyncio.create_task(bench.recall(QUESTION, budget_ms=300))
        while not waiting.done():
            await bench.clock.advance(0.01)
        assert texts(await waiting) == []
        took_ms.append(round((await waiting).elapsed_ms))
    assert took_ms[0] >= 290
    assert max(took_ms[1:]) <= 60
    trouble.open.set()
    await settle()
    assert texts(await bench.recall(QUESTION)) == [FACT]
    assert not bench.engine._users[scope_of()].ailing


async def test_a_budget_that_ends_while_loading_gets_what_is_loaded(bench: Bench) -> None:
    await bench.say(FACT, *filler(450))
    await bench.archive_all()
    bench.archive.trouble.open.clear()
    waiting = asyncio.create_task(bench.recall(QUESTION, budget_ms=200))
    await settle()
    bench.archive.trouble.open.set()
    while len(bench.archive.trouble.reads) < 2:
        await asyncio.sleep(0)
    bench.archive.trouble.open.clear()
    await bench.clock.advance(0.2)
    found = await waiting
    assert texts(found)[0] == FACT
    assert "history" in found.degraded
    bench.archive.trouble.open.set()
    assert "history" not in (await bench.recall(QUESTION)).degraded


async def test_a_long_load_lets_others_run_in_between(bench: Bench) -> None:
    await bench.say(*filler(1_000))
    await bench.archive_all()
    turns_of_the_loop = 0

    async def others() -> None:
        nonlocal turns_of_the_loop
        while True:
            turns_of_the_loop += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await bench.engine.warm(scope_of())
    task.cancel()
    assert turns_of_the_loop >= 1_000 / following._ADDED_AT_ONCE
    assert bench.engine.stats()["turns"] == 1_000


async def test_strangers_take_no_room(bench: Bench) -> None:
    for number in range(1_000):
        found = await bench.recall(QUESTION, scope_of(f"stranger {number}"))
        assert found.passages == ()
        assert found.degraded == ()
    assert bench.engine.stats()["users"] == 0


async def test_the_least_recently_used_index_makes_room(bench: Bench) -> None:
    engine = bench.another(users_max=2)
    for user in ("ana", "ben", "eve"):
        await bench.say(f"{FACT} says {user}", scope=scope_of(user), session=user)
    for user in ("ana", "ben", "ana", "eve"):
        assert texts(await engine.recall(scope_of(user), QUESTION, limit=8, budget_ms=300)) == [f"{FACT} says {user}"]
    assert [scope.user_id for scope in engine._users] == ["ana", "eve"]
    await engine.aclose()


async def test_an_index_in_use_is_not_dropped_for_room(bench: Bench) -> None:
    engine = bench.another(users_max=1)
    await bench.say(FACT)
    await bench.say("My cat is called Crumb.", scope=scope_of("ben"), session="b")
    bench.embedder.hold.clear()
    first = asyncio.create_task(engine.recall(scope_of(), QUESTION, limit=8, budget_ms=300))
    await settle()
    second = asyncio.create_task(engine.recall(scope_of("ben"), QUESTION, limit=8, budget_ms=300))
    await settle()
    bench.embedder.hold.set()
    assert texts(await first) == [FACT]
    assert texts(await second) == ["My cat is called Crumb."]
    await engine.aclose()


async def test_the_oldest_turns_go_when_a_user_has_more_than_fit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RECALL_TURNS_MAX", 100)
    await bench.say(*filler(101), FACT)
    assert texts(await bench.recall(QUESTION))[0] == FACT
    assert bench.engine.stats()["turns"] == 95
    assert RECALL_TURNS_MAX > 100


@pytest.mark.promise("P-silent")
async def test_P_silent_warming_never_raises(bench: Bench) -> None:
    bench.log.trouble.away = True
    await bench.engine.warm(scope_of())
    await bench.engine.aclose()
    await bench.engine.warm(scope_of())
    with pytest.raises(HostUnavailable):
        await bench.recall(QUESTION)


@pytest.mark.case("L22")
async def test_L22_a_cancelled_recall_disturbs_nobody_and_leaves_no_task(bench: Bench) -> None:
    await bench.say(FACT)
    await bench.recall(QUESTION)
    before = asyncio.all_tasks()
    bench.log.trouble.open.clear()
    doomed = asyncio.create_task(bench.recall(QUESTION))
    other = asyncio.create_task(bench.recall(QUESTION))
    await settle()
    doomed.cancel()
    await asyncio.wait((doomed,))
    bench.log.trouble.open.set()
    assert texts(await other) == [FACT]
    await settle()
    assert asyncio.all_tasks() - before == set()


async def test_the_engine_is_busy_during_a_recall_and_a_moment_longer(bench: Bench) -> None:
    await bench.say(FACT)
    assert not bench.engine.busy()
    bench.log.trouble.open.clear()
    asking = [asyncio.create_task(bench.recall(QUESTION, budget_ms=60_000)) for _ in range(2)]
    await bench.clock.advance(1)
    assert bench.engine.busy()
    asking[0].cancel()
    await bench.clock.advance(1)
    assert bench.engine.busy()
    bench.log.trouble.open.set()
    await asking[1]
    assert bench.engine.busy()
    await bench.clock.advance(RECALL_QUIET_S * 1.01)
    assert not bench.engine.busy()


async def test_what_is_read_before_it_is_trimmed_needs_no_archive(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say(FACT)
    await bench.engine.read_on(scope_of())
    await bench.archive_all()
    bench.archive.trouble.away = True
    found = await bench.recall(QUESTION)
    assert (texts(found)[0], found.degraded) == (FACT, ())


async def test_reading_on_loads_nobody_and_never_raises(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.engine.read_on(scope_of())
    assert bench.engine.stats()["users"] == 0
    await bench.recall(QUESTION)
    bench.log.trouble.away = True
    await bench.engine.read_on(scope_of())


async def test_logs_of_users_now_talking_are_followed_between_recalls(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say(FACT)
    await bench.clock.advance(1)
    assert bench.engine.stats()["turns"] == 2
    assert bench.embedder.asked_for(FACT) == 1
    bench.log.trouble.away = True
    await bench.clock.advance(5)
    bench.log.trouble.away = False
    await bench.say("My dog is called Rex.")
    await bench.clock.advance(FOLLOW_POLL_S_MAX + FOLLOW_POLL_S)
    assert bench.engine.stats()["turns"] == 3


async def test_who_is_quiet_is_looked_at_less_and_less_often(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    looks = []
    for _ in range(4):
        before = len(bench.log.trouble.reads)
        await bench.clock.advance(5)
        looks.append(len(bench.log.trouble.reads) - before)
    assert looks == [4, 1, 1, 1]


async def test_recalls_go_before_upkeep_but_do_not_hold_it_back_for_good(bench: Bench) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    await bench.say(FACT)
    asked_for = []
    rounds = 2 * (FOLLOW_POLL_S + RECALL_YIELD_S_MAX)  # one for reading, one for vectors
    for _ in range(round(rounds / RECALL_QUIET_S * 2) + 1):
        await bench.recall("Hello?", scope_of("ben"))
        await bench.clock.advance(RECALL_QUIET_S / 2)
        asked_for.append(bench.embedder.asked_for(FACT))
    assert asked_for[round(RECALL_YIELD_S_MAX / RECALL_QUIET_S * 2)] == 0
    assert asked_for[-1] == 1


async def test_one_users_trouble_keeps_nobody_else_from_being_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench.archive.read

    async def refusing(scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        if scope == scope_of():
            raise StoreFault("The archive refused.")
        return await read(scope, after=after, limit=limit)

    monkeypatch.setattr(bench.archive, "read", refusing)
    await bench.say("Hello there.")
    assert (await bench.recall(QUESTION)).degraded == ("log",)
    ben = scope_of("ben")
    await bench.say("Hello.", scope=ben, user="ben")
    await bench.recall(QUESTION, ben)
    await bench.say(FACT, scope=ben, user="ben")
    await bench.clock.advance(1)
    assert bench.embedder.asked_for(FACT) == 1


async def test_reading_on_raises_nothing_whatever_goes_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.say("Hello there.")
    await bench.recall(QUESTION)
    raised: list[Record] = []

    def failing(record: Record) -> None:
        raised.append(record)
        raise ZeroDivisionError

    monkeypatch.setattr(following, "as_turn", failing)
    await bench.say(FACT)
    await bench.engine.read_on(scope_of())
    assert raised
