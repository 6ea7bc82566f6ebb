"""Snapshots: written when it is worth it, used on the next start, gone with what is erased, dropped when damaged."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from memory.errors import SnapshotError
from memory.limits import (
    SNAPSHOT_EVERY_S,
    SNAPSHOT_KEEP_S,
    SNAPSHOT_QUIET_S,
    SNAPSHOT_SWEEP_S,
    SNAPSHOT_TURNS_MIN,
)
from memory.models import Recall
from memory.ports import Selection
from memory.retrieval.engine import RecallEngine
from memory.retrieval.snapshot_files import SnapshotHeader, SnapshotStore, remove_snapshot, snapshot_directory
from tests.support.recalls import WordEmbedder, scope_of, settle, texts
from tests.unit.retrieval_host.conftest import Bench

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"
TURNS = [FACT, *(f"Remark number {number} on the weather." for number in range(SNAPSHOT_TURNS_MIN))]
ALL = Selection("all")


async def recall(engine: RecallEngine, query: str = QUESTION) -> Recall:
    return await engine.recall(scope_of(), query, limit=8, budget_ms=300)


async def said_and_saved(bench: Bench) -> None:
    """TURNS are in log and archive, have vectors, and a snapshot was written at the end of an engine's life."""
    await bench.say(*TURNS)
    await bench.archive_all()
    engine = bench.another(snapshots=bench.snapshots())
    await recall(engine)
    while bench.embedder.asked_for(TURNS[-1]) + bench.embedder.asked_for(TURNS[1]) < 2:
        await bench.clock.advance(1)
    while engine.stats().get("embed.texts", 0) < len(TURNS):
        await bench.clock.advance(1)
    await engine.aclose()
    assert len(await bench.snapshots().headers()) == 1


def files(bench: Bench) -> list[Path]:
    return sorted(path for path in snapshot_directory(bench.data_dir).iterdir() if path.name != "key")


async def until(happened: object, bench: Bench) -> None:
    async with asyncio.timeout(10):
        while not happened():  # type: ignore[operator]
            await bench.clock.advance(1)
            await asyncio.sleep(0.001)


async def test_a_new_engine_starts_from_the_snapshot_and_embeds_nothing_twice(bench: Bench) -> None:
    await said_and_saved(bench)
    bench.embedder.calls.clear()
    bench.archive.trouble.reads.clear()
    engine = bench.another(snapshots=bench.snapshots())
    found = await recall(engine)
    assert texts(found)[0] == FACT
    assert found.degraded == ()
    assert bench.embedder.calls == [[QUESTION]]
    assert bench.archive.trouble.reads == []
    await engine.aclose()


async def test_what_was_said_after_the_snapshot_is_read_on_from_log_and_archive(bench: Bench) -> None:
    await said_and_saved(bench)
    await bench.say("My dog is called Rex.")
    await bench.archive_all()
    await bench.say("My horse is called Ada.")
    bench.archive.trouble.reads.clear()
    engine = bench.another(snapshots=bench.snapshots())
    for name, kind in (("Rex", "dog"), ("Ada", "horse"), ("Biscuit", "cat")):
        assert texts(await recall(engine, f"What is my {kind} called?"))[0] == f"My {kind} is called {name}."
    assert 0 not in bench.archive.trouble.reads
    await engine.aclose()


async def test_files_are_for_the_owner_alone_and_name_nobody(bench: Bench) -> None:
    await said_and_saved(bench)
    directory = snapshot_directory(bench.data_dir)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "ana" not in path.name
    assert len((directory / "key").read_bytes()) == 32
    assert [path.suffix for path in files(bench)] == [".idx"]


@pytest.mark.promise("P-erased")
async def test_P_erased_erase_removes_the_snapshot_before_it_returns(bench: Bench) -> None:
    await said_and_saved(bench)
    engine = bench.another(snapshots=bench.snapshots())
    await recall(engine)
    await bench.archive.erase(scope_of(), ALL)
    await bench.log.erase(scope_of(), ALL)
    assert await engine.erase(scope_of(), ALL) == len(TURNS)
    assert files(bench) == []
    assert texts(await recall(engine)) == []
    await engine.aclose()
    assert files(bench) == []


@pytest.mark.promise("P-erased")
async def test_P_erased_a_snapshot_of_before_an_erasure_is_neither_used_nor_kept(bench: Bench) -> None:
    await said_and_saved(bench)
    await bench.archive.erase(scope_of(), ALL)
    await bench.log.erase(scope_of(), ALL)
    engine = bench.another(snapshots=bench.snapshots())
    assert texts(await recall(engine)) == []
    assert files(bench) == []
    await engine.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_snapshots_are_swept_for_erasures_made_elsewhere(bench: Bench) -> None:
    await said_and_saved(bench)
    engine = bench.another(snapshots=bench.snapshots())
    await engine.start()
    await bench.archive.erase(scope_of(), ALL)
    await bench.log.erase(scope_of(), ALL)
    await bench.clock.advance(SNAPSHOT_SWEEP_S)
    await until(lambda: not files(bench), bench)
    await engine.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_a_snapshot_being_written_during_an_erasure_does_not_stay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.say(*TURNS)
    snapshots = bench.snapshots()
    engine = bench.another(snapshots=snapshots)
    await recall(engine)
    writing, go_on = asyncio.Event(), asyncio.Event()
    write = snapshots.write

    async def slow_write(header: SnapshotHeader, body: bytes, **rest: object) -> bool:
        writing.set()
        await go_on.wait()
        return await write(header, body, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "write", slow_write)
    closing = asyncio.create_task(engine.aclose())
    await writing.wait()
    await bench.archive.erase(scope_of(), ALL)
    await bench.log.erase(scope_of(), ALL)
    await engine.erase(scope_of(), ALL)
    go_on.set()
    await closing
    assert files(bench) == []


async def test_a_quiet_user_with_enough_news_is_saved_in_between(bench: Bench) -> None:
    engine = bench.another(snapshots=bench.snapshots())
    await bench.say(*TURNS[: SNAPSHOT_TURNS_MIN // 4])
    await recall(engine)
    await bench.clock.advance(SNAPSHOT_QUIET_S * 2)
    assert files(bench) == []
    await bench.say(*TURNS)
    await recall(engine)
    await until(lambda: files(bench), bench)
    await engine.aclose()


async def test_an_index_that_makes_room_is_saved_first(bench: Bench) -> None:
    engine = bench.another(snapshots=bench.snapshots(), users_max=1)
    await bench.say(*TURNS)
    await bench.say("My cat is called Crumb.", scope=scope_of("ben"), session="b")
    await recall(engine)
    await engine.recall(scope_of("ben"), QUESTION, limit=8, budget_ms=300)
    await until(lambda: files(bench), bench)
    assert texts(await recall(engine))[0] == FACT
    await engine.aclose()


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "empty", "swapped"])
async def test_a_damaged_snapshot_is_dropped_and_the_index_built_anew(bench: Bench, damage: str) -> None:
    await said_and_saved(bench)
    (path,) = files(bench)
    data = bytearray(path.read_bytes())
    if damage == "swapped":
        other = scope_of("ben")
        await bench.say("My cat is called Crumb.", scope=other, session="b")
        (path.parent / path.name).rename(path.parent / "aside")
        remove_snapshot(path.parent, other)
        SnapshotStore(path.parent)._path(other).write_bytes(data)
        engine = bench.another(snapshots=bench.snapshots())
        found = await engine.recall(other, QUESTION, limit=8, budget_ms=300)
        assert texts(found) == ["My cat is called Crumb."]
        await engine.aclose()
        return
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "header":
        data[14] ^= 0xFF
    path.write_bytes(b"" if damage == "empty" else bytes(data[: len(data) // 2] if damage == "cut" else data))
    engine = bench.another(snapshots=bench.snapshots())
    assert texts(await recall(engine))[0] == FACT
    assert bench.archive.trouble.reads[-1] == 0
    await engine.aclose()


async def test_another_model_makes_other_vectors(bench: Bench) -> None:
    await said_and_saved(bench)
    embedder = WordEmbedder(model="other words")
    engine = bench.another(snapshots=bench.snapshots(), embedder=embedder)
    await recall(engine)
    await until(lambda: sum(map(embedder.asked_for, TURNS)) >= len(TURNS), bench)
    await engine.aclose()


async def test_a_snapshot_made_from_other_stores_is_not_used(bench: Bench) -> None:
    await said_and_saved(bench)
    bench.archive.trouble.reads.clear()
    elsewhere = SnapshotStore(snapshot_directory(bench.data_dir), origin="another database")
    engine = bench.another(snapshots=elsewhere)
    assert texts(await recall(engine))[0] == FACT
    assert bench.archive.trouble.reads[0] == 0
    await engine.aclose()


async def test_before_the_model_is_loaded_a_snapshot_serves_keywords_and_keeps_its_vectors(bench: Bench) -> None:
    await said_and_saved(bench)
    bench.embedder.calls.clear()
    engine = bench.another(snapshots=bench.snapshots(), embedder_ready=False)
    found = await recall(engine)
    assert texts(found)[0] == FACT
    assert found.degraded == ("vectors",)
    engine.embedder_is_ready()
    assert (await recall(engine)).degraded == ()
    assert bench.embedder.calls == [[QUESTION]]
    await engine.aclose()


async def test_a_disk_that_can_not_be_written_costs_the_snapshots_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("memory.retrieval.snapshot_files._replace", full)
    await bench.say(*TURNS)
    engine = bench.another(snapshots=bench.snapshots())
    assert texts(await recall(engine))[0] == FACT
    await engine.aclose()
    assert files(bench) == []


# -- the files themselves


async def test_a_snapshot_that_can_not_be_written_is_tried_again_later_and_is_no_other_users_trouble(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, tried = SnapshotStore.write, list[str]()

    async def refusing(store: SnapshotStore, header: SnapshotHeader, body: bytes, **rest: Any) -> bool:
        tried.append(header.scope.user_id)
        if header.scope == scope_of():
            raise OSError(28, "No space left on device")
        return await write(store, header, body, **rest)

    monkeypatch.setattr(SnapshotStore, "write", refusing)
    engine, ben = bench.another(snapshots=bench.snapshots()), scope_of("ben")
    await bench.say(*TURNS)
    await bench.say(*TURNS, scope=ben, user="ben")
    await recall(engine)
    await engine.recall(ben, QUESTION, limit=8, budget_ms=300)
    await until(lambda: "ben" in tried, bench)
    for _ in range(int(SNAPSHOT_EVERY_S) - 1):
        await bench.clock.advance(1)
        await asyncio.sleep(0.001)
    assert tried.count("ana") <= 2
    assert caplog.text.count("can't be written") <= 2
    await engine.aclose()


def header(user: str = "ana", **fields: object) -> SnapshotHeader:
    values = {"origin": "here", "epoch": 1, "position": "7", "cursor": 3, "model": "m", **fields}
    return SnapshotHeader(scope_of(user), **values)  # type: ignore[arg-type]


async def test_what_is_written_is_read(data_dir: Path) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    assert await store.read(scope_of()) is None
    assert await store.write(header(), b"body", still_wanted=lambda: True)
    assert await store.read(scope_of()) == (header(), b"body")
    assert await store.read(scope_of("ben")) is None
    assert await store.headers() == [header()]
    assert await store.remove(scope_of())
    assert not await store.remove(scope_of())
    assert await store.headers() == []


async def test_what_is_not_wanted_any_more_is_not_written(data_dir: Path) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    assert not await store.write(header(), b"body", still_wanted=lambda: False)
    assert await store.read(scope_of()) is None


async def test_removal_takes_an_unfinished_file_along(data_dir: Path) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    await store.write(header(), b"body", still_wanted=lambda: True)
    (path,) = snapshot_directory(data_dir).glob("*.idx")
    path.with_suffix(".new").write_bytes(b"half")
    await store.remove(scope_of())
    assert list(snapshot_directory(data_dir).iterdir()) == []


async def test_the_key_stays_the_same_and_a_cut_one_is_made_anew(data_dir: Path) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    key = await store.key()
    assert len(key) == 32
    assert await SnapshotStore(snapshot_directory(data_dir)).key() == key
    (snapshot_directory(data_dir) / "key").write_bytes(key[:5])
    assert len(await store.key()) == 32


async def test_old_files_are_pruned_and_foreign_ones_removed(data_dir: Path) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    await store.write(header("ana"), b"a", still_wanted=lambda: True)
    await store.write(header("ben"), b"b", still_wanted=lambda: True)
    old = store._path(scope_of("ana"))
    os.utime(old, (1, 1))
    assert await store.prune(older_than_s=SNAPSHOT_KEEP_S) == 1
    (snapshot_directory(data_dir) / "junk.idx").write_bytes(b"junk")
    assert [each.scope.user_id for each in await store.headers()] == ["ben"]
    assert not (snapshot_directory(data_dir) / "junk.idx").exists()


@pytest.mark.parametrize("data", [b"", b"x", b"VMSNAP1\n", b"VMSNAP1\n\xff\xff\xff\xff", b"VMSNAP1\n\0\0\0\x02{}"])
async def test_a_header_that_is_none_is_refused(data_dir: Path, data: bytes) -> None:
    store = SnapshotStore(snapshot_directory(data_dir))
    await store.write(header(), b"", still_wanted=lambda: True)
    store._path(scope_of()).write_bytes(data)
    with pytest.raises(SnapshotError):
        await store.read(scope_of())
    await settle()
