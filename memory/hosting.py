"""One helper process per data directory, behind a unix socket: found, started, kept while used, ended when not.

Three flock files in the runtime directory carry the whole agreement, so that SIGKILL of anybody leaves nothing stale:

- ``<name>.host``: held exclusively by the one process that serves; whoever holds it may replace the socket.
- ``<name>.start``: held exclusively by a user while it looks, starts the process and waits for it.
- ``<name>.users``: held shared by every user; the host ends once it holds it exclusively for its idle time.

The recall host, the speech host and the embedded server's supervisor are such processes. Above: stores, retrieval,
agent.local. Below: datadir, errors, limits.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import site
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from memory.datadir import runtime_dir
from memory.errors import DataDirectoryUnusable, HostUnavailable
from memory.limits import HOST_START_S
from memory.scheduling import as_usual

_POLL_S = 0.01
_USERS_POLL_S = 0.25
_RESPAWN_S_MAX = 1.0
_END_S = 5.0
_LOG_TAIL_BYTES = 2_000
_LOG_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What to run and where to find it. ``argv`` is a command that serves until it is unused."""

    name: str
    data_dir: Path
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold secrets

    @classmethod
    def module(cls, name: str, data_dir: Path, *words: str, env: Mapping[str, str] | None = None) -> Self:
        """A host that is ``python -m <words>`` of this interpreter, with ``env`` added to the environment.

        The working directory stays out of its module path (``-P``): a user's own ``redis.py`` there is not ours.
        """
        added = {"VOICEASSIST_DATA_DIR": str(data_dir.absolute()), **(env or {}), **dict(_path_of_checkout())}
        return cls(name, data_dir, (sys.executable, "-P", "-m", *words), tuple(added.items()))

    def path(self, suffix: str) -> Path:
        return runtime_dir(self.data_dir) / f"{self.name}.{suffix}"

    @property
    def socket(self) -> Path:
        return self.path("sock")


def _path_of_checkout() -> tuple[tuple[str, str], ...]:
    # Installed packages are found anyway; a checkout is found by whoever runs in it, but not by `-P`.
    root = str(Path(__file__).resolve().parent.parent)
    if root in site.getsitepackages() or root == site.getusersitepackages():
        return ()
    known = os.environ.get("PYTHONPATH")
    return (("PYTHONPATH", f"{root}{os.pathsep}{known}" if known else root),)


class FileLock:
    """A flock on a file. Released by ``release``, or by the kernel when the process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if nobody is in the way. Never waits.

        Raises:
            DataDirectoryUnusable: the file can't be made, or its file system has no locks.
        """
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DataDirectoryUnusable(
                f"The lock file {self.path.name} can't be used: {error.strerror or error}. "
                "Set VOICEASSIST_DATA_DIR to a local directory that this user can write, with free space."
            ) from error
        return True

    async def acquire(self, *, shared: bool = False, timeout_s: float) -> None:
        """Take the lock.

        Raises:
            HostUnavailable: somebody held it for longer than ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.try_acquire(shared=shared):  # noqa: ASYNC110 - the kernel has no event for a flock
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.release()
            raise HostUnavailable(f"{self.path.name} stayed locked for {timeout_s:g} s.") from None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        # Whoever forgets to close what holds it must not keep a server alive for as long as the process lives.
        self.release()


class HostUse:
    """This process's use of a host: holds it alive, and starts it when it is away.

    ``ensure`` may be called again at any time, by several tasks at once; close with ``release``.
    """

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self._users = FileLock(spec.path("users"))
        self._using = False
        self._one_at_a_time = asyncio.Lock()

    async def ensure(self, *, timeout_s: float = HOST_START_S) -> Path:
        """Make sure the host answers on its socket; returns the socket's path.

        Raises:
            HostUnavailable: it could not be started in time; the message has the end of what it printed.
        """
        async with self._one_at_a_time:
            if not self._using:
                await self._users.acquire(shared=True, timeout_s=timeout_s)
                self._using = True
            if not await answers(self.spec.socket):
                await self._start(timeout_s)
        return self.spec.socket

    async def _start(self, timeout_s: float) -> None:
        start = FileLock(self.spec.path("start"))
        await start.acquire(timeout_s=timeout_s)
        try:
            if not await answers(self.spec.socket):
                await self._spawn_and_wait(timeout_s)
        finally:
            start.release()

    async def _spawn_and_wait(self, timeout_s: float) -> None:
        process: _Child | None = None
        pause_s = _POLL_S * 2
        try:
            async with asyncio.timeout(timeout_s):
                while not await answers(self.spec.socket):
                    code = None if process is None else process.poll()
                    if process is not None and code:
                        output = process.output()
                        what = f"ended with code {code}. It printed: {output or '(nothing)'}"
                        raise HostUnavailable(f"The {self.spec.name} process {what}", exit_code=code, output=output)
                    # Code 0 without a socket: another process is the host, and is just starting or just ending.
                    if (process is None or code == 0) and not self._is_hosted():
                        process = await asyncio.to_thread(_Child.spawn, self.spec)
                        pause_s = min(pause_s * 1.5, _RESPAWN_S_MAX)
                    await asyncio.sleep(pause_s)
        except OSError as error:
            if not isinstance(error, TimeoutError):
                reason = error.strerror or type(error).__name__
                raise HostUnavailable(f"The {self.spec.name} process can't be started: {reason}.") from error
            output = await asyncio.to_thread(process.end) if process else ""
            what = f"was not ready within {timeout_s:g} s. It printed: {output or '(nothing)'}"
            raise HostUnavailable(f"The {self.spec.name} process {what}", output=output) from None

    def _is_hosted(self) -> bool:
        host = FileLock(self.spec.path("host"))
        try:
            # Shared, so that those who ask at once are not taken for a host by each other.
            return not host.try_acquire(shared=True)
        finally:
            host.release()

    def release(self) -> None:
        self._using = False
        self._users.release()


class _Child:
    """A host that this process has started, and that is meant to outlive it."""

    _running: ClassVar[set[subprocess.Popen[bytes]]] = set()

    def __init__(self, process: subprocess.Popen[bytes], log: Path, log_begin: int) -> None:
        self._process = process
        self._log = log
        self._log_begin = log_begin

    @classmethod
    def spawn(cls, spec: HostSpec) -> Self:
        with spec.path("log").open("ab") as log:
            if log.tell() > _LOG_BYTES_MAX:
                log.truncate(0)
            begin = log.seek(0, os.SEEK_END)
            # A session of its own: a Ctrl-C or a killed process group of whoever came first must not take it along.
            process = subprocess.Popen(  # noqa: S603 - argv is ours
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **dict(spec.env)},
            )
        as_usual(process.pid)
        # Kept here whatever becomes of the caller: a Popen that is dropped while its child lives never reaps it.
        cls._running = {child for child in cls._running if child.poll() is None} | {process}
        return cls(process, spec.path("log"), begin)

    @classmethod
    def disown(cls) -> None:
        """At exit: they live on, which is no leak to warn of."""
        for child in cls._running:
            if child.poll() is None:
                child.returncode = 0
        cls._running = set()

    def poll(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        """The end of what it printed."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
        return ""

    def end(self) -> str:
        """End it, by force if it doesn't by itself; returns the end of what it printed."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        return self.output()


atexit.register(_Child.disown)


async def answers(socket: Path, *, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections on ``socket``."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_unix_connection(str(socket))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class HostRole:
    """The serving side: at most one process per name and data directory, until nobody uses it any more."""

    def __init__(self, spec: HostSpec, *, idle_s: float) -> None:
        self.spec = spec
        self._idle_s = idle_s
        self._host = FileLock(spec.path("host"))
        self._users = FileLock(spec.path("users"))

    def try_take(self) -> bool:
        """Become the host. False: another process is. A socket left behind by a dead one is removed."""
        if not self._host.try_acquire():
            return False
        self.spec.socket.unlink(missing_ok=True)
        return True

    async def unused(self) -> None:
        """Return once nobody has used the host for the idle time. From then on newcomers wait until ``release``."""
        quiet_s = 0.0
        while True:
            free = self._users.try_acquire()
            if free and quiet_s >= self._idle_s:
                return
            self._users.release()
            quiet_s = quiet_s + _USERS_POLL_S if free else 0.0
            await asyncio.sleep(min(_USERS_POLL_S, max(self._idle_s, _POLL_S)))

    def release(self) -> None:
        """Give up the role; remove the socket first, so that nobody connects to a host that is going away."""
        self.spec.socket.unlink(missing_ok=True)
        self._host.release()
        self._users.release()  # last: who waits for it finds no host, and starts one at once


Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def serving(spec: HostSpec, on_connection: Connection) -> AsyncIterator[asyncio.Server]:
    """Serve the spec's socket, for its owner alone, while the block runs; then end every connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await on_connection(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the user went away, by whatever way; it is the user's to say so
        finally:
            tasks.discard(task)
            writer.close()

    # Bound under another name first: whoever can connect finds it with its final permissions.
    unready = spec.path("new")
    unready.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(tracked, str(unready))
    unready.chmod(0o600)
    unready.rename(spec.socket)
    try:
        yield server
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
