"""The guarantees of SessionStore, TurnLog and Erasable, checked once for every backend."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memory.errors import NotTheWriter, SessionOwnership
from memory.limits import (
    ENTRY_CONTENT_BYTES_MAX,
    LOG_READ_BYTES_MAX,
    LOG_READ_MAX,
    SESSION_MESSAGES_MAX,
    SESSION_TTL_S,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, MemoryEvent, Mode, Record, Scope
from memory.ports import LogSlice, Selection, SessionState
from tests.support.services import L02_IDS
from tests.support.session_worlds import Store, World

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def scope_of(user_id: str = "ana", **fields: Any) -> Scope:
    return Scope(**{"org_id": "acme", "agent_id": "desk", "user_id": user_id, **fields})


ANA = scope_of("ana")
BEN = scope_of("ben")


def said(content: str, mode: Mode = "voice", session_id: str = "s1", **fields: Any) -> MemoryEntry:
    return MemoryEntry(role="user", content=content, mode=mode, session_id=session_id, **fields)


def happened(event_type: str, session_id: str = "s1", **data: Any) -> MemoryEvent:
    return MemoryEvent(event_type=event_type, session_id=session_id, data=data)


def switched(to_mode: str, session_id: str = "s1") -> MemoryEvent:
    other = "voice" if to_mode == "text" else "text"
    return happened("mode_switch", session_id, from_mode=other, to_mode=to_mode)


async def contents(store: Store, session_id: str = "s1", limit: int = SESSION_MESSAGES_MAX) -> list[str]:
    return [entry.content for entry in await store.entries(session_id, limit=limit)]


async def switches(store: Store, session_id: str = "s1") -> list[MemoryEvent]:
    return await store.events(session_id, event_type="mode_switch", limit=100)


async def log(store: Store, scope: Scope = ANA, after: str = "", limit: int = LOG_READ_MAX) -> LogSlice:
    return await store.read(scope, after=after, limit=limit)


async def logged(store: Store, scope: Scope = ANA) -> list[str]:
    return [what(item.record) for item in (await log(store, scope)).records]


def what(record: Record) -> str:
    return record.content if isinstance(record, MemoryEntry) else record.event_type


async def record(store: Store, *records: Record, scope: Scope = ANA) -> list[str]:
    for session_id in {item.session_id for item in records}:
        await store.claim(session_id, scope)
    return [(await store.append(scope, item)).position for item in records]


# --- sessions and their order


async def test_entries_and_events_come_back_in_order_and_whole(session_store: Store) -> None:
    entry = said(
        'Grüße, ليلى! 🙂 "quoted" | a|b|c|d\nnext\tline',
        name="Ana",
        language="de-AT",
        detected_language="de",
        timestamp=NOON,
        latency_ms=412.5,
        interrupted=True,
        transcript_confidence=0.75,
        degradations=("vectors",),
        sources=({"url": "x|y", "n": [1, None, 0.5]},),
        retrieved_passages=("p|q",),
    )
    event = happened("transfer", nested={"a": [1, "ü"], "deep": {"b": None}}, lone="\ud800")
    others = [said(f"turn {number}") for number in range(5)]

    await record(session_store, entry, event, *others)

    assert await session_store.entries("s1", limit=50) == [entry, *others]
    assert await session_store.events("s1", event_type=None, limit=50) == [event]
    assert [item.record for item in (await log(session_store)).records] == [entry, event, *others]


async def test_reads_are_bounded_to_the_newest(session_store: Store) -> None:
    await record(session_store, *(said(f"turn {number}") for number in range(SESSION_MESSAGES_MAX + 5)))

    assert await contents(session_store, limit=3) == [f"turn {SESSION_MESSAGES_MAX + number}" for number in (2, 3, 4)]
    assert await session_store.entries("s1", limit=0) == []
    kept = await contents(session_store, limit=10 * SESSION_MESSAGES_MAX)
    assert len(kept) == SESSION_MESSAGES_MAX
    assert kept[0] == "turn 5"


async def test_events_are_read_by_type_newest_first_kept(session_store: Store) -> None:
    await record(session_store, *(happened(f"kind-{number % 2}", n=number) for number in range(10)))

    odd = await session_store.events("s1", event_type="kind-1", limit=3)
    assert [event["n"] for event in odd] == [5, 7, 9]
    assert [event["n"] for event in await session_store.events("s1", event_type=None, limit=2)] == [8, 9]
    assert await session_store.events("s1", event_type="kind-1", limit=0) == []
    assert await session_store.events("s1", event_type="unknown", limit=5) == []


# --- one record per id


@pytest.mark.case("L17")
@pytest.mark.promise("P-durable")
async def test_L17_the_same_id_again_changes_nothing(session_store: Store) -> None:
    await session_store.claim("s1", ANA)
    entry, event = said("book a table", id="t-17"), happened("transfer")

    first = [await session_store.append(ANA, item) for item in (entry, event)]
    await session_store.append(ANA, said("later"))
    before = await log(session_store)
    again = [await session_store.append(ANA, item) for item in (entry, event, entry)]

    assert [item.stored for item in first] == [True, True]
    assert [item.stored for item in again] == [False, False, False]
    assert [item.position for item in again] == [first[0].position, first[1].position, first[0].position]
    assert await log(session_store) == before
    assert await contents(session_store) == ["book a table", "later"]


@pytest.mark.case("L17")
async def test_L17_concurrent_repeats_store_one(session_store: Store) -> None:
    await session_store.claim("s1", ANA)
    entry = said("once", mode="text")
    await session_store.append(ANA, said("before"))

    done = await asyncio.gather(*(session_store.append(ANA, entry) for _ in range(20)))

    assert sum(item.stored for item in done) == 1
    assert len({item.position for item in done}) == 1
    assert await logged(session_store) == ["before", "mode_switch", "once"]


async def test_a_repeat_stores_no_second_mode_switch(session_store: Store) -> None:
    entry = said("typed", mode="text")
    await record(session_store, said("spoken"), entry, said("spoken again"), entry)

    assert [event["to_mode"] for event in await switches(session_store)] == ["text", "voice"]


async def test_an_append_after_the_ids_have_lapsed_keeps_its_event_id(session_store: Store, world: World) -> None:
    entry = said("typed", mode="text", id="t-1")
    await record(session_store, said("spoken"), entry)
    (first,) = await switches(session_store)

    await world.advance(SESSION_TTL_S + 61)
    await record(session_store, said("spoken"), entry)

    (second,) = await switches(session_store)
    assert second.id == first.id  # so the archive, which goes by ids, keeps one


# --- claims


async def test_a_session_belongs_to_whom_it_was_claimed_for(session_store: Store) -> None:
    assert await session_store.claim("s1", ANA) == SessionState(ANA)
    assert await session_store.claim("s1", ANA) == SessionState(ANA)
    for other in (BEN, scope_of(org_id="other"), scope_of(agent_id="other"), scope_of(kind="session")):
        with pytest.raises(SessionOwnership):
            await session_store.claim("s1", other)
    state = await session_store.find("s1")
    assert state == SessionState(ANA)


async def test_claims_at_once_have_one_winner(session_store: Store) -> None:
    users = [scope_of(f"user-{number}") for number in range(10)]
    results = await asyncio.gather(*(session_store.claim("s1", user) for user in users), return_exceptions=True)

    winners = [item for item in results if isinstance(item, SessionState)]
    assert len(winners) == 1
    assert sum(isinstance(item, SessionOwnership) for item in results) == 9
    assert await session_store.find("s1") == winners[0]


async def test_a_claim_tells_mode_and_language(session_store: Store) -> None:
    await record(session_store, said("hallo", mode="text", language="de"))
    expected = SessionState(ANA, mode="text", language="de", known=True)
    assert await session_store.claim("s1", ANA) == expected
    assert await session_store.find("s1") == expected


async def test_one_writer_at_a_time(session_store: Store) -> None:
    await session_store.claim("s1", ANA, writer="job-1")
    await session_store.claim("s1", ANA, writer="job-1")
    with pytest.raises(NotTheWriter):
        await session_store.claim("s1", ANA, writer="job-2")
    with pytest.raises(NotTheWriter):
        await session_store.append(ANA, said("doubled"), writer="job-2")

    assert (await session_store.append(ANA, said("mine"), writer="job-1")).stored
    assert (await session_store.append(ANA, said("a page's"))).stored
    assert await contents(session_store) == ["mine", "a page's"]


@pytest.mark.case("L17")
async def test_L17_a_silent_writer_is_replaced_when_its_lease_lapses(session_store: Store, world: World) -> None:
    await session_store.claim("s1", ANA, writer="job-1")
    await world.advance(WRITER_LEASE_S - 5)
    await session_store.claim("s1", ANA, writer="job-1")  # a heartbeat renews it
    await world.advance(WRITER_LEASE_S - 5)
    with pytest.raises(NotTheWriter):
        await session_store.claim("s1", ANA, writer="job-2")

    await world.advance(6)
    await session_store.claim("s1", ANA, writer="job-2")

    with pytest.raises(NotTheWriter):
        await session_store.append(ANA, said("late"), writer="job-1")
    assert (await session_store.append(ANA, said("new"), writer="job-2")).stored


async def test_a_lease_that_is_released_need_not_be_waited_out(session_store: Store) -> None:
    await session_store.release("s1", ANA, writer="job-1")  # nothing is there yet
    await session_store.claim("s1", ANA, writer="job-1")
    await session_store.append(ANA, said("before"), writer="job-1")
    await session_store.release("s1", ANA, writer="job-2")
    with pytest.raises(NotTheWriter):
        await session_store.claim("s1", ANA, writer="job-2")

    await session_store.release("s1", ANA, writer="job-1")
    await session_store.release("s1", ANA, writer="job-1")
    await session_store.claim("s1", ANA, writer="job-2")

    with pytest.raises(NotTheWriter):
        await session_store.append(ANA, said("late"), writer="job-1")
    await session_store.release("s1", ANA, writer="job-1")
    await session_store.append(ANA, said("after"), writer="job-2")
    assert await contents(session_store) == ["before", "after"]


async def test_writers_of_different_sessions_are_no_matter(session_store: Store) -> None:
    await session_store.claim("s1", ANA, writer="job-1")
    await session_store.claim("s2", ANA, writer="job-2")
    assert (await session_store.append(ANA, said("a", session_id="s2"), writer="job-2")).stored


# --- how long it is kept


async def test_a_session_ends_a_day_after_its_last_use_but_not_the_log(session_store: Store, world: World) -> None:
    await record(session_store, said("kept"))

    await world.advance(SESSION_TTL_S + 61)

    assert await session_store.entries("s1", limit=10) == []
    assert await session_store.find("s1") is None
    assert await logged(session_store) == ["kept"]
    assert await session_store.pending(limit=10) == [ANA]
    assert await session_store.claim("s1", BEN) == SessionState(BEN)
    assert await session_store.entries("s1", limit=10) == []


@pytest.mark.parametrize("use", ["append", "entries", "claim"])
async def test_use_extends_a_sessions_time(session_store: Store, world: World, use: str) -> None:
    await record(session_store, said("first"), happened("transfer"))
    await world.advance(SESSION_TTL_S - 60)
    if use == "append":
        await session_store.append(ANA, said("second"))
    elif use == "entries":
        await session_store.entries("s1", limit=1)
    else:
        await session_store.claim("s1", ANA)

    await world.advance(SESSION_TTL_S - 60)

    assert (await contents(session_store))[0] == "first"
    assert len(await session_store.events("s1", event_type=None, limit=5)) == 1
    assert await session_store.find("s1") is not None


async def test_a_session_that_has_lapsed_in_a_call_goes_on(session_store: Store, world: World) -> None:
    await record(session_store, said("yesterday"))
    await world.advance(SESSION_TTL_S + 61)

    assert (await session_store.append(ANA, said("today"))).stored

    assert await contents(session_store) == ["today"]
    assert await logged(session_store) == ["yesterday", "today"]


@pytest.mark.case("L35")
async def test_L35_a_session_is_known_from_its_first_record_on_even_when_they_are_erased(session_store: Store) -> None:
    """So that a recorder can tell what a store has lost from what it was told to erase."""
    assert not (await session_store.claim("s1", ANA, writer="job")).known
    assert (await session_store.append(ANA, said("one"), writer="job")).first
    assert not (await session_store.append(ANA, said("two"), writer="job")).first
    assert (await session_store.append(ANA, said("another call", session_id="s2"), writer="job")).first
    await session_store.erase(ANA, Selection("all"))
    assert (await session_store.claim("s1", ANA, writer="job")).known
    assert not (await session_store.append(ANA, said("three"), writer="job")).first
    found = await session_store.find("s1")
    assert found is not None
    assert found.known


# --- modes and languages


@pytest.mark.promise("P-both")
async def test_P_both_a_change_of_mode_is_recorded_by_itself(session_store: Store) -> None:
    typed = said("typed", mode="text", timestamp=NOON)
    await record(session_store, said("spoken"), said("more"), typed, said("more", mode="text"))

    (event,) = await switches(session_store)
    assert dict(event.data) == {"from_mode": "voice", "to_mode": "text", "trigger": "detected"}
    assert (event.session_id, event.timestamp) == ("s1", NOON)
    assert await logged(session_store) == ["spoken", "more", "mode_switch", "typed", "more"]
    assert await session_store.find("s1") == SessionState(ANA, mode="text", known=True)


async def test_the_first_entry_of_a_session_is_no_change(session_store: Store) -> None:
    await record(session_store, said("typed", mode="text"), said("elsewhere", session_id="s2"))
    assert await switches(session_store) == []
    assert await switches(session_store, "s2") == []


async def test_an_explicit_switch_before_the_entry_is_the_only_one(session_store: Store) -> None:
    explicit = switched("text")
    await record(session_store, said("spoken"), explicit, said("typed", mode="text"))
    assert await switches(session_store) == [explicit]


async def test_an_explicit_switch_after_the_entry_is_not_stored_again(session_store: Store) -> None:
    await record(session_store, said("spoken"), said("typed", mode="text"))
    (detected,) = await switches(session_store)
    explicit = switched("text")

    first = await session_store.append(ANA, explicit)
    await session_store.append(ANA, happened("transfer"))
    again = await session_store.append(ANA, explicit)  # a repeat, though the detected one is not the newest any more

    assert await switches(session_store) == [detected]
    assert (first.stored, again.stored) == (False, False)
    assert first.position == again.position == (await log(session_store)).records[1].position


async def test_an_explicit_switch_elsewhere_is_stored(session_store: Store) -> None:
    # to another mode than the detected one, and one after the detected one is not the newest event any more
    await record(session_store, said("spoken"), said("typed", mode="text"))
    assert (await session_store.append(ANA, switched("voice"))).stored
    assert (await session_store.append(ANA, said("spoken"))).stored
    assert [event["to_mode"] for event in await switches(session_store)] == ["text", "voice"]

    await record(session_store, said("spoken", session_id="s2"), said("typed", "text", "s2"))
    await session_store.append(ANA, happened("transfer", "s2"))
    assert (await session_store.append(ANA, switched("text", "s2"))).stored
    assert len(await switches(session_store, "s2")) == 2


async def test_back_and_forth_is_recorded_each_time(session_store: Store) -> None:
    modes: list[Mode] = ["voice", "text", "voice", "text", "text", "voice"]
    await record(session_store, *(said("turn", mode=mode) for mode in modes))
    assert [event["to_mode"] for event in await switches(session_store)] == ["text", "voice", "text", "voice"]


async def test_the_language_follows_entries_and_switches(session_store: Store) -> None:
    await record(session_store, said("hello", language="en"), said("…"))
    assert await session_store.find("s1") == SessionState(ANA, "voice", "en", known=True)
    await session_store.append(ANA, happened("language_switch", from_language="en", to_language="ar"))
    assert await session_store.find("s1") == SessionState(ANA, "voice", "ar", known=True)
    await session_store.append(ANA, happened("language_switch", to_language=None))
    await session_store.append(ANA, happened("transfer", to_language="fr"))
    assert await session_store.find("s1") == SessionState(ANA, "voice", "ar", known=True)


# --- the log


async def test_positions_sort_and_name_the_one_before(session_store: Store) -> None:
    positions = await record(session_store, *(said(f"turn {number}") for number in range(30)))

    assert positions == sorted(set(positions))
    items = (await log(session_store)).records
    assert [item.position for item in items] == positions
    assert [item.previous for item in items] == ["", *positions[:-1]]


async def test_a_log_spans_sessions_and_is_one_users(session_store: Store) -> None:
    await record(session_store, said("one"), said("two", session_id="s2"), said("three"))
    await record(session_store, said("other", session_id="s3"), scope=BEN)
    assert await logged(session_store) == ["one", "two", "three"]
    assert await logged(session_store, BEN) == ["other"]


async def test_reading_goes_on_from_a_position(session_store: Store) -> None:
    positions = await record(session_store, *(said(f"turn {number}") for number in range(10)))

    part = await log(session_store, after=positions[3], limit=2)
    assert [what(item.record) for item in part.records] == ["turn 4", "turn 5"]
    assert part.last == positions[-1]
    rest = await log(session_store, after=positions[-1])
    assert rest.records == ()
    nothing = await log(session_store, limit=0)
    assert (nothing.records, nothing.last) == ((), positions[-1])


async def test_what_is_read_at_once_is_bounded_in_bytes(session_store: Store) -> None:
    large = ENTRY_CONTENT_BYTES_MAX - 1_000
    texts = [f"{number:02d}" + "x" * large for number in range(12)]
    texts[6] = "06"
    positions = await record(session_store, *map(said, texts))

    parts, after = [], ""
    while (part := await log(session_store, after=after)).records:
        parts.append([item.record for item in part.records])
        assert part.last == positions[-1]
        assert part.records[0].previous == after
        after = part.records[-1].position
    assert [what(each) for part in parts for each in part] == texts
    sizes = [sum(len(what(each)) for each in part) for part in parts]
    assert max(sizes) <= LOG_READ_BYTES_MAX
    assert 2 <= len(parts) <= 3


@pytest.mark.case("L37")
async def test_L37_of_very_long_turns_the_newest_come(session_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large = "x" * (ENTRY_CONTENT_BYTES_MAX - 1_000)
    await record(session_store, *(said(f"{number:02d}{large}") for number in range(12)), said("last"))
    newest = [content[:2] for content in await contents(session_store)]
    assert newest == [*(f"{number:02d}" for number in range(4, 12)), "la"]
    for module in ("inmemory", "redis"):
        monkeypatch.setattr(f"memory.stores.{module}.SESSION_READ_BYTES_MAX", 100)
    assert await contents(session_store) == ["last"]
    await record(session_store, said(large))
    assert await contents(session_store) == [large], "one at least"


async def test_events_of_one_type_are_read_whatever_the_others_are(
    session_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [MemoryEvent(event_type="note", session_id="s1", data={"text": "x" * 1_000}) for _ in range(20)]
    tricky = MemoryEvent(event_type="other", session_id="s1", data={"event_type": 'na"mé'})
    await record(session_store, MemoryEvent(event_type='na"mé', session_id="s1", data={"n": 1}), *others, tricky)
    for module in ("inmemory", "redis"):
        monkeypatch.setattr(f"memory.stores.{module}.SESSION_READ_BYTES_MAX", 5_000)
    found = await session_store.events("s1", event_type='na"mé', limit=5)
    assert [event.data for event in found] == [{"n": 1}]
    assert 0 < len(await session_store.events("s1", event_type="note", limit=50)) < 20


async def test_a_record_that_is_larger_than_a_read_is_read_alone(
    session_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("inmemory", "redis"):
        monkeypatch.setattr(f"memory.stores.{module}.LOG_READ_BYTES_MAX", 100)
    positions = await record(session_store, said("one " * 100), said("two " * 100), said("three " * 100))
    for number, after in enumerate(["", *positions[:2]]):
        part = await log(session_store, after=after)
        assert [item.position for item in part.records] == [positions[number]]


async def test_erasing_large_records_takes_them_all_and_no_others(session_store: Store) -> None:
    large = "x" * (ENTRY_CONTENT_BYTES_MAX - 1_000)
    await record(session_store, *(said(large) for _ in range(20)), said("kept", session_id="s2"))
    assert await session_store.erase(ANA, Selection("session", session_id="s1")) == 20
    assert await logged(session_store) == ["kept"]


async def test_what_is_confirmed_is_trimmed_and_the_gap_shows(session_store: Store) -> None:
    positions = await record(session_store, *(said(f"turn {number}") for number in range(6)))

    await session_store.confirm(ANA, through=positions[3])
    await session_store.confirm(ANA, through=positions[1])

    left = await log(session_store, after=positions[0])
    assert [what(item.record) for item in left.records] == ["turn 4", "turn 5"]
    assert left.records[0].previous == positions[3] != positions[0]
    assert await contents(session_store) == [f"turn {number}" for number in range(6)]

    await session_store.confirm(ANA, through=positions[5])
    empty = await log(session_store, after=positions[0])
    assert (empty.records, empty.last) == ((), positions[5])
    (later,) = await record(session_store, said("later"))
    assert later > positions[5]
    assert (await log(session_store)).records[0].previous == positions[5]


async def test_a_long_log_is_confirmed_whole(session_store: Store) -> None:
    positions = await record(session_store, *(said(f"turn {number}") for number in range(2_500)))
    await session_store.confirm(ANA, through=positions[-2])
    assert await logged(session_store) == ["turn 2499"]


async def test_pending_users_wait_in_order(session_store: Store, world: World) -> None:
    users = [scope_of(f"user-{number}") for number in range(6)]
    for number in (3, 1, 4, 0, 5, 2):
        await record(session_store, said("hello", session_id=f"s-{number}"), scope=users[number])
        await world.advance(1)

    assert await session_store.pending(limit=10) == [users[number] for number in (3, 1, 4, 0, 5, 2)]
    assert await session_store.pending(limit=2) == [users[3], users[1]]
    assert await session_store.pending(limit=0) == []

    last = (await log(session_store, users[3])).last
    await session_store.confirm(users[3], through=last)
    assert await session_store.pending(limit=2) == [users[1], users[4]]
    await session_store.append(users[3], said("again", session_id="s-3"))
    assert (await session_store.pending(limit=10))[-1] == users[3]


async def test_reading_strangers_creates_nothing(session_store: Store, world: World) -> None:
    await record(session_store, said("hello"))
    before = await world.size()

    for number in range(50):
        stranger = scope_of(f"stranger-{number}")
        assert await session_store.find(f"unknown-{number}") is None
        assert await session_store.entries(f"unknown-{number}", limit=10) == []
        assert await session_store.events(f"unknown-{number}", event_type=None, limit=10) == []
        assert await log(session_store, stranger) == LogSlice((), "", 0)
        await session_store.confirm(stranger, through="9999999999999999-000000")

    assert await world.size() == before
    assert await session_store.pending(limit=100) == [ANA]


# --- erasing


async def test_erasing_all(session_store: Store, world: World) -> None:
    await record(session_store, said("one"), said("two", "text"), said("three", session_id="s2"))
    await session_store.claim("s3", ANA)
    await record(session_store, said("other", session_id="b"), scope=BEN)

    assert await session_store.erase(ANA, Selection("all")) == 4  # with the mode switch

    for session_id in ("s1", "s2", "s3"):
        assert await session_store.entries(session_id, limit=10) == []
        assert await session_store.events(session_id, event_type=None, limit=10) == []
        assert await session_store.find(session_id) is None
    assert (await log(session_store)).records == ()
    assert await session_store.pending(limit=10) == [BEN]
    assert await logged(session_store, BEN) == ["other"]
    assert await contents(session_store, "b") == ["other"]
    assert await session_store.erase(ANA, Selection("all")) == 0
    assert await session_store.claim("s1", BEN) == SessionState(BEN)


async def test_erasing_a_session(session_store: Store) -> None:
    await record(session_store, said("one"), said("two", session_id="s2"), said("three"))

    assert await session_store.erase(ANA, Selection("session", session_id="s1")) == 2

    assert await session_store.entries("s1", limit=10) == []
    assert await session_store.find("s1") is None
    assert await logged(session_store) == ["two"]
    assert await contents(session_store, "s2") == ["two"]
    assert await session_store.erase(ANA, Selection("session", session_id="unknown")) == 0


async def test_erasing_someone_elses_session_erases_nothing(session_store: Store) -> None:
    await record(session_store, said("mine"))
    assert await session_store.erase(BEN, Selection("session", session_id="s1")) == 0
    assert await contents(session_store) == ["mine"]
    assert await session_store.find("s1") is not None
    assert await logged(session_store) == ["mine"]


async def test_erasing_since_a_time(session_store: Store) -> None:
    hour = timedelta(hours=1)
    await record(
        session_store,
        said("before", timestamp=NOON - hour),
        said("at", timestamp=NOON),
        said("after", timestamp=NOON + hour, session_id="s2"),
        said("told later of earlier", timestamp=NOON - 2 * hour),
        said("long ago", timestamp=datetime(1969, 7, 20, tzinfo=UTC)),
    )

    assert await session_store.erase(ANA, Selection("since", since=NOON)) == 2

    kept = ["before", "told later of earlier", "long ago"]
    assert await logged(session_store) == kept
    assert await contents(session_store) == kept
    assert await contents(session_store, "s2") == []


async def test_erasing_reaches_what_was_confirmed(session_store: Store) -> None:
    (position,) = await record(session_store, said("one"))
    await session_store.confirm(ANA, through=position)
    assert await session_store.erase(ANA, Selection("all")) == 1
    assert await contents(session_store) == []


@pytest.mark.parametrize("selection", ["all", "session", "since"])
async def test_what_is_appended_later_is_not_meant(session_store: Store, selection: Any) -> None:
    positions = await record(session_store, said("one", timestamp=NOON), said("two", timestamp=NOON))
    await record(session_store, said("three", timestamp=NOON))

    asked = Selection(selection, session_id="s1", since=NOON, through=positions[-1])
    assert await session_store.erase(ANA, asked) == 2

    assert await logged(session_store) == ["three"]
    assert await contents(session_store) == ["three"]
    assert await session_store.find("s1") is not None
    assert await session_store.pending(limit=5) == [ANA]


async def test_an_erasure_counts_the_epoch_up(session_store: Store) -> None:
    await record(session_store, said("one"))
    assert (await log(session_store)).epoch == 0
    await session_store.erase(ANA, Selection("session", session_id="unknown"))
    assert (await log(session_store)).epoch == 1
    await session_store.erase(ANA, Selection("all"))
    assert (await log(session_store)).epoch == 2
    await record(session_store, said("new"))
    assert (await log(session_store)).epoch == 2
    assert (await log(session_store, BEN)).epoch == 0
    await session_store.erase(BEN, Selection("all"))
    assert (await log(session_store, BEN)).epoch == 1


# --- facts


async def test_the_newest_announced_version_of_the_facts_is_read_with_the_log(session_store: Store) -> None:
    assert (await log(session_store)).facts == 0
    for version, announced in ((3, 3), (2, 3), (3, 3), (11, 11)):
        await session_store.announce(ANA, version=version)
        assert (await log(session_store)).facts == announced
        assert (await log(session_store, limit=0)).facts == announced
    await record(session_store, said("hello"))
    part = await log(session_store)
    assert (part.facts, len(part.records), part.epoch) == (11, 1, 0)
    await session_store.confirm(ANA, through=part.last)
    assert (await log(session_store)).facts == 11


async def test_a_version_of_many_digits_is_a_number(session_store: Store) -> None:
    await session_store.announce(ANA, version=9_000_000_000_000)
    await session_store.announce(ANA, version=8_999_999_999_999)
    assert (await log(session_store)).facts == 9_000_000_000_000


async def test_erasing_all_lets_facts_begin_anew(session_store: Store) -> None:
    await session_store.announce(ANA, version=5)
    await session_store.erase(ANA, Selection("session", session_id="s1"))
    assert (await log(session_store)).facts == 5
    await session_store.erase(ANA, Selection("all"))
    assert (await log(session_store)).facts == 0
    await session_store.announce(ANA, version=1)
    assert (await log(session_store)).facts == 1


@pytest.mark.promise("P-isolated")
async def test_P_isolated_announcements_are_one_users(session_store: Store) -> None:
    await session_store.announce(ANA, version=5)
    for other in (BEN, scope_of("ana", org_id="other"), scope_of("ana", kind="session")):
        assert (await log(session_store, other)).facts == 0


async def test_what_is_announced_of_a_session_alone_stays_while_its_turns_wait(
    session_store: Store, world: World
) -> None:
    nobody = scope_of("s1", kind="session")
    await session_store.announce(nobody, version=2)
    await record(session_store, said("hello"), scope=nobody)
    await session_store.announce(nobody, version=3)
    await world.advance(SESSION_TTL_S * 3)
    part = await log(session_store, nobody)
    assert (len(part.records), part.facts) == (1, 3)


async def test_positions_go_on_after_an_erasure(session_store: Store) -> None:
    (before,) = await record(session_store, said("one"))
    await session_store.erase(ANA, Selection("all"))
    assert (await log(session_store)).last == before
    (after,) = await record(session_store, said("two"))
    assert after > before
    assert (await log(session_store)).records[0].previous == before
    assert await session_store.pending(limit=5) == [ANA]


@pytest.mark.case("L24")
@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("selection", [Selection("all"), Selection("session", session_id="s1")])
async def test_L24_P_erased_a_late_repeat_does_not_bring_it_back(session_store: Store, selection: Selection) -> None:
    entry = said("forget this")
    await record(session_store, entry)
    await session_store.erase(ANA, selection)

    assert not (await session_store.append(ANA, entry)).stored

    assert await session_store.entries("s1", limit=10) == []
    assert await logged(session_store) == []


async def test_a_call_goes_on_after_an_erasure(session_store: Store) -> None:
    await session_store.claim("s1", ANA, writer="job-1")
    await session_store.append(ANA, said("forget this"), writer="job-1")
    await session_store.erase(ANA, Selection("all"))

    assert (await session_store.append(ANA, said("and now"), writer="job-1")).stored

    assert await contents(session_store) == ["and now"]
    assert await session_store.find("s1") == SessionState(ANA, "voice", known=True)
    assert await session_store.claim("s1", ANA, writer="job-1") == SessionState(ANA, "voice", known=True)
    assert await logged(session_store) == ["and now"]


async def test_erasing_since_a_time_leaves_other_sessions_as_they_are(session_store: Store) -> None:
    await session_store.claim("s1", ANA, writer="job-1")
    await record(session_store, said("spoken", timestamp=NOON), said("typed", "text", timestamp=NOON))
    await session_store.claim("s2", ANA, writer="job-2")

    assert await session_store.erase(ANA, Selection("since", since=NOON + timedelta(hours=1))) == 0

    for session_id in ("s1", "s2"):
        with pytest.raises(NotTheWriter):
            await session_store.claim(session_id, ANA, writer="other")
    assert not (await session_store.append(ANA, switched("text"))).stored


async def test_an_erased_mode_is_forgotten(session_store: Store) -> None:
    await record(session_store, said("spoken", language="ar"), said("typed", "text"))
    await session_store.erase(ANA, Selection("session", session_id="s1"))
    assert await session_store.claim("s1", ANA) == SessionState(ANA, known=True)
    await record(session_store, said("spoken"))
    assert await switches(session_store) == []


async def test_erasing_a_switch_forgets_that_it_was_detected(session_store: Store) -> None:
    await record(session_store, said("spoken", timestamp=NOON), said("typed", "text", timestamp=NOON))
    last = (await log(session_store)).last
    await record(session_store, said("more", "text", timestamp=NOON))
    await session_store.erase(ANA, Selection("all", through=last))
    explicit = switched("text")
    assert (await session_store.append(ANA, explicit)).stored
    assert await switches(session_store) == [explicit]


# --- ids


IDS = [*L02_IDS, "a_b", "a b", "a_user_b", "{1}", "{", "a:b", "a|b", "*"]


@pytest.mark.case("L02")
@pytest.mark.promise("P-isolated")
async def test_L02_P_isolated_each_id_reads_only_its_own(session_store: Store) -> None:
    for number, user_id in enumerate(IDS):
        await record(session_store, said(f"secret {number}", session_id=f"s-{number}"), scope=scope_of(user_id))

    for number, user_id in enumerate(IDS):
        assert await logged(session_store, scope_of(user_id)) == [f"secret {number}"]
        assert await contents(session_store, f"s-{number}") == [f"secret {number}"]
        assert await session_store.find(f"s-{number}") == SessionState(scope_of(user_id), "voice", known=True)
    waiting = await session_store.pending(limit=100)
    assert sorted(scope.user_id for scope in waiting) == sorted(IDS)


@pytest.mark.case("L02")
async def test_L02_hostile_session_ids_are_only_ids(session_store: Store) -> None:
    hostile = [
        *IDS,
        "{other}:x",
        "vm:session:x",
        "'); redis.call('FLUSHALL'); --",
        "%s %d \\0",
        "é" * 512,
        "",
        "room name (+1 555 010-9999)",
    ]
    for number, session_id in enumerate(hostile):
        user = scope_of(f"user-{number}")
        await session_store.claim(session_id, user, writer="job")
        await session_store.append(user, said(f"word {number}", session_id=session_id), writer="job")

    for number, session_id in enumerate(hostile):
        assert await contents(session_store, session_id) == [f"word {number}"]
    assert await session_store.claim("s1\r\nDEL x\t", ANA) == SessionState(ANA)
    assert await session_store.find("s1\r\nDEL x\t") == SessionState(ANA)
    gone = scope_of(f"user-{hostile.index('{other}:x')}")
    assert await session_store.erase(gone, Selection("session", session_id="{other}:x")) == 1
    assert sum([len(await contents(session_store, session_id)) for session_id in hostile]) == len(hostile) - 1


@pytest.mark.promise("P-isolated")
async def test_P_isolated_scopes_differ_by_every_field(session_store: Store) -> None:
    scopes = [ANA, scope_of(org_id="acme2"), scope_of(agent_id="desk2"), scope_of(kind="session"), BEN]
    for number, each in enumerate(scopes):
        await record(session_store, said(f"word {number}", session_id=f"s-{number}"), scope=each)
    for number, each in enumerate(scopes):
        assert await logged(session_store, each) == [f"word {number}"]
    await session_store.erase(ANA, Selection("all"))
    assert [await logged(session_store, each) for each in scopes[1:]] == [[f"word {number}"] for number in (1, 2, 3, 4)]


async def test_a_very_long_turn_is_kept_whole(session_store: Store) -> None:
    words = 'ليلى said: "|" \\ \n' * 12_000  # over 200 kB
    await record(session_store, said(words))
    (entry,) = await session_store.entries("s1", limit=1)
    assert entry.content == words
    assert (await log(session_store)).records[0].record == entry
