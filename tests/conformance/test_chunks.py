"""What every store of chunks promises, on SQLite and PostgreSQL: each turn in exactly one chunk, in order, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.knowledge import Chunk, ChunkSpan, ChunkState
from memory.knowledge_ports import ArchivedEntry, SessionRef
from memory.limits import CHUNK_ANSWERS_BYTES_MAX
from memory.models import Record, Scope
from memory.ports import Selection
from memory.stores import chunks_sql
from memory.stores.schema import UNCUT, UNDIGESTED, conversation_entries, conversations
from tests.support import archives
from tests.support.archives import entry, event, new_scope, position, turns
from tests.support.ingestion import START
from tests.support.knowing import LATER, Stores, by_turns, learnt, unprojected


async def quiet(stores: Stores, *, limit: int = 100, before_s: float = 60) -> list[SessionRef]:
    return await stores.chunks.quiet(before=stores.clock.now() + timedelta(seconds=before_s), limit=limit)


async def texts(stores: Stores, chunk: Chunk) -> list[str]:
    return [part.text for part in await stores.chunks.turns(chunk)]


# -- sessions that went quiet


async def test_a_session_is_quiet_when_its_newest_turn_arrived_long_enough_ago(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(2))
    assert await quiet(stores, before_s=0) == []
    stores.clock.seconds = 60
    assert await quiet(stores, before_s=0) == [ref]
    await stores.store(scope, turns(1, "late {}".format), start=9)  # as a spool gives what was said before
    assert await quiet(stores, before_s=0) == []


async def test_the_longest_quiet_comes_first(stores: Stores, scope: Scope) -> None:
    for number, session in enumerate("cab"):
        stores.clock.seconds = 10 * number
        await stores.store(scope, turns(1, session=session), start=1 + number)
    assert [ref.session_id for ref in await quiet(stores)] == ["c", "a", "b"]
    assert [ref.session_id for ref in await quiet(stores, limit=2)] == ["c", "a"]


async def test_a_session_of_events_alone_has_nothing_to_cut(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, [event()])
    assert await quiet(stores) == []
    assert await stores.cut(ref) == 0


async def test_a_session_that_is_cut_is_quiet_no_more_until_somebody_speaks(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(3))
    await stores.cut(ref)
    assert await quiet(stores) == []
    await stores.store(scope, [event()], start=4)
    assert await quiet(stores) == []
    await stores.store(scope, [entry("more")], start=5)
    assert await quiet(stores) == [ref]


# -- cutting


async def test_what_is_cut_can_be_read_back(stores: Stores, scope: Scope) -> None:
    said = [
        entry("my order is late", minute=1, name="Sam", language="en", transcript_confidence=0.9),
        entry("I'm sorry", minute=2, role="assistant", mode="text"),
        entry("be kind", minute=3, role="system"),
    ]
    ref = await stores.store(scope, [said[0], event(), *said[1:]])
    assert await stores.cut(ref) == 1
    chunk = await stores.chunks.next(ref.user, now=START)
    assert chunk is not None
    assert (chunk.user, chunk.session_id, chunk.ordinal, chunk.state) == (ref.user, "s1", 0, ChunkState.WAITING)
    assert (chunk.attempts, chunk.not_before, chunk.reason, chunk.answers) == (0, None, "", "")
    assert chunk.created_at == START
    parts = await stores.chunks.turns(chunk)
    assert [part.turn_id for part in parts] == [one.id for one in said]
    assert [part.speaker for part in parts] == ["user", "assistant", "other"]
    assert [part.said_at for part in parts] == [one.timestamp for one in said]
    assert [(part.start, part.end, part.whole) for part in parts] == [(0, len(one.content), "") for one in said]
    first = parts[0]
    assert (first.name, first.mode, first.language, first.confidence) == ("Sam", "voice", "en", 0.9)
    assert parts[1].mode == "text"


async def test_what_was_said_before_is_found_by_a_word(stores: Stores, scope: Scope) -> None:
    said = [entry(text, minute=place) for place, text in enumerate(("a%b_c", "A%B", "axb", "more A%b", "a%b"))]
    ref = await stores.store(scope, [*said, event()])
    await stores.store(scope, [entry("a%b", session="s2", minute=9)], start=9)
    cursors = [one.cursor for one in await stores.digests.entries(ref, limit=10)]
    for store in (stores.chunks, stores.digests):
        found = await store.before(ref, cursors[4], holding="a%b", limit=10)
        assert [(one.cursor, one.entry) for one in found] == [(cursors[place], said[place]) for place in (3, 1, 0)]
        assert [one.cursor for one in await store.before(ref, cursors[3], holding="a%b", limit=1)] == [cursors[1]]
        assert await store.before(SessionRef(ref.user, "s3"), cursors[4], holding="a%b", limit=10) == []


async def test_nothing_is_cut_twice(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(25))
    assert await stores.cut(ref) == 3
    assert await stores.cut(ref) == 0
    chunks = await stores.waiting(scope)
    assert [chunk.ordinal for chunk in chunks] == [0, 1, 2]
    assert len({chunk.id for chunk in chunks}) == 3
    assert [text for chunk in chunks for text in await texts(stores, chunk)] == [f"turn {n}" for n in range(25)]


async def test_turns_behind_the_last_span_stay_for_the_next_time(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(5))

    def first_two(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        return by_turns(2)(entries)[:1]

    assert await stores.chunks.cut(ref, first_two, limit=400) == 1
    assert await quiet(stores) == [ref]
    assert [len(await stores.chunks.turns(chunk)) for chunk in await stores.waiting(scope)] == [2]
    assert await stores.cut(ref) == 1
    assert [len(await stores.chunks.turns(chunk)) for chunk in await stores.waiting(scope)] == [2, 3]


async def test_no_more_turns_than_the_limit_are_handed_in_and_no_more_than_memory_holds(
    stores: Stores, scope: Scope
) -> None:
    ref = await stores.store(scope, turns(5, lambda n: f"{n}" * 1_000_000))
    handed: list[int] = []

    def cutter(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        handed.append(len(entries))
        return by_turns(10)(entries)

    assert await stores.chunks.cut(ref, cutter, limit=2) == 1
    assert await stores.chunks.cut(ref, cutter, limit=400) == 1
    assert handed == [2, 3]
    more = await stores.store(scope, turns(10, lambda n: f"{n}" * 1_000_000, session="s2"), start=9)
    assert await stores.chunks.cut(more, cutter, limit=400) == 1
    assert handed[2] == 8


async def test_a_long_turn_is_in_several_chunks_each_with_its_part(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, [entry("before"), entry("abcdefghij", minute=1), entry("after", minute=2)])

    def cutter(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        one, two, three = (item.cursor for item in entries)
        return [ChunkSpan(one, two, 0, 3), ChunkSpan(two, two, 3, 7), ChunkSpan(two, three, 7)]

    assert await stores.chunks.cut(ref, cutter, limit=400) == 3
    chunks = await stores.waiting(scope)
    assert [await texts(stores, chunk) for chunk in chunks] == [["before", "abc"], ["defg"], ["hij", "after"]]
    spans = [[(part.start, part.end) for part in await stores.chunks.turns(chunk)] for chunk in chunks]
    assert spans == [[(0, 6), (0, 3)], [(3, 7)], [(7, 10), (0, 5)]]


async def test_blank_parts_of_a_turn_are_left_out(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, [entry("abc   ")])

    def cutter(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        return [ChunkSpan(1, 1, 0, 3), ChunkSpan(1, 1, 3)]

    assert await stores.chunks.cut(ref, cutter, limit=400) == 2
    assert [await texts(stores, chunk) for chunk in await stores.waiting(scope)] == [["abc"], []]


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [ChunkSpan(2, 3)],
        [ChunkSpan(1, 1), ChunkSpan(3, 3)],
        [ChunkSpan(1, 2), ChunkSpan(2, 3)],
        [ChunkSpan(1, 9)],
        [ChunkSpan(1, 1, 0, 0), ChunkSpan(1, 3)],
        [ChunkSpan(1, 3, 0, 2)],
        [ChunkSpan(1, 1, 0, 2)],
        [ChunkSpan(2, 1), ChunkSpan(1, 3)],
        [ChunkSpan(1, 3), ChunkSpan(3, 3)],
    ],
)
async def test_a_cutter_that_leaves_out_or_repeats_is_refused(
    stores: Stores, scope: Scope, spans: list[ChunkSpan]
) -> None:
    ref = await stores.store(scope, turns(3))
    with pytest.raises(ValueError, match="cutter"):
        await stores.chunks.cut(ref, lambda _: spans, limit=400)
    assert await stores.rows("chunks") == 0
    assert await quiet(stores) == [ref]


async def test_an_unknown_session_or_user_has_nothing_to_cut(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(1))
    assert await stores.cut(SessionRef(ref.user, "other")) == 0
    assert await stores.cut(SessionRef(999_999, "s1")) == 0
    assert await stores.chunks.next(999_999, now=LATER) is None


async def test_ids_differ_between_users_and_sessions(stores: Stores) -> None:
    chunks = [await stores.chunk(new_scope(), turns(1, session=session)) for session in "aab"]
    assert len({chunk.id for chunk in chunks}) == 3


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.integers(1, 9), min_size=1, max_size=4), sizes=st.lists(st.integers(1, 5), min_size=3))
async def test_cuts_at_once_put_each_turn_into_exactly_one_chunk(
    stores: Stores, batches: list[int], sizes: list[int]
) -> None:
    scope = new_scope()
    start = 1
    for count in batches:
        ref = await stores.store(scope, turns(count, f"{start}: {{}}".format), start=start)
        start += count
        cut = [stores.chunks.cut(ref, by_turns(size), limit=7) for size in sizes]
        async with asyncio.timeout(60):
            await asyncio.gather(*cut)
    await stores.cut(ref)
    chunks = await stores.waiting(scope)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    read = [text for chunk in chunks for text in await texts(stores, chunk)]
    history = await stores.archive.history(scope, session_id=None, before=None, limit=1_000)
    assert sorted(read) == sorted(turn.content for turn in history)


async def test_a_turn_that_is_erased_while_the_session_is_cut_is_in_no_chunk(stores: Stores, scope: Scope) -> None:
    records = turns(4)
    ref = await stores.store(scope, records)
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def cutter(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        seen.append(len(entries))
        if len(seen) == 1:
            selection = Selection("since", since=records[2].timestamp)
            erasures.append(loop.create_task(stores.archive.erase(scope, selection)))
        return by_turns(10)(entries)

    erasures: list[asyncio.Task[int]] = []
    await stores.chunks.cut(ref, cutter, limit=400)
    assert await asyncio.gather(*erasures) == [2]
    await stores.cut(ref)
    assert [await texts(stores, chunk) for chunk in await stores.waiting(scope)] == [["turn 0", "turn 1"]]


# -- whose turn it is


async def interleaved(stores: Stores, scope: Scope) -> tuple[SessionRef, list[Chunk]]:
    """Two sessions at once, cut in the other order than the one in which they began."""
    records: list[Record] = [entry(f"{n}", session="ab"[n % 2], minute=n) for n in range(8)]
    ref = await stores.store(scope, records)
    await stores.cut(SessionRef(ref.user, "b"), 2)
    stores.clock.seconds += 1
    await stores.cut(SessionRef(ref.user, "a"), 2)
    return ref, await stores.waiting(scope)


async def test_the_first_in_the_archives_order_comes_first(stores: Stores, scope: Scope) -> None:
    ref, chunks = await interleaved(stores, scope)
    assert [(chunk.session_id, chunk.ordinal) for chunk in chunks] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    for chunk in chunks:
        assert await stores.chunks.next(ref.user, now=LATER) == chunk
        assert await stores.knowledge.commit(chunk, learnt(chunk), unprojected)
    assert await stores.chunks.next(ref.user, now=LATER) is None


async def test_a_waiting_chunk_holds_up_the_later_ones_and_a_dead_one_does_not(stores: Stores, scope: Scope) -> None:
    ref, (first, second, *_) = await interleaved(stores, scope)
    now = stores.clock.now()
    await stores.chunks.failed(first, reason="away", not_before=now + timedelta(seconds=60))
    assert await stores.chunks.next(ref.user, now=now) is None
    assert await stores.chunks.due(now=now, limit=10) == []
    then = now + timedelta(seconds=60)
    assert await stores.chunks.due(now=then, limit=10) == [ref.user]
    waited = await stores.chunks.next(ref.user, now=then)
    assert waited is not None
    assert (waited.id, waited.attempts, waited.reason, waited.not_before) == (first.id, 1, "away", then)
    await stores.chunks.failed(first, reason="poison", not_before=None)
    assert await stores.chunks.next(ref.user, now=now) == second
    assert await stores.chunks.due(now=now, limit=10) == [ref.user]


async def test_what_waits_for_others_is_no_attempt(stores: Stores, scope: Scope) -> None:
    chunk = await stores.chunk(scope, turns(1))
    await stores.chunks.failed(chunk, reason="the LLM is away", not_before=START, counts=False)
    found = await stores.chunks.next(chunk.user, now=START)
    assert found is not None
    assert (found.attempts, found.reason) == (0, "the LLM is away")


async def test_users_are_due_longest_waiting_first_each_once(stores: Stores) -> None:
    numbers = []
    for number in range(4):
        stores.clock.seconds = float(10 * (4 - number))
        ref = await stores.store(new_scope(), turns(4))
        await stores.cut(ref, 2)
        numbers.append(ref.user)
    assert await stores.chunks.due(now=LATER, limit=10) == numbers[::-1]
    assert await stores.chunks.due(now=LATER, limit=2) == numbers[:1:-1]
    assert await stores.chunks.due(now=LATER, limit=0) == []


# -- what became of them


async def test_answers_are_kept_until_the_chunk_is_done(stores: Stores, scope: Scope) -> None:
    chunk = await stores.chunk(scope, turns(1))
    assert await stores.chunks.keep_answers(chunk, '{"a": "é\\u0000"}')
    kept = await stores.chunks.next(chunk.user, now=LATER)
    assert kept is not None
    assert kept.answers == '{"a": "é\\u0000"}'
    assert await stores.knowledge.commit(kept, learnt(kept), unprojected)
    (status,) = await stores.chunks.statuses(state=ChunkState.DONE, limit=10)
    assert status.chunk.answers == ""
    assert not await stores.chunks.keep_answers(chunk, "late")
    assert await stores.rows("chunks WHERE answers <> ''") == 0


async def test_answers_that_are_too_large_are_asked_for_again(stores: Stores, scope: Scope) -> None:
    chunk = await stores.chunk(scope, turns(1))
    assert await stores.chunks.keep_answers(chunk, "x" * (CHUNK_ANSWERS_BYTES_MAX + 1))
    found = await stores.chunks.next(chunk.user, now=LATER)
    assert found is not None
    assert found.answers == ""


async def test_a_chunk_that_is_gone_takes_nothing(stores: Stores, scope: Scope) -> None:
    chunk = await stores.chunk(scope, turns(1))
    await stores.archive.erase(scope, Selection("all"))
    assert not await stores.chunks.keep_answers(chunk, "late")
    await stores.chunks.failed(chunk, reason="late", not_before=None)
    assert await stores.chunks.turns(chunk) == []
    assert await stores.chunks.statuses(state=None, limit=10) == []


async def test_statuses_come_by_age_in_pages(stores: Stores) -> None:
    chunks = []
    for number in range(5):
        stores.clock.seconds = float(number)
        chunks.append(await stores.chunk(new_scope(), turns(1)))
    await stores.chunks.failed(chunks[1], reason="poison", not_before=None)
    listed = await stores.chunks.statuses(state=None, limit=3)
    assert [one.chunk.id for one in listed] == [chunk.id for chunk in chunks[:3]]
    assert [one.age_s for one in listed] == [4, 3, 2]
    rest = await stores.chunks.statuses(state=None, limit=3, after=listed[-1].chunk.id)
    assert [one.chunk.id for one in rest] == [chunk.id for chunk in chunks[3:]]
    assert await stores.chunks.statuses(state=None, limit=3, after=rest[-1].chunk.id) == []
    (dead,) = await stores.chunks.statuses(state=ChunkState.DEAD, limit=10)
    assert (dead.chunk.id, dead.chunk.reason, dead.chunk.attempts) == (chunks[1].id, "poison", 1)


async def test_a_status_tells_the_group_by_its_digest(stores: Stores, scope: Scope) -> None:
    from memory.identity import group_digest

    await stores.chunk(scope, turns(1))
    (status,) = await stores.chunks.statuses(state=None, limit=1)
    assert status.group_digest == group_digest(scope)


async def test_chunks_are_retried_and_dropped_by_hand(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(3))
    await stores.cut(ref, 1)
    first, second, third = await stores.waiting(scope)
    await stores.chunks.keep_answers(first, "[]")
    for chunk in (first, second):
        await stores.chunks.failed(chunk, reason="poison", not_before=None)
    ids = [first.id, third.id, "unknown"]
    assert await stores.chunks.move(ids, to=ChunkState.WAITING, from_=[ChunkState.DEAD]) == 1
    retried = await stores.chunks.next(ref.user, now=START)
    assert retried is not None
    assert (retried.id, retried.attempts, retried.reason, retried.answers) == (first.id, 0, "", "[]")
    both = [ChunkState.DEAD, ChunkState.WAITING]
    assert await stores.chunks.move([first.id, second.id], to=ChunkState.DROPPED, from_=both) == 2
    assert await stores.chunks.next(ref.user, now=START) == third
    assert await stores.rows("chunks WHERE answers <> ''") == 0
    assert await stores.chunks.move([first.id], to=ChunkState.WAITING, from_=both) == 0
    assert await stores.knowledge.commit(first, learnt(first, "late"), unprojected) is None


async def test_counts_tell_every_state_and_what_waits(stores: Stores) -> None:
    assert await stores.chunks.counts() == {
        "waiting": 0,
        "done": 0,
        "dead": 0,
        "dropped": 0,
        "uncut": 0,
        "oldest_waiting_s": 0,
    }
    done = await stores.chunk(new_scope(), turns(1))
    await stores.knowledge.commit(done, learnt(done), unprojected)
    stores.clock.seconds = 10
    await stores.chunk(new_scope(), turns(1))
    await stores.store(new_scope(), turns(1))
    stores.clock.seconds = 25
    counts = await stores.chunks.counts()
    assert (counts["waiting"], counts["done"], counts["uncut"], counts["oldest_waiting_s"]) == (1, 1, 1, 15)


# -- erasing


async def test_a_since_erasure_takes_the_chunks_of_its_turns_and_the_rest_is_cut_again(
    stores: Stores, scope: Scope
) -> None:
    records = turns(9)
    ref = await stores.store(scope, records)
    await stores.cut(ref, 3)
    old = await stores.waiting(scope)
    assert await stores.archive.erase(scope, Selection("since", since=records[4].timestamp)) == 5
    assert await stores.waiting(scope) == old[:1]
    assert await stores.chunks.turns(old[2]) == []
    assert await quiet(stores) == [ref]
    assert await stores.cut(ref, 3) == 1
    left = await stores.waiting(scope)
    assert [await texts(stores, chunk) for chunk in left] == [["turn 0", "turn 1", "turn 2"], ["turn 3"]]
    assert left[1].ordinal == 3
    assert left[1].id not in {chunk.id for chunk in old}


async def test_a_turn_that_is_in_two_chunks_is_cut_again_as_a_whole(stores: Stores, scope: Scope) -> None:
    records = [entry("first"), entry("abcdef", minute=1), entry("secret", minute=2)]
    ref = await stores.store(scope, records)

    def cutter(entries: Sequence[ArchivedEntry]) -> list[ChunkSpan]:
        return [ChunkSpan(1, 1), ChunkSpan(2, 2, 0, 2), ChunkSpan(2, 2, 2, 4), ChunkSpan(2, 3, 4)]

    assert await stores.chunks.cut(ref, cutter, limit=400) == 4
    await stores.archive.erase(scope, Selection("since", since=records[2].timestamp))
    await stores.cut(ref)
    assert [await texts(stores, chunk) for chunk in await stores.waiting(scope)] == [["first"], ["abcdef"]]


async def test_a_session_that_goes_on_after_its_erasure_is_cut_under_new_ids(stores: Stores, scope: Scope) -> None:
    old = await stores.chunk(scope, turns(2))
    await stores.archive.erase(scope, Selection("session", session_id="s1", through=position(9)))
    assert await stores.rows("chunks") == 0
    new = await stores.chunk(scope, [entry("again")], start=10)
    assert new.id != old.id
    assert await stores.chunks.turns(old) == []
    assert await texts(stores, new) == ["again"]
    assert await stores.knowledge.commit(old, learnt(old, "secret"), unprojected) is None


async def test_other_users_and_sessions_keep_their_chunks(stores: Stores, scope: Scope) -> None:
    other = await stores.chunk(new_scope(), turns(1))
    ref = await stores.store(scope, [*turns(2, session="a"), *turns(2, session="b")])
    await stores.cut(SessionRef(ref.user, "a"))
    await stores.cut(SessionRef(ref.user, "b"))
    await stores.archive.erase(scope, Selection("session", session_id="a"))
    assert [chunk.session_id for chunk in await stores.waiting(scope)] == ["b"]
    assert await stores.chunks.next(other.user, now=LATER) == other


# -- ten thousand


async def plan(stores: Stores, query: Any) -> str:
    explain = "EXPLAIN QUERY PLAN " if stores.archive.database.is_sqlite else "EXPLAIN "
    async with stores.archive.database.reading() as connection:
        compiled = query.compile(connection.sync_connection, compile_kwargs={"literal_binds": True})
        found = await connection.exec_driver_sql(explain + str(compiled))
        return "\n".join(str(row) for row in found)


async def test_a_burst_of_ten_thousand_sessions_is_read_by_an_index_in_bounded_parts(stores: Stores) -> None:
    user = await stores.user_of_many(10_000)
    refs = await quiet(stores, limit=200)
    assert [ref.session_id for ref in refs] == [f"{number:05}" for number in range(200)]
    assert {ref.user for ref in refs} == {user}
    at = conversations.c
    for behind, index in ((UNCUT, "ix_conversations_uncut"), (UNDIGESTED, "ix_conversations_undigested")):
        query = sa.select(at.user_id, at.session_id).where(behind).order_by(at.stored_at).limit(200)
        assert index in await plan(stores, query)


async def test_of_ten_thousand_users_who_wait_the_first_are_found_by_an_index(stores: Stores) -> None:
    numbers = await stores.many_waiting(10_000)
    assert await stores.chunks.due(now=LATER, limit=200) == numbers[:200]
    told = await plan(stores, chunks_sql.due_query(LATER, 200))
    assert "ix_chunks_state_created_at_id" in told
    assert "ix_chunks_waiting" in told or "Anti Join" in told


async def test_a_session_of_a_user_with_many_is_cut_by_an_index(stores: Stores) -> None:
    scope = new_scope()
    for start in range(1, 2_001, 500):
        said: list[Record] = [entry("hello", session=f"{number}") for number in range(start, start + 500)]
        ref = await stores.store(scope, said, start=start)
    async with stores.archive.database.writing(60) as connection:
        await connection.exec_driver_sql("ANALYZE")
    told = await plan(stores, sa.select(conversation_entries.c.cursor).where(*chunks_sql._after(ref, 0)))
    assert "conversation_id" in told
    assert "pk_conversation_entries" not in told
    assert "SCAN conversation_entries" not in told
    assert "Seq Scan on conversation_entries" not in told


# -- any history

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from("ab"), st.integers(1, 4)),
        st.tuples(st.just("cut"), st.sampled_from("ab"), st.integers(1, 3)),
        st.tuples(st.just("ingest"), st.just(""), st.integers(1, 2)),
        st.tuples(st.just("since"), st.just(""), st.integers(0, 12)),
        st.tuples(st.just("session"), st.sampled_from("ab"), st.integers(0, 12)),
    ),
    min_size=3,
    max_size=12,
)


class History:
    """A user's talk, cut, ingested and erased; and what has to be true of it."""

    def __init__(self, stores: Stores) -> None:
        self._stores, self.scope = stores, new_scope()
        self._said, self._ids = 0, set[str]()
        self._ingested: dict[str, list[str]] = {}

    async def take(self, what: str, session: str, number: int) -> None:
        if what == "say":
            # Every third turn was said before the others, as one that comes from a spool.
            said = [self._turn(session) for _ in range(number)]
            await self._stores.store(self.scope, said, start=self._said - number + 1)
        elif not self._said:
            return
        elif what == "cut":
            await self.cut(session, number)
        elif what == "ingest":
            await self.ingest(number)
        elif what == "since":
            since = archives.NOON + timedelta(minutes=number)
            await self._stores.archive.erase(self.scope, Selection("since", since=since))
        else:
            selection = Selection("session", session_id=session, through=position(number))
            await self._stores.archive.erase(self.scope, selection)

    def _turn(self, session: str) -> Record:
        self._said += 1
        minute = self._said - 5 if self._said % 3 == 0 else self._said
        return entry(f"turn {self._said}", session=session, minute=minute)

    async def cut(self, session: str, size: int) -> None:
        await self._stores.cut(SessionRef(await self._stores.user(self.scope), session), size)

    async def ingest(self, count: int) -> None:
        user = await self._stores.user(self.scope)
        for _ in range(count):
            chunk = await self._stores.chunks.next(user, now=LATER)
            if chunk is None:
                return
            said = await texts(self._stores, chunk)
            assert await self._stores.knowledge.commit(chunk, learnt(chunk, *said), unprojected)
            assert chunk.id not in self._ids  # what was erased is never again under the same id
            self._ids.add(chunk.id)
            self._ingested[chunk.id] = said

    async def check(self) -> None:
        stores = self._stores
        for session in "ab":
            await self.cut(session, 2)
        left = await stores.archive.history(self.scope, session_id=None, before=None, limit=1_000)
        user = await stores.user(self.scope)
        mine = [one.chunk for one in await stores.chunks.statuses(state=None, limit=1_000) if one.chunk.user == user]
        cut = [text for chunk in mine for text in await texts(stores, chunk)]
        assert sorted(cut) == sorted(turn.content for turn in left)
        done = {chunk.id for chunk in mine if chunk.state is ChunkState.DONE}
        known = (await stores.knowledge.read(self.scope))[1]
        assert {episode.id for episode in known.episodes} == done
        assert sorted(fact.statement.text for fact in known.facts) == sorted(
            text for id_ in done for text in self._ingested[id_]
        )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
async def test_P_forget_after_any_history_each_turn_that_is_left_is_in_one_chunk_and_nothing_else_is_known(
    stores: Stores, steps: list[tuple[str, str, int]]
) -> None:
    history = History(stores)
    await history.take("say", "a", 1)
    for step in steps:
        await history.take(*step)
    await history.check()
