"""A real livekit-server of the test run's own: on free ports of this machine's loopback, with a key of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

from livekit import api
from livekit.protocol import models

VERSION = "v1.13.5"
MODULE = f"github.com/livekit/livekit-server/cmd/server@{VERSION}"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "livekit-unified-memory" / "bin"

Kind = Literal["standard", "egress", "ingress", "sip", "agent"]

_INSTALL_S = 600.0
_START_S = 20.0
_POLL_S = 0.02


def binary() -> Path | str:
    """The server's binary, built if Go is there (about 80 s, once); else the reason why there is none."""
    named = os.environ.get("TEST_LIVEKIT_SERVER")
    for found in (named, CACHE / "server", shutil.which("livekit-server")):
        if found and Path(found).is_file():
            return Path(found)
    go = shutil.which("go")
    if go is None:
        return "needs livekit-server: install Go, or name a binary in TEST_LIVEKIT_SERVER"
    CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "install", MODULE],
        env={**os.environ, "GOBIN": str(CACHE)},
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    return CACHE / "server" if done.returncode == 0 else f"livekit-server can't be built: {done.stderr[-500:]}"


class LiveKitServer:
    """One running server. ``aclose`` the ``api()`` of it; ``kill`` and ``start`` again keep the ports."""

    key = "testkey"
    secret = "a-secret-of-this-test-run-only-01234567"

    def __init__(self, program: Path, home: Path) -> None:
        self._program, self._home = program, home
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._udp_port = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a worker needs to find it."""
        return {"LIVEKIT_URL": self.url, "LIVEKIT_API_KEY": self.key, "LIVEKIT_API_SECRET": self.secret}

    def start(self) -> None:
        config = {
            "port": self._port,
            "bind_addresses": ["127.0.0.1"],
            "keys": {self.key: self.secret},
            "rtc": {"udp_port": self._udp_port, "tcp_port": 0, "node_ip": "127.0.0.1", "use_external_ip": False},
            "logging": {"level": "info"},
        }
        with (self._home / "livekit-server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--config-body", json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env={"PATH": os.environ["PATH"]},  # it would take REDIS_HOST for its own
            )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            address = self.url.replace("ws", "http", 1)
            with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(address, timeout=1):
                return
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(_POLL_S)
        raise RuntimeError(f"livekit-server did not start: {self.log()[-2000:]}")

    def log(self) -> str:
        return (self._home / "livekit-server.log").read_text(errors="replace")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It answers nobody within the block, and keeps what comes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def api(self) -> api.LiveKitAPI:
        """The server's API, with its keys; belongs to the running loop, and is the caller's to close."""
        return api.LiveKitAPI(self.url, self.key, self.secret)

    def token(self, identity: str, room: str, *, kind: Kind = "standard", **options: Any) -> str:
        """A signed token. ``attributes``; ``agent``: the job's metadata, by room configuration; ``grants``: more of
        them; ``departure_s``: how long the room stays when nobody is in it any more."""
        token = api.AccessToken(self.key, self.secret).with_identity(identity).with_kind(kind)
        token = token.with_grants(api.VideoGrants(room_join=True, room=room, **options.get("grants", {})))
        if attributes := options.get("attributes"):
            token = token.with_attributes(attributes)
        agent, departure_s = options.get("agent"), options.get("departure_s")
        if agent is not None or departure_s is not None:
            agents = [api.RoomAgentDispatch(metadata=agent)] if agent is not None else []
            token = token.with_room_config(api.RoomConfiguration(agents=agents, departure_timeout=departure_s or 0))
        return token.to_jwt()

    async def participants(self, room: str) -> list[models.ParticipantInfo]:
        """Who is in a room, as the server sees it; nobody where there is no such room."""
        lkapi = self.api()
        try:
            answer = await lkapi.room.list_participants(api.ListParticipantsRequest(room=room))
            return list(answer.participants)
        except api.TwirpError as error:
            if error.code == api.TwirpErrorCode.NOT_FOUND:
                return []
            raise
        finally:
            await lkapi.aclose()

    async def set_attributes(self, room: str, identity: str, attributes: dict[str, str]) -> None:
        """Set a participant's attributes, as the server may."""
        lkapi = self.api()
        try:
            await lkapi.room.update_participant(
                api.UpdateParticipantRequest(room=room, identity=identity, attributes=attributes)
            )
        finally:
            await lkapi.aclose()

    async def close(self, room: str) -> None:
        """Close a room, whoever is in it."""
        lkapi = self.api()
        try:
            await lkapi.room.delete_room(api.DeleteRoomRequest(room=room))
        finally:
            await lkapi.aclose()

    async def until_gone(self, room: str, *, within_s: float = 60.0) -> None:
        """Wait until a room is closed."""
        async with asyncio.timeout(within_s):
            while await self.participants(room):
                await asyncio.sleep(0.1)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(program: Path) -> Iterator[LiveKitServer]:
    """A server for as long as the block runs."""
    home = Path(mkdtemp(prefix="vm-lk-"))
    server = LiveKitServer(program, home)
    try:
        server.start()
        yield server
    finally:
        server.kill()  # asked to end, it would wait for its rooms
        shutil.rmtree(home, ignore_errors=True)
