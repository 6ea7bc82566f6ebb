"""One helper process per data directory: found, started, kept, ended, and nothing stale after a SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.errors import DataDirectoryUnusable, HostUnavailable
from memory.hosting import FileLock, HostRole, HostSpec, HostUse, answers, serving
from tests.support.tiny_host import NAME, note, notes, pid_behind, spec_of
from tests.support.using import ROOT, Users


@pytest.fixture(autouse=True)
def leave_nobody(data_dir: Path) -> Iterator[None]:
    """Whatever a failing test has left running ends here."""
    yield
    for pid in notes(data_dir, "started"):
        with contextlib.suppress(ProcessLookupError):
            if f"{data_dir}" in _command_of(pid):
                os.kill(pid, signal.SIGKILL)


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def is_running(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    return False


async def until_ended(pid: int) -> None:
    async with asyncio.timeout(20):
        while is_running(pid):
            await asyncio.sleep(0.01)


@pytest.fixture
async def users(data_dir: Path) -> AsyncIterator[Users]:
    found = Users(sys.executable, "-m", "tests.support.tiny_host", str(data_dir), "0", "use")
    yield found
    await found.end()


@pytest.fixture
async def use(data_dir: Path) -> AsyncIterator[HostUse]:
    opened = HostUse(spec_of(data_dir))
    yield opened
    opened.release()


async def test_the_first_user_starts_it_and_the_next_finds_it(data_dir: Path, use: HostUse) -> None:
    first = await pid_behind(await use.ensure())
    other = HostUse(spec_of(data_dir))
    assert await pid_behind(await other.ensure()) == first
    assert await pid_behind(await use.ensure()) == first
    assert notes(data_dir, "started") == [first]
    other.release()


async def test_five_starters_at_once_get_one_host(data_dir: Path, users: Users) -> None:
    found = await asyncio.gather(*(users.start() for _ in range(5)))
    assert len(set(found)) == 1
    assert notes(data_dir, "serving") == [int(found[0])]


async def test_many_tasks_of_one_process_get_one_host(data_dir: Path, use: HostUse) -> None:
    paths = await asyncio.gather(*(use.ensure() for _ in range(20)))
    assert set(paths) == {use.spec.socket}
    assert len(notes(data_dir, "started")) == 1


async def test_it_ends_with_its_last_user(data_dir: Path, use: HostUse) -> None:
    other = HostUse(spec_of(data_dir))
    pid = await pid_behind(await use.ensure())
    await other.ensure()
    use.release()
    assert await pid_behind(use.spec.socket) == pid
    other.release()
    await until_ended(pid)
    assert notes(data_dir, "ended") == [pid]
    assert not use.spec.socket.exists()


async def test_it_ends_when_its_last_user_is_killed(users: Users) -> None:
    pid = int(await users.start())
    assert int(await users.start()) == pid
    for process in users.processes:
        process.kill()
    await until_ended(pid)


async def test_a_user_that_comes_while_it_ends_gets_a_new_one(data_dir: Path, use: HostUse) -> None:
    role = HostRole(use.spec, idle_s=0.0)
    assert role.try_take()
    async with asyncio.timeout(10):
        await role.unused()
    coming = asyncio.create_task(use.ensure())
    await asyncio.wait([coming], timeout=0.05)
    assert not coming.done()
    assert notes(data_dir, "started") == []

    role.release()

    assert await pid_behind(await coming) == notes(data_dir, "serving")[0]
    assert len(notes(data_dir, "started")) == 1


async def test_a_killed_host_is_replaced(data_dir: Path, use: HostUse) -> None:
    first = await pid_behind(await use.ensure())
    os.kill(first, signal.SIGKILL)
    await until_ended(first)
    assert use.spec.socket.exists()  # stale

    second = await pid_behind(await use.ensure())

    assert second != first
    assert notes(data_dir, "serving") == [first, second]


async def test_locks_and_sockets_left_by_the_dead_are_no_matter(data_dir: Path, use: HostUse) -> None:
    for suffix in ("host", "start", "users", "log"):
        use.spec.path(suffix).write_text("left behind")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(use.spec.socket))
    left.listen()
    left.close()
    (use.spec.path("new")).write_text("half made")

    assert await pid_behind(await use.ensure()) == notes(data_dir, "serving")[0]


async def test_a_starter_that_is_killed_blocks_nobody(data_dir: Path, use: HostUse) -> None:
    gated = spec_of(data_dir, mode="gate")
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{_ENSURE}", str(data_dir), "gate"), cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(20):
        while not notes(data_dir, "started"):
            await asyncio.sleep(0.01)
    starter.kill()
    await starter.wait()

    later = HostUse(gated)  # kept: a use that is collected lets the host go
    waiting = asyncio.create_task(later.ensure())
    # Held before the host looks who uses it: with nobody there it would end, and another one be started.
    meanwhile = FileLock(gated.path("users"))
    assert meanwhile.try_acquire(shared=True)
    (data_dir / "gate").touch()
    pid = await pid_behind(await waiting)
    meanwhile.release()
    later.release()

    assert notes(data_dir, "serving") == [pid]


_ENSURE = """
import asyncio, sys
from pathlib import Path
from memory.hosting import HostUse
from tests.support.tiny_host import spec_of
asyncio.run(HostUse(spec_of(Path(sys.argv[1]), mode=sys.argv[2])).ensure())
"""


async def test_a_slow_start_is_waited_for(data_dir: Path) -> None:
    first, second = (HostUse(spec_of(data_dir, mode="gate")) for _ in range(2))
    waiting = [asyncio.create_task(item.ensure(timeout_s=30)) for item in (first, second)]
    async with asyncio.timeout(20):
        while not notes(data_dir, "started"):
            await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)

    (data_dir / "gate").touch()

    await asyncio.gather(*waiting)
    assert len(notes(data_dir, "started")) == 1
    first.release()
    second.release()


async def test_a_start_that_is_cancelled_goes_on_for_the_next(data_dir: Path) -> None:
    use = HostUse(spec_of(data_dir, mode="gate"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.4):
            await use.ensure()
    (data_dir / "gate").touch()

    pid = await pid_behind(await use.ensure())

    assert notes(data_dir, "serving") == [pid]
    use.release()


async def test_a_child_that_fails_says_why(data_dir: Path) -> None:
    use = HostUse(spec_of(data_dir, mode="fail"))
    use.spec.path("log").write_bytes(b"of an earlier run " * 100_000)

    with pytest.raises(
        HostUnavailable, match=r"ended with code 7. It printed: The model is missing.\nPut it"
    ) as caught:
        await use.ensure()

    assert caught.value.exit_code == 7
    assert caught.value.output == "The model is missing.\nPut it there."
    assert use.spec.path("log").stat().st_size < 1_000  # so the log is bounded
    assert "earlier run" not in str(caught.value)
    use.release()


@pytest.mark.parametrize("mode", ["hang", "deaf"])
async def test_a_child_that_hangs_is_ended(data_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr("memory.hosting._END_S", 0.2)
    use = HostUse(spec_of(data_dir, mode=mode))
    with pytest.raises(HostUnavailable, match=r"not ready within 3 s. It printed: I hang."):
        await use.ensure(timeout_s=3.0)
    (pid,) = notes(data_dir, "started")
    await until_ended(pid)
    assert not Path(f"/proc/{pid}").exists()  # nor is there a zombie
    use.release()


async def test_a_command_that_is_none_says_so(data_dir: Path) -> None:
    use = HostUse(replace(spec_of(data_dir), argv=("/nowhere/python",)))
    with pytest.raises(HostUnavailable, match="tiny process can't be started: No such file"):
        await use.ensure()
    use.release()


async def test_a_child_that_leaves_at_once_is_not_started_without_end(data_dir: Path) -> None:
    use = HostUse(spec_of(data_dir, mode="leave"))
    with pytest.raises(HostUnavailable, match="not ready"):
        await use.ensure(timeout_s=2.0)
    assert 1 <= len(notes(data_dir, "started")) < 15
    use.release()


async def test_a_host_that_does_not_answer_is_not_doubled(data_dir: Path, use: HostUse) -> None:
    silent = HostRole(use.spec, idle_s=0.0)
    assert silent.try_take()
    with pytest.raises(HostUnavailable, match=r"not ready within 0.3 s"):
        await use.ensure(timeout_s=0.3)
    assert notes(data_dir, "started") == []
    silent.release()
    assert await pid_behind(await use.ensure()) == notes(data_dir, "serving")[0]


async def test_there_is_one_host(data_dir: Path) -> None:
    first, second = (HostRole(spec_of(data_dir), idle_s=0.0) for _ in range(2))
    assert first.try_take()
    assert not second.try_take()
    first.release()
    assert second.try_take()
    second.release()


async def test_the_idle_time_begins_anew_with_each_user(data_dir: Path) -> None:
    role = HostRole(spec_of(data_dir), idle_s=0.5)
    use = HostUse(spec_of(data_dir))
    lock = FileLock(use.spec.path("users"))
    assert role.try_take()
    assert lock.try_acquire(shared=True)
    waiting = asyncio.create_task(role.unused())
    await asyncio.wait([waiting], timeout=0.7)
    assert not waiting.done()
    lock.release()
    async with asyncio.timeout(20):
        await waiting
    role.release()


def test_nothing_is_warned_of_when_a_user_ends_before_its_host(data_dir: Path) -> None:
    command = (sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", _ENSURE, str(data_dir), "serve")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_a_users_own_module_of_our_name_is_not_run(data_dir: Path) -> None:
    for name in ("memory", "redis", "agent", "tests"):
        (data_dir / f"{name}.py").write_text("raise SystemExit('not ours')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-P", "-c", _ENSURE, str(data_dir), "serve")
    subprocess.run(command, cwd=data_dir, env=environment, timeout=60, check=True)
    assert len(notes(data_dir, "serving")) == 1


# --- locks


async def test_shared_and_exclusive_locks(data_dir: Path) -> None:
    readers, writer = [FileLock(data_dir / "lock") for _ in range(2)], FileLock(data_dir / "lock")
    assert all(lock.try_acquire(shared=True) for lock in readers)
    assert not writer.try_acquire()
    with pytest.raises(HostUnavailable, match=r"lock stayed locked for 0.05 s"):
        await writer.acquire(timeout_s=0.05)
    for lock in readers:
        lock.release()
    await writer.acquire(timeout_s=5)
    assert not readers[0].try_acquire(shared=True)
    writer.release()
    writer.release()


def test_a_lock_where_none_can_be_made_says_what_to_set(data_dir: Path) -> None:
    with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
        FileLock(data_dir / "missing" / "lock").try_acquire()


# --- serving


async def test_a_socket_is_its_owners_alone_and_ends_its_connections(data_dir: Path) -> None:
    spec = HostSpec(NAME, data_dir, ())
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line)
        finally:
            ended.set()

    async with serving(spec, echo):
        assert stat.S_IMODE(spec.socket.stat().st_mode) == 0o600
        assert not spec.path("new").exists()
        reader, writer = await asyncio.open_unix_connection(str(spec.socket))
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
    async with asyncio.timeout(5):
        await ended.wait()
        assert await reader.read() == b""
    writer.close()
    assert not await answers(spec.socket)


async def test_a_user_that_goes_away_ends_nothing_else(data_dir: Path) -> None:
    spec = HostSpec(NAME, data_dir, ())

    async def exact(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()

    async with serving(spec, exact):
        _, rude = await asyncio.open_unix_connection(str(spec.socket))
        rude.write(b"hi")
        rude.close()
        reader, writer = await asyncio.open_unix_connection(str(spec.socket))
        writer.write(b"hello")
        async with asyncio.timeout(5):
            assert await reader.read() == b"hello"
        writer.close()


def test_notes_tell_processes_apart(data_dir: Path) -> None:
    note(data_dir, "here")
    assert notes(data_dir, "here") == [os.getpid()]
    assert notes(data_dir, "there") == []
