"""Prefetch: single flight, newest text wins, what runs is awaited, nothing raises, nothing outlasts its budget."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from memory.counters import Counters
from memory.errors import HostUnavailable
from memory.models import Passage, Recall, Scope
from memory.retrieval.prefetch import Prefetcher, plain, stands_in
from tests.support.recalls import NOON, ManualClock, scope_of, settle, texts


@dataclass
class Call:
    query: str
    limit: int
    budget_ms: float
    exclude_ids: frozenset[str]
    answer: asyncio.Future[Recall]
    cancelled: bool = False


@dataclass
class Desk:
    """A retriever whose answers the test gives."""

    calls: list[Call] = field(default_factory=list)
    error: Exception | None = None

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int,
        budget_ms: float,
        exclude_ids: frozenset[str] = frozenset(),
    ) -> Recall:
        if self.error is not None:
            raise self.error
        call = Call(query, limit, budget_ms, exclude_ids, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            call.cancelled = True
            raise

    async def warm(self, scope: Scope) -> None:
        raise AssertionError("a prefetch warms nobody")

    def give(self, number: int, *found: str) -> None:
        self.calls[number].answer.set_result(about(*found))


def about(*found: str) -> Recall:
    return Recall(
        passages=tuple(Passage(id=each, session_id="s", timestamp=NOON, role="user", text=each) for each in found)
    )


@dataclass
class Room:
    clock: ManualClock
    desk: Desk
    counters: Counters
    prefetcher: Prefetcher

    def queries(self) -> list[str]:
        return [call.query for call in self.desk.calls]


@pytest.fixture
def room() -> Room:
    clock, desk, counters = ManualClock(), Desk(), Counters()
    return Room(clock, desk, counters, make(desk, clock, counters))


def make(desk: Desk, clock: ManualClock, counters: Counters) -> Prefetcher:
    return Prefetcher(desk, scope_of(), clock=clock, budget_ms=300, limit=3, counters=counters)


async def test_a_result_prefetched_for_this_very_text_is_taken_without_another_recall(room: Room) -> None:
    room.prefetcher.hint("where is my order")
    await settle()
    room.desk.give(0, "the order is in Lyon")
    await settle()
    taken = await room.prefetcher.take("Where is my order?", 300)
    assert texts(taken) == ["the order is in Lyon"]
    assert room.queries() == ["where is my order"]
    assert room.counters["recall.ok"] == 1


async def test_a_hint_tells_what_is_in_the_context_and_later_ones_without_keep_it(room: Room) -> None:
    room.prefetcher.hint("where", frozenset({"cat"}))
    await settle()
    room.desk.give(0)
    await room.clock.advance(1)
    room.prefetcher.hint("where is")
    await settle()
    assert [call.exclude_ids for call in room.desk.calls] == [{"cat"}, {"cat"}]
    await room.prefetcher.aclose()


async def test_one_recall_at_a_time_and_the_newest_text_follows(room: Room) -> None:
    for text in ("where", "where is", "where is my", "where is my order"):
        room.prefetcher.hint(text)
        await settle()
    assert room.queries() == ["where"]
    room.desk.give(0)
    await room.clock.advance(1)
    assert room.queries() == ["where", "where is my order"]
    await room.prefetcher.aclose()


async def test_prefetches_start_no_more_often_than_the_interval_allows(room: Room) -> None:
    room.prefetcher.hint("one")
    await settle()
    room.desk.give(0)
    await settle()
    room.prefetcher.hint("one two")
    await room.clock.advance(0.1)
    assert room.queries() == ["one"]
    await room.clock.advance(0.05)
    assert room.queries() == ["one", "one two"]
    await room.prefetcher.aclose()


async def test_a_hint_that_is_known_already_starts_nothing(room: Room) -> None:
    room.prefetcher.hint("Hello there")
    await settle()
    room.desk.give(0)
    await room.clock.advance(1)
    room.prefetcher.hint("hello, there!")
    room.prefetcher.hint("   ")
    await room.clock.advance(1)
    assert room.queries() == ["Hello there"]


async def test_a_running_prefetch_is_awaited_rather_than_thrown_away(room: Room) -> None:
    room.prefetcher.hint("my flight")
    await settle()
    taking = asyncio.create_task(room.prefetcher.take("My flight.", 300))
    await room.clock.advance(0.2)
    room.desk.give(0, "leaves on Tuesday")
    assert texts(await taking) == ["leaves on Tuesday"]
    assert not room.desk.calls[0].cancelled
    assert room.queries() == ["my flight"]


async def test_another_text_gets_a_recall_of_its_own_at_once(room: Room) -> None:
    room.prefetcher.hint("my flight")
    await settle()
    taking = asyncio.create_task(room.prefetcher.take("My flight is when?", 250))
    await settle()
    assert room.queries() == ["my flight", "My flight is when?"]
    assert room.desk.calls[1].budget_ms == pytest.approx(250)
    room.desk.give(1, "leaves on Tuesday")
    assert texts(await taking) == ["leaves on Tuesday"]
    await room.prefetcher.aclose()


async def test_the_last_interim_stands_in_when_the_final_text_is_late(room: Room) -> None:
    room.prefetcher.hint("when does my flight leave")
    await settle()
    room.desk.give(0, "leaves on Tuesday")
    await settle()
    taking = asyncio.create_task(room.prefetcher.take("When does my flight leave, please?", 300))
    await room.clock.advance(0.3)
    assert texts(await taking) == ["leaves on Tuesday"]
    assert room.counters.snapshot() == {"recall.ok": 1, "recall.stand_in": 1}
    assert room.desk.calls[1].cancelled


async def test_an_interim_that_has_little_of_the_text_does_not_stand_in(room: Room) -> None:
    room.prefetcher.hint("no")
    await settle()
    room.desk.give(0, "said no before")
    await settle()
    taking = asyncio.create_task(room.prefetcher.take("No, tell me about my order instead", 300))
    await room.clock.advance(0.3)
    assert await taking is None
    assert room.counters.snapshot() == {"recall.late": 1}


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_was_prefetched_for_one_turn_is_not_used_for_a_later_one(room: Room) -> None:
    room.prefetcher.hint("yes")
    await settle()
    room.desk.give(0, "old")
    await room.clock.advance(1)
    assert texts(await room.prefetcher.take("yes", 300)) == ["old"]
    taking = asyncio.create_task(room.prefetcher.take("yes", 300))
    await settle()
    room.desk.give(1, "new")
    assert texts(await taking) == ["new"]


async def test_a_prefetch_that_goes_on_after_its_turn_is_cancelled(room: Room) -> None:
    room.prefetcher.hint("yes")
    await settle()
    taking = asyncio.create_task(room.prefetcher.take("Something else entirely", 100))
    await room.clock.advance(0.1)
    assert await taking is None
    await settle()
    assert room.desk.calls[0].cancelled
    await room.clock.advance(1)
    taking = asyncio.create_task(room.prefetcher.take("yes", 100))
    await room.clock.advance(0.1)
    assert await taking is None


async def test_what_is_in_the_context_is_left_out_and_the_limit_holds(room: Room) -> None:
    room.prefetcher.hint("cat")
    await settle()
    room.desk.give(0, "a", "b", "c", "d", "e")
    await settle()
    taken = await room.prefetcher.take("cat", 300, frozenset({"b"}))
    assert texts(taken) == ["a", "c", "d"]
    assert room.desk.calls[0].limit > 3
    room.prefetcher.hint("dog")
    await room.clock.advance(1)
    assert room.desk.calls[1].exclude_ids == frozenset({"b"})
    await room.prefetcher.aclose()


@pytest.mark.case("L10")
@pytest.mark.promise("P-silent")
async def test_L10_P_silent_a_recall_that_never_returns_is_cut_at_the_budget_and_leaves_no_task(room: Room) -> None:
    before = asyncio.all_tasks()
    taking = asyncio.create_task(room.prefetcher.take("My flight is on Monday", 300))
    await room.clock.advance(0.299)
    assert not taking.done()
    await room.clock.advance(0.001)
    assert await taking is None
    await settle()
    assert asyncio.all_tasks() == before
    assert room.counters.snapshot() == {"recall.late": 1}


@pytest.mark.case("L09")
@pytest.mark.promise("P-silent")
@pytest.mark.parametrize(
    "error", [HostUnavailable("away"), TimeoutError(), KeyError("x"), ConnectionError(), OSError()]
)
async def test_L09_P_silent_no_failure_of_recall_reaches_the_turn(
    room: Room, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    room.desk.error = error
    room.prefetcher.hint("I am diabetic")
    await settle()
    for _ in range(3):
        assert await room.prefetcher.take("I am diabetic, can I take it?", 300) is None
    assert room.counters.snapshot() == {"recall.failed": 3}
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert "diabetic" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_failed_prefetch_is_tried_once_more_when_it_is_taken(room: Room) -> None:
    room.desk.error = HostUnavailable("starting")
    room.prefetcher.hint("cat")
    await settle()
    room.desk.error = None
    taking = asyncio.create_task(room.prefetcher.take("cat", 300))
    await settle()
    room.desk.give(0, "Biscuit")
    assert texts(await taking) == ["Biscuit"]


async def test_nothing_found_is_counted_as_empty(room: Room) -> None:
    taking = asyncio.create_task(room.prefetcher.take("cat", 300))
    await settle()
    room.desk.give(0)
    taken = await taking
    assert taken is not None
    assert taken.passages == ()
    assert room.counters.snapshot() == {"recall.empty": 1}


async def test_no_budget_left_starts_nothing(room: Room) -> None:
    assert await room.prefetcher.take("cat", 0) is None
    assert room.queries() == []
    assert room.counters.snapshot() == {"recall.late": 1}


@pytest.mark.case("L10")
async def test_L10_a_cancelled_take_cancels_its_recall_and_the_next_one_works(room: Room) -> None:
    taking = asyncio.create_task(room.prefetcher.take("cat", 300))
    await settle()
    taking.cancel()
    await asyncio.wait((taking,))
    await settle()
    assert room.desk.calls[0].cancelled
    taking = asyncio.create_task(room.prefetcher.take("dog", 300))
    await settle()
    room.desk.give(1, "Rex")
    assert texts(await taking) == ["Rex"]


async def test_closing_cancels_what_runs_and_later_calls_do_nothing(room: Room) -> None:
    before = asyncio.all_tasks()
    room.prefetcher.hint("cat")
    await settle()
    await room.prefetcher.aclose()
    await room.prefetcher.aclose()
    await settle()
    assert room.desk.calls[0].cancelled
    assert asyncio.all_tasks() == before
    room.prefetcher.hint("dog")
    assert await room.prefetcher.take("dog", 300) is None
    assert len(room.desk.calls) == 1


async def test_closing_ends_a_recall_that_has_only_just_begun(room: Room) -> None:
    before = asyncio.all_tasks()
    room.prefetcher.hint("cat")
    await room.prefetcher.aclose()
    await settle()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("interim", "final"),
    [("Where’s my order", "where s my ORDER?"), ("I am, uh, 42", "i am uh 42."), ("ｆｕｌｌ", "full"), ("", "…")],
)
def test_punctuation_case_and_width_make_no_other_text(interim: str, final: str) -> None:
    assert plain(interim) == plain(final)


def test_what_stands_in_for_what() -> None:
    assert stands_in("when does my flight", "when does my flight leave today")
    assert not stands_in("when", "when does my flight leave")
    assert not stands_in("something else", "when does it leave")
