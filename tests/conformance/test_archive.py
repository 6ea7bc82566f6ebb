"""What every archive promises, on every archive: in memory, SQLite, PostgreSQL."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.limits import ENTRY_CONTENT_BYTES_MAX
from memory.models import MemoryEntry, MemoryEvent, MemorySettings, Record, Scope
from memory.ports import ArchiveStore, DamagedRecord, DeadLetters, Erasable, LogRecord, Selection, SessionList
from memory.ports import SettingsStore as SettingsPort
from memory.stores.inmemory import InMemoryArchive
from memory.stores.sql import SqlArchive
from tests.support import archives
from tests.support.archives import NOON, entry, event, logged, new_scope, position, turns
from tests.support.services import L02_IDS


class Archive(ArchiveStore, Erasable, DeadLetters, SessionList, SettingsPort, Protocol):
    """All that an archive can do."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def archive(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Archive]:
    if request.param == "memory":
        yield InMemoryArchive()
        return
    url = archives.sqlite_url(data_dir) if request.param == "sqlite" else request.getfixturevalue("shared_postgres_url")
    opened = await SqlArchive.open(url)
    yield opened
    await opened.aclose()


async def contents(archive: Archive, scope: Scope) -> list[str]:
    return [entry.content for entry in await archive.history(scope, session_id=None, before=None, limit=1_000)]


async def records(archive: Archive, scope: Scope) -> list[Record]:
    return [item.record for item in await archive.read(scope, after=0, limit=1_000)]


# -- storing


async def test_a_batch_stored_again_has_no_effect(archive: Archive, scope: Scope) -> None:
    batch = logged([*turns(3), event()])
    assert await archive.store(scope, batch) == 4
    assert await archive.store(scope, batch) == 0
    assert await records(archive, scope) == [item.record for item in batch]


async def test_an_overlapping_batch_adds_what_is_new(archive: Archive, scope: Scope) -> None:
    batch = logged(turns(6))
    await archive.store(scope, batch[:4])
    assert await archive.store(scope, batch[2:]) == 2
    assert await contents(archive, scope) == [f"turn {n}" for n in range(6)]


async def test_an_id_counts_once_at_another_position_twice_in_a_batch_and_as_the_other_kind(
    archive: Archive, scope: Scope
) -> None:
    one = entry("first")
    same_id = MemoryEvent(id=one.id, session_id="s1", event_type="noise")
    assert await archive.store(scope, logged([one, one.with_(content="second")])) == 1
    assert await archive.store(scope, logged([one.with_(content="third"), same_id], start=7)) == 0
    assert await records(archive, scope) == [one]


async def test_an_empty_batch_is_nothing(archive: Archive, scope: Scope) -> None:
    assert await archive.store(scope, []) == 0
    assert await archive.read(scope, after=0, limit=10) == []


async def test_an_unknown_user_has_nothing(archive: Archive, scope: Scope) -> None:
    assert await archive.read(scope, after=0, limit=10) == []
    assert await archive.history(scope, session_id=None, before=None, limit=10) == []
    assert await archive.history(scope, session_id="s1", before=None, limit=10) == []
    assert await archive.position(scope) == ""
    assert await archive.sessions(scope, limit=10) == []
    assert await archive.get_settings(scope) is None


async def test_many_stores_of_one_batch_at_once_store_it_once(archive: Archive, scope: Scope) -> None:
    batch = logged(turns(40))
    counts = await asyncio.gather(*(archive.store(scope, batch) for _ in range(8)))
    assert sorted(counts) == [0] * 7 + [40]
    assert await contents(archive, scope) == [f"turn {n}" for n in range(40)]


async def test_a_reader_that_follows_the_cursor_misses_nothing_that_others_store(
    archive: Archive, scope: Scope
) -> None:
    batches = [logged(turns(5, f"{k}: {{}}".format, session=f"s{k}"), start=1 + 5 * k) for k in range(12)]
    storing = asyncio.gather(*(archive.store(scope, batch) for batch in batches))
    seen: list[str] = []
    cursor = 0
    async with asyncio.timeout(30):
        while len(seen) < 60:
            for item in await archive.read(scope, after=cursor, limit=7):
                cursor = item.cursor
                seen.append(item.record.id)
            await asyncio.sleep(0)
    await storing
    assert sorted(seen) == sorted(item.record.id for batch in batches for item in batch)


# -- what comes back


EVERY_FIELD = MemoryEntry(
    id="0190a5b0-0000-7000-8000-000000000001",
    session_id="s1",
    user_id="+15550109999",
    timestamp=NOON + timedelta(microseconds=123_457),
    role="assistant",
    content="Your order is on its way.",
    mode="text",
    name="Ada",
    language="es-MX",
    detected_language="es",
    language_switched=True,
    retrieved_passages=("one", "two"),
    sources=({"title": "Returns", "score": 0.75, "nested": {"list": [1, None, True]}},),
    latency_ms=412.5,
    interrupted=True,
    transcript_confidence=0.5,
    degradations=("vectors",),
    redactions=2,
    phi_detected=True,
)


async def test_every_field_comes_back(archive: Archive, scope: Scope) -> None:
    assert {
        name for name in MemoryEntry.model_fields if getattr(EVERY_FIELD, name) in ("", None, False, 0, ())
    } == set()
    happened = MemoryEvent(
        session_id="s1", user_id="u", event_type="x", data={"a": [1, {"b": None}], "ü": "\x00", "f": 0.1}
    )
    await archive.store(scope, logged([EVERY_FIELD, happened]))
    assert await records(archive, scope) == [EVERY_FIELD, happened]
    assert await archive.history(scope, session_id="s1", before=None, limit=5) == [EVERY_FIELD]


TEXTS = {
    "arabic": "أهلاً وسهلاً، اسمي ليلى",
    "emoji": "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇵🇰",
    "combining": "e\u0301 vs \u00e9",
    "quotes": """it's "quoted" \\ `;--' %s ? :name $1""",
    "bidi": "\u202eabc\u202c \u200b\u200d\ufeff",
    "newlines": "a\r\nb\tc\n",
    "astral": "\U00020000\U0010ffff",
    "private and noncharacters": "\ue000\ufffe\uffff",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_odd_text_comes_back_as_it_was(archive: Archive, scope: Scope, text: str) -> None:
    session = "".join(text.split())  # ids hold no line breaks
    said = entry(text, session=session, name="N", language="x")
    await archive.store(scope, logged([said]))
    assert await archive.history(scope, session_id=session, before=None, limit=1) == [said]
    assert [item.record for item in await archive.read(scope, after=0, limit=1)] == [said]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(
        st.builds(
            MemoryEntry,
            id=st.uuids().map(str),
            session_id=st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20),
            timestamp=st.datetimes(timezones=st.just(UTC)),
            role=st.sampled_from(["user", "assistant", "system"]),
            content=st.text(min_size=1, max_size=200).map(lambda text: "x" + text),
            mode=st.sampled_from(["voice", "text"]),
            language=st.text(max_size=10),
            latency_ms=st.none() | st.floats(min_value=0, allow_infinity=False),
            sources=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), max_size=2).map(tuple),
        ),
        max_size=6,
        unique_by=lambda entry: entry.id,
    )
)
async def test_any_batch_comes_back_as_it_went(archive: Archive, batch: list[MemoryEntry]) -> None:
    scope = new_scope()
    assert await archive.store(scope, logged(batch)) == len(batch)
    assert await records(archive, scope) == batch


async def test_an_entry_of_one_mebibyte_comes_back(archive: Archive, scope: Scope) -> None:
    said = entry("é" * (ENTRY_CONTENT_BYTES_MAX // 2))
    await archive.store(scope, logged([said]))
    assert await records(archive, scope) == [said]


async def test_a_nan_does_not_stop_a_batch(archive: Archive, scope: Scope) -> None:
    said = entry("scored", sources=({"score": float("nan"), "ranks": [float("inf"), 1.0]},))
    assert await archive.store(scope, logged([said, entry("next", minute=1)])) == 2
    assert await contents(archive, scope) == ["scored", "next"]


async def test_timestamps_keep_their_instant_over_the_whole_range(archive: Archive, scope: Scope) -> None:
    east = timezone(timedelta(hours=5, minutes=45))
    times = [
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 1, 17, 45, tzinfo=east),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    await archive.store(scope, logged([entry(str(n), timestamp=at) for n, at in enumerate(times)]))
    back = await archive.history(scope, session_id=None, before=None, limit=9)
    assert [one.timestamp for one in back] == times
    assert all(one.timestamp.tzinfo is not None for one in back)
    assert back[2].timestamp.utcoffset() == timedelta(0)


# -- order


async def test_entries_and_events_share_one_order(archive: Archive, scope: Scope) -> None:
    batch: list[Record] = [entry("a", minute=9), event(minute=1), entry("b", minute=5), event(minute=0), entry("c")]
    await archive.store(scope, logged(batch))
    found = await archive.read(scope, after=0, limit=10)
    assert [item.record for item in found] == batch
    assert [item.position for item in found] == [position(n) for n in range(1, 6)]
    cursors = [item.cursor for item in found]
    assert cursors == sorted(set(cursors))
    assert cursors[0] > 0
    assert [item.record for item in await archive.read(scope, after=cursors[1], limit=2)] == batch[2:4]
    assert await archive.read(scope, after=cursors[-1], limit=10) == []


async def test_ten_thousand_records_are_read_in_pages(archive: Archive, scope: Scope) -> None:
    said: list[Record] = [
        event(minute=n, number=n) if n % 7 == 0 else entry(f"turn {n}", session=f"s{n // 100}", minute=n)
        for n in range(10_000)
    ]
    for start in range(0, len(said), 1_000):
        assert await archive.store(scope, logged(said[start : start + 1_000], start=start + 1)) == 1_000
    found: list[str] = []
    cursor = 0
    while page := await archive.read(scope, after=cursor, limit=900):
        found += [item.record.id for item in page]
        cursor = page[-1].cursor
    assert found == [record.id for record in said]
    assert await archive.position(scope) == position(10_000)
    assert len(await archive.history(scope, session_id=None, before=None, limit=50)) == 50


@pytest.mark.case("L37")
async def test_L37_what_is_read_at_once_is_bounded_in_text_as_well(
    archive: Archive, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("inmemory", "sql"):
        monkeypatch.setattr(f"memory.stores.{module}.ARCHIVE_READ_CHARS_MAX", 1_000)
    texts = [f"{number} " + "x" * size for number, size in enumerate((300, 300, 5_000, 0, 990, 300, 300, 300))]
    said = [entry(text, minute=number) for number, text in enumerate(texts)]
    kept: list[Record] = [*said[:4], event(), *said[4:]]
    await archive.store(scope, logged(kept))
    parts: list[list[Record]] = []
    cursor = 0
    while part := await archive.read(scope, after=cursor, limit=1_000):
        parts.append([item.record for item in part])
        cursor = part[-1].cursor
    assert [one for part in parts for one in part] == kept, "all of them, in their order"
    assert parts[:2] == [kept[:2], kept[2:3]], "what is larger by itself comes alone"
    assert parts[-1] == said[-3:]
    newest = await archive.history(scope, session_id=None, before=None, limit=1_000)
    assert newest == said[-3:]
    older = await archive.history(scope, session_id="s1", before=said[3].timestamp, limit=1_000)
    assert older == [said[2]]


async def test_history_is_by_the_time_things_were_said_then_by_arrival(archive: Archive, scope: Scope) -> None:
    batch: list[Record] = [entry("late", minute=9), entry("tie 1"), entry("tie 2"), event(), entry("early", minute=-5)]
    await archive.store(scope, logged(batch))
    assert await contents(archive, scope) == ["early", "tie 1", "tie 2", "late"]


async def test_history_is_bounded_by_number_session_and_time(archive: Archive, scope: Scope) -> None:
    said = itertools.chain(turns(4, "one {}".format), turns(4, "two {}".format, session="s2"))
    await archive.store(scope, logged(said))

    async def history(session_id: str | None, before: datetime | None, limit: int) -> list[str]:
        found = await archive.history(scope, session_id=session_id, before=before, limit=limit)
        return [one.content for one in found]

    assert await history(None, None, 3) == ["two 2", "one 3", "two 3"]
    assert await history("s2", None, 2) == ["two 2", "two 3"]
    assert await history("s1", NOON + timedelta(minutes=2), 9) == ["one 0", "one 1"]
    assert await history("s1", NOON, 9) == []
    assert await history("unknown", None, 9) == []


# -- isolation


IDS = [*L02_IDS, "é", "e\u0301", " a", "a ", "%", "a_user_b"]


@pytest.mark.case("L02")
@pytest.mark.promise("P-isolated")
async def test_L02_P_isolated_each_id_reads_its_own_word_only(archive: Archive) -> None:
    org = new_scope().org_id
    scopes = [Scope(org_id=org, agent_id="a", user_id=user_id) for user_id in IDS]
    for number, scope in enumerate(scopes):
        assert await archive.store(scope, logged([entry(f"word {number}").with_(id="the-same-id")])) == 1
    assert [await contents(archive, scope) for scope in scopes] == [[f"word {n}"] for n in range(len(IDS))]
    await archive.erase(scopes[0], Selection("all", through=position(9)))
    assert [await contents(archive, scope) for scope in scopes[1:]] == [[f"word {n}"] for n in range(1, len(IDS))]


@pytest.mark.promise("P-isolated")
async def test_P_isolated_org_agent_and_kind_keep_memories_apart(archive: Archive) -> None:
    first = new_scope()
    others = [
        new_scope(),
        Scope(org_id=first.org_id, agent_id="b", user_id="u"),
        Scope(org_id=first.org_id, agent_id="a", user_id="u", kind="session"),
    ]
    await archive.store(first, logged(turns(2)))
    for other in others:
        assert await records(archive, other) == []
        assert await archive.erase(other, Selection("all", through=position(9))) == 0
    assert len(await records(archive, first)) == 2


# -- erasure


SELECTIONS: dict[str, tuple[Selection, Callable[[Record], bool]]] = {
    "session": (Selection("session", session_id="s2"), lambda record: record.session_id == "s2"),
    "since": (
        Selection("since", since=NOON + timedelta(minutes=2)),
        lambda r: r.timestamp >= NOON + timedelta(minutes=2),
    ),
    "all": (Selection("all"), lambda record: True),
}


def talk() -> list[LogRecord]:
    said: list[Record] = [*turns(3), *turns(3, session="s2"), event(session="s2", minute=1), event(minute=4)]
    return logged(said)


@pytest.fixture(params=SELECTIONS.keys())
def erasure(request: pytest.FixtureRequest) -> tuple[Selection, Callable[[Record], bool]]:
    return SELECTIONS[request.param]


Erasure = tuple[Selection, Callable[[Record], bool]]


def through(selection: Selection, number: int) -> Selection:
    return dataclasses.replace(selection, through=position(number))


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_takes_what_it_means_and_no_more(
    archive: Archive, scope: Scope, erasure: Erasure
) -> None:
    selection, meant = erasure
    said = talk()
    await archive.store(scope, said)
    expected = sum(meant(item.record) for item in said)
    assert await archive.erase(scope, through(selection, 8)) == expected
    assert await archive.erase(scope, through(selection, 8)) == 0
    left = [item.record for item in said if not meant(item.record)]
    assert await records(archive, scope) == left
    assert {one.session_id for one in await archive.sessions(scope, limit=9)} == {record.session_id for record in left}


@pytest.mark.promise("P-erased")
async def test_P_erased_what_was_on_its_way_is_not_stored_afterwards(
    archive: Archive, scope: Scope, erasure: Erasure
) -> None:
    selection, meant = erasure
    said = talk()
    assert await archive.erase(scope, through(selection, 8)) == 0  # before anything of it arrived
    late = [item.record for item in said if not meant(item.record)]
    assert await archive.store(scope, said) == len(late)
    assert await archive.store(scope, said) == 0
    assert await records(archive, scope) == late


@pytest.mark.promise("P-erased")
async def test_P_erased_what_was_appended_after_the_request_is_not_meant(
    archive: Archive, scope: Scope, erasure: Erasure
) -> None:
    selection, meant = erasure
    said = talk()
    await archive.store(scope, said[:7])
    gone = [item for item in said[:5] if meant(item.record)]
    assert await archive.erase(scope, through(selection, 5)) == len(gone)
    await archive.store(scope, said)
    assert await records(archive, scope) == [item.record for item in said if item not in gone]


async def test_an_erasure_without_a_position_takes_what_is_there_and_nothing_that_is_to_come(
    archive: Archive, scope: Scope, erasure: Erasure
) -> None:
    selection, meant = erasure
    said = talk()
    await archive.store(scope, said[:7])
    assert await archive.erase(scope, selection) == sum(meant(item.record) for item in said[:7])
    assert await archive.store(scope, said[7:]) == 1


async def test_erasures_add_up_and_a_wider_one_includes_a_narrower(archive: Archive, scope: Scope) -> None:
    said = logged([*turns(2), *turns(2, session="s2"), *turns(2, session="s3")])
    await archive.erase(scope, Selection("session", session_id="s1", through=position(1)))
    await archive.erase(scope, Selection("session", session_id="s1", through=position(6)))
    await archive.erase(scope, Selection("session", session_id="s2", through=position(3)))
    await archive.erase(scope, Selection("since", since=NOON + timedelta(minutes=1), through=position(5)))
    await archive.store(scope, said)
    kept = [said[4].record, said[5].record]  # s3: one said before the time, one appended after the request
    assert await records(archive, scope) == kept
    assert await archive.erase(scope, Selection("all", through=position(6))) == 2
    assert await archive.store(scope, said) == 0


@pytest.mark.promise("P-erased")
async def test_P_erased_a_store_and_an_erasure_at_once_leave_nothing_behind(archive: Archive) -> None:
    scopes = [new_scope() for _ in range(12)]
    everything = Selection("all", through=position(8))
    calls = [[archive.store(scope, talk()), archive.erase(scope, everything)] for scope in scopes]
    await asyncio.gather(*(call for n, pair in enumerate(calls) for call in (pair if n % 2 else pair[::-1])))
    assert [await records(archive, scope) for scope in scopes] == [[]] * len(scopes)


async def test_an_id_that_was_erased_may_come_again_later(archive: Archive, scope: Scope) -> None:
    said = logged(turns(1))
    await archive.store(scope, said)
    await archive.erase(scope, Selection("all", through=position(1)))
    assert await archive.store(scope, logged([said[0].record], start=2)) == 1


async def test_cursors_and_position_never_go_back(archive: Archive, scope: Scope, erasure: Erasure) -> None:
    await archive.store(scope, talk())
    last = (await archive.read(scope, after=0, limit=100))[-1].cursor
    await archive.erase(scope, through(erasure[0], 8))
    assert await archive.position(scope) == position(8)
    assert await archive.store(scope, logged([entry("again", session="s9")], start=9)) == 1
    assert (await archive.read(scope, after=last, limit=100))[0].cursor > last
    assert await archive.position(scope) == position(9)
    await archive.store(scope, talk()[:2])
    assert await archive.position(scope) == position(9)


async def test_position_counts_what_an_erasure_kept_out(archive: Archive, scope: Scope) -> None:
    await archive.erase(scope, Selection("all", through=position(8)))
    assert await archive.store(scope, talk()) == 0
    assert await archive.position(scope) == position(8)


# -- dead letters


def damaged(number: int, **fields: Any) -> DamagedRecord:
    raw = json.dumps(fields) if fields else "\x00not \ud800 JSON"
    return DamagedRecord(position(number), position(number - 1), "written by a newer version", raw)


async def test_what_is_set_aside_counts_once_and_moves_the_position(archive: Archive, scope: Scope) -> None:
    letters = [damaged(4), damaged(5, session_id="s1", timestamp=NOON.isoformat())]
    assert await archive.set_aside(scope, []) == 0
    assert await archive.set_aside(scope, letters) == 2
    assert await archive.set_aside(scope, letters) == 0
    assert await archive.position(scope) == position(5)
    assert await archive.read(scope, after=0, limit=9) == []
    assert await archive.erase(scope, Selection("all", through=position(9))) == 2
    assert await archive.set_aside(scope, letters) == 0


@pytest.mark.promise("P-erased")
async def test_P_erased_letters_go_with_what_they_tell_or_when_they_tell_nothing(
    archive: Archive, scope: Scope, erasure: Erasure
) -> None:
    kept = damaged(2, session_id="s1", timestamp=(NOON - timedelta(days=1)).isoformat())
    meant = damaged(3, session_id="s2", timestamp=(NOON + timedelta(days=1)).isoformat())
    untold = damaged(4)
    selection = through(erasure[0], 9)
    gone = 3 if selection.what == "all" else 2
    assert await archive.set_aside(scope, [kept, meant, untold]) == 3
    assert await archive.erase(scope, selection) == gone
    assert await archive.set_aside(scope, [kept, meant, untold]) == 0


# -- sessions and settings


async def test_sessions_are_listed_newest_first_in_pages(archive: Archive, scope: Scope) -> None:
    said: list[Record] = [entry(session=f"s{n}", minute=n // 2) for n in range(7)]
    said += [entry(session="s0", minute=60), event(session="s0", minute=90), entry(session="s0", minute=-60)]
    await archive.store(scope, logged(said))
    everything = await archive.sessions(scope, limit=20)
    assert [one.session_id for one in everything] == ["s0", "s6", "s5", "s4", "s3", "s2", "s1"]
    assert (everything[0].first_at, everything[0].last_at) == (NOON - timedelta(hours=1), NOON + timedelta(minutes=90))
    assert [one.entries for one in everything] == [3, 1, 1, 1, 1, 1, 1]
    paged = await archive.sessions(scope, limit=2)
    while page := await archive.sessions(scope, limit=2, before=paged[-1]):
        paged += page
    assert paged == everything


async def test_an_erasure_shortens_a_session_in_the_list(archive: Archive, scope: Scope) -> None:
    await archive.store(scope, logged([*turns(6), event(minute=20)]))
    await archive.erase(scope, Selection("since", since=NOON + timedelta(minutes=3), through=position(9)))
    (left,) = await archive.sessions(scope, limit=5)
    assert (left.first_at, left.last_at, left.entries) == (NOON, NOON + timedelta(minutes=2), 3)


async def test_settings_are_the_users_own_and_outlive_an_erasure(archive: Archive, scope: Scope) -> None:
    chosen = MemorySettings(enabled=False, retention_days=-1)
    await archive.put_settings(scope, MemorySettings())
    await archive.put_settings(scope, chosen)
    await archive.store(scope, logged(turns(1)))
    await archive.erase(scope, Selection("all", through=position(9)))
    assert await archive.get_settings(scope) == chosen
    assert await archive.get_settings(new_scope()) is None
