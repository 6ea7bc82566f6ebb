"""The spool on disk: what is written is read, what is damaged costs itself alone, what is erased is gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory import spool as spool_module
from memory import spool_file as module
from memory.errors import SpoolUnusable, StoreUnavailable
from memory.models import MemoryEntry, MemoryEvent, Record, Scope
from memory.ports import Selection
from memory.spool import Spool
from memory.spool_file import SpoolFile
from memory.spool_frames import Spooled, decode, encode, split

ANA = Scope(org_id="acme", agent_id="desk", user_id="ana")
BEN = Scope(org_id="acme", agent_id="desk", user_id="ben")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def said(content: str, *, session: str = "s1", ago_h: float = 0) -> MemoryEntry:
    timestamp = NOW - timedelta(hours=ago_h)
    return MemoryEntry(role="user", content=content, mode="voice", session_id=session, timestamp=timestamp)


def spooled(*records: Record, scope: Scope = ANA) -> list[Spooled]:
    return [Spooled(scope, NOW, record) for record in records]


def contents(file: SpoolFile, limit: int = 1_000) -> list[str]:
    return [getattr(item.record, "content", "") for item in file.batch(limit).records]


def items_in(data: bytes) -> list[Spooled]:
    payloads = [part.payload for part in split(data) if part.payload is not None and not part.erased]
    return [item for payload in payloads if isinstance(item := decode(payload), Spooled)]


@pytest.fixture
def spool(data_dir: Path) -> Spool:
    return Spool(data_dir)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def left_by_the_dead(spool: Spool, *records: Record, scope: Scope = ANA) -> Path:
    """A file whose writer is no more."""
    file = spool.create(scope)
    file.append(spooled(*records, scope=scope))
    file.close()
    return file.path


# --- the format

TEXTS = st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
ENTRIES = st.builds(
    lambda content, role: MemoryEntry(role=role, content=content, mode="text", session_id="s", timestamp=NOW),
    TEXTS.filter(lambda text: any(c.isalnum() for c in text)),
    st.sampled_from(["user", "assistant"]),
)
EVENTS = st.builds(
    lambda data: MemoryEvent(event_type="language_switch", session_id="s", timestamp=NOW, data=data),
    st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=3).map(
        lambda data: {key: value for key, value in data.items() if not isinstance(value, int) or abs(value) < 1 << 100}
    ),
)
RECORDS = st.lists(ENTRIES | EVENTS, min_size=1, max_size=5)


@given(RECORDS)
def test_what_is_written_is_read(records: list[Record]) -> None:
    items = spooled(*records)
    assert items_in(b"".join(map(encode, items))) == items


@given(RECORDS, st.data())
def test_a_file_cut_off_anywhere_keeps_what_was_whole(records: list[Record], data: Any) -> None:
    items = spooled(*records)
    frames = [encode(item) for item in items]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    kept = sum(1 for number in range(1, len(frames) + 1) if len(b"".join(frames[:number])) <= cut)
    assert items_in(whole[:cut]) == items[:kept]


@given(RECORDS, st.data())
def test_a_byte_flipped_anywhere_costs_its_own_record_alone(records: list[Record], data: Any) -> None:
    items = spooled(*records)
    frames = [encode(item) for item in items]
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    hit = next(number for number in range(len(frames)) if at < len(b"".join(frames[: number + 1])))
    assert items_in(bytes(whole)) == items[:hit] + items[hit + 1 :]


@given(st.binary(max_size=400))
def test_any_bytes_at_all_are_read_without_an_error(data: bytes) -> None:
    parts = split(data)
    assert b"".join(data[part.begin : part.end] for part in parts) == data
    assert items_in(data) == []


@given(RECORDS, st.binary(min_size=1, max_size=64))
def test_what_lies_between_frames_is_passed_over(records: list[Record], rubbish: bytes) -> None:
    items = spooled(*records)
    assert items_in(rubbish.join([b"", *map(encode, items), b""])) == items


def test_a_payload_that_is_no_record_is_none() -> None:
    for payload in (b"[]", b"{}", b"\xff", b'{"v":1,"scope":[1],"at":"x","record":{}}', b"[" * 100_000):
        assert decode(payload) is None


def test_what_a_newer_version_wrote_is_refused_not_dropped() -> None:
    with pytest.raises(SpoolUnusable, match="upgrade"):
        decode(b'{"v":3}')


# --- files


def test_files_are_their_owners_alone(spool: Spool) -> None:
    file = spool.create(ANA)
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert "ana" not in file.path.name
    file.close()


def test_records_come_back_in_order_and_the_file_goes_with_the_last(spool: Spool) -> None:
    file = spool.create(ANA)
    assert file.append(spooled(*(said(f"turn {number}") for number in range(5))))
    first = file.batch(3)
    assert [getattr(item.record, "content", "") for item in first.records] == ["turn 0", "turn 1", "turn 2"]
    assert not file.passed(first.end)
    file.append(spooled(said("turn 5")))
    second = file.batch(10)
    assert contents(file) == ["turn 3", "turn 4", "turn 5"]
    assert file.passed(second.end)
    assert spool.files() == []
    assert not file.append(spooled(said("too late")))
    file.close()


def test_a_record_larger_than_a_window_is_read(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WINDOW", 64)
    file = spool.create(ANA)
    texts = ["short", "x" * 5_000, "y" * 200, "last"]
    file.append(spooled(*map(said, texts)))
    found: list[str] = []
    while not file.passed((batch := file.batch(10)).end):
        found += [item.record.content for item in batch.records if isinstance(item.record, MemoryEntry)]
    found += [item.record.content for item in batch.records if isinstance(item.record, MemoryEntry)]
    assert found == texts


def test_a_file_whose_writer_lives_is_left_alone_and_a_dead_ones_taken_once(spool: Spool, closing: ExitStack) -> None:
    file = spool.create(ANA)
    closing.callback(file.close)
    file.append(spooled(said("mine")))
    assert spool.adopt(file.path) is None
    path = left_by_the_dead(spool, said("left"))
    taken = spool.adopt(path)
    assert taken is not None
    closing.callback(taken.close)
    assert spool.adopt(path) is None
    assert contents(taken) == ["left"]
    assert taken.passed(taken.batch(9).end)
    assert spool.adopt(path) is None


def test_files_are_listed_by_user_oldest_first(spool: Spool) -> None:
    paths = [left_by_the_dead(spool, said("x"), scope=scope) for scope in (BEN, ANA, BEN)]
    assert spool.files() == paths
    assert spool.files(BEN) == [paths[0], paths[2]]


def test_a_torn_end_is_dropped_and_told(spool: Spool) -> None:
    path = left_by_the_dead(spool, said("whole"), said("torn"))
    os.truncate(path, path.stat().st_size - 3)
    file = spool.adopt(path)
    assert file is not None
    batch = file.batch(10)
    assert [item.record.content for item in batch.records if isinstance(item.record, MemoryEntry)] == ["whole"]
    assert batch.damaged == 1
    assert file.passed(batch.end)


def test_a_file_that_is_cut_off_while_it_is_read_ends_there(spool: Spool) -> None:
    file = spool.create(ANA)
    file.append(spooled(said("one"), said("two")))
    os.truncate(file.path, 0)
    batch = file.batch(10)
    assert (batch.records, batch.damaged) == ((), 1)
    assert file.passed(batch.end)


# --- bounds


def test_a_full_spool_takes_nothing_more_and_keeps_what_it_has(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPOOL_RECORDS_MAX", 2)
    file = spool.create(ANA)
    file.append(spooled(said("one"), said("two")))
    with pytest.raises(SpoolUnusable, match="full"):
        file.append(spooled(said("three")))
    monkeypatch.setattr(module, "SPOOL_RECORDS_MAX", 99)
    monkeypatch.setattr(module, "SPOOL_BYTES_MAX", file.path.stat().st_size + 10)
    with pytest.raises(SpoolUnusable, match="full"):
        file.append(spooled(said("three")))
    assert contents(file) == ["one", "two"]
    monkeypatch.setattr(spool_module, "SPOOL_TOTAL_BYTES_MAX", 1)
    with pytest.raises(SpoolUnusable, match="full"):
        spool.create(BEN)
    file.close()


def test_a_place_that_cannot_be_written_is_told(data_dir: Path) -> None:
    (data_dir / "spool").write_text("not a directory")
    with pytest.raises(SpoolUnusable, match="VOICEASSIST_DATA_DIR"):
        Spool(data_dir).create(ANA)


_FULL_DISK = """
import resource, sys
from pathlib import Path
from memory.errors import SpoolUnusable
from memory.spool import Spool
from tests.unit.test_spool import ANA, contents, said, spooled

file = Spool(Path(sys.argv[1])).create(ANA)
file.append(spooled(said("before")))
size = file.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    file.append(spooled(said("does not fit " * 20)))
except SpoolUnusable as error:
    assert "Free space" in str(error), error
else:
    sys.exit("it fitted")
assert file.path.stat().st_size == size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append(spooled(said("after")))
assert contents(file) == ["before", "after"]
"""


def test_a_full_disk_takes_nothing_by_halves(data_dir: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(data_dir)], check=False, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr


# --- erasing


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection("all"), []),
        (Selection("session", session_id="s2"), ["old", "new"]),
        (Selection("since", since=NOW - timedelta(hours=1)), ["old"]),
    ],
    ids=lambda value: value.what if isinstance(value, Selection) else "",
)
@pytest.mark.parametrize("living", [True, False])
async def test_P_erased_what_is_meant_is_overwritten_in_living_and_dead_files(
    spool: Spool, selection: Selection, left: list[str], living: bool
) -> None:
    file = spool.create(ANA)
    file.append(spooled(said("old", ago_h=2), said("new"), said("other session", session="s2")))
    bystander = left_by_the_dead(spool, said("ben's"), scope=BEN)
    if not living:
        file.close()
    before = file.path.stat().st_size
    assert await spool.erase(ANA, selection) == 3 - len(left)
    assert file.path.stat().st_size == before
    data = file.path.read_bytes()
    for text in {"old", "new", "other session"} - set(left):
        assert text.encode() not in data
    assert b"ben's" in bystander.read_bytes()
    reader = file if living else spool.adopt(file.path)
    assert reader is not None
    if living:
        reader.append(spooled(said("said afterwards")))
        left = [*left, "said afterwards"]
    batch = reader.batch(9)
    assert [getattr(item.record, "content", "") for item in batch.records] == left
    assert batch.damaged == 0
    assert await spool.erase(ANA, selection) == (selection.what != "session" and living)
    assert reader.passed(batch.end)


@pytest.mark.promise("P-erased")
async def test_P_erased_what_is_damaged_is_taken_to_be_meant(spool: Spool) -> None:
    path = left_by_the_dead(spool, said("a torn secret"), said("another session", session="s2"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert await spool.erase(ANA, Selection("session", session_id="s1")) == 0
    assert b"torn secret" not in path.read_bytes()
    file = spool.adopt(path)
    assert file is not None
    assert contents(file) == ["another session"]
    file.close()


async def test_nothing_spooled_is_nothing_to_erase(spool: Spool) -> None:
    assert await spool.erase(ANA, Selection("all")) == 0
    assert not spool.directory.exists()


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_waits_for_a_replay_and_bars_the_next(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPOOL_ERASE_S", 0.0)
    monkeypatch.setattr(module, "SPOOL_GATE_S", 0.0)
    file = spool.create(ANA)
    file.append(spooled(said("one")))
    with spool.gate(ANA).shared(), pytest.raises(StoreUnavailable, match="erase again"):
        await spool.erase(ANA, Selection("all"))
    with spool.gate(ANA).alone(), pytest.raises(SpoolUnusable, match="erased"):
        file.append(spooled(said("two")))
    assert contents(file) == ["one"]
    file.close()


# --- several threads


def test_what_is_appended_while_it_is_read_is_kept(spool: Spool) -> None:
    file = spool.create(ANA)
    found: list[str] = []
    extra: list[SpoolFile] = []

    def write() -> None:
        current = file
        for number in range(60):
            items = spooled(said(f"turn {number}"))
            if not current.append(items):
                current = spool.create(ANA)
                extra.append(current)
                current.append(items)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive() or extra or file.records:
        for each in (file, *extra):
            if each.path.exists():
                batch = each.batch(7)
                found += [getattr(item.record, "content", "") for item in batch.records]
                each.passed(batch.end)
        if not writer.is_alive() and not spool.files():
            break
    writer.join()
    assert found == [f"turn {number}" for number in range(60)]
