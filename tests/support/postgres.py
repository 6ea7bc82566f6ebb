"""A PostgreSQL of the test run's own: a cluster in a temporary directory, on a unix socket, or a loopback port too."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_START_S = 60
_HOST = "127.0.0.1"


def binaries() -> Path | None:
    """The directory of the newest installed PostgreSQL server, or ``None``."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (path := shutil.which("initdb")):
        found = [Path(path).resolve().parent]
    return max(found, key=lambda path: path.parent.name, default=None)


class Postgres:
    """One running server. ``url()`` is a SQLAlchemy URL of a database; ``kill()`` is SIGKILL of every process of it.

    ``port``: where it listens by TCP, and ``url()`` leads to; 0: nowhere.
    """

    def __init__(self, bin_dir: Path, home: Path, port: int = 0) -> None:
        self._bin, self._home, self._data, self.port = bin_dir, home, home / "data", port

    def url(self, database: str = "postgres") -> str:
        if self.port:
            return f"postgresql+asyncpg://postgres@{_HOST}:{self.port}/{database}"
        return f"postgresql+asyncpg://postgres@/{database}?host={self._home}"

    def create_database(self, name: str) -> str:
        where = ("-h", str(self._home), *(("-p", str(self.port)) if self.port else ()))
        self._run("createdb", *where, "-U", "postgres", name)
        return self.url(name)

    def init(self) -> None:
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        address = f"-c listen_addresses={_HOST} -c port={self.port}" if self.port else "-c listen_addresses=''"
        options = f"{address} -c unix_socket_directories='{self._home}'"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-o", options, "-l", str(self._home / "log"), "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def kill(self) -> None:
        """SIGKILL, at once, of the server and of everything it has started."""
        # Only here: psutil is no dependency of the project.
        import psutil

        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=_START_S)

    def _run(self, program: str, *words: str) -> None:
        # PostgreSQL refuses to run as root
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
        # Output goes to a file: the server inherits it, and a pipe would be waited for until the server ends.
        with (self._home / "out").open("a") as out:
            command = [*prefix, str(self._bin / program), *words]
            done = subprocess.run(command, stdout=out, stderr=out, timeout=_START_S, check=False, cwd=self._home)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(self._home / 'out').read_text()[-2000:]}")


@contextlib.contextmanager
def stoppable(port: int = 0) -> Iterator[Postgres]:
    """One that the test may stop and start, and that runs again at the block's end; the test is skipped without it."""
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("needs a PostgreSQL server of its own, to stop it")
    with running(bin_dir, port) as own:
        yield own
        with contextlib.suppress(RuntimeError):  # it runs
            own.start()


@contextlib.contextmanager
def running(bin_dir: Path, port: int = 0) -> Iterator[Postgres]:
    """A fresh server for the duration of the block."""
    home = Path(tempfile.mkdtemp(prefix="pg-"))
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(home, account.pw_uid, account.pw_gid)
    server = Postgres(bin_dir, home, port)
    try:
        server.init()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
