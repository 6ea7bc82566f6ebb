"""Ways in which a server is away: nobody listens, it never answers, its SYNs are dropped, its answers are held back, or
its name doesn't resolve."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from memory.settings import Settings
from memory.spool import Spool
from memory.stores.inmemory import InMemoryArchive
from memory.wiring import Archive, Backend, open_sessions
from tests.support.redis_server import HOST
from tests.support.sessions import ScriptedRetriever

NOWHERE = "redis.invalid"  # by RFC 6761 no resolver knows such a name

_FILL_MAX = 64


@contextlib.contextmanager
def closed(_: int) -> Iterator[None]:
    """Connections are refused: nobody listens."""
    yield


@contextlib.contextmanager
def silent(port: int) -> Iterator[None]:
    """Connections to ``port`` are made, and nobody ever says anything on them."""
    with _listening(port, 64):
        yield


@contextlib.contextmanager
def dropping(port: int) -> Iterator[None]:
    """SYNs to ``port`` are dropped, as by a firewall: its backlog is full, and nobody takes anything off it."""
    with _listening(port, 0), contextlib.ExitStack() as fillers:
        for _ in range(_FILL_MAX):
            filler = fillers.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect((HOST, port))
            except TimeoutError:
                break
        else:
            raise RuntimeError("the backlog never was full")
        yield


@contextlib.contextmanager
def resolving(name: str) -> Iterator[None]:
    """``name`` is this machine's, in this process; before, the system's resolver was asked for it."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **options: Any) -> Any:
        return resolve(HOST if host == name else host, *more, **options)

    socket.getaddrinfo = resolved
    try:
        yield
    finally:
        socket.getaddrinfo = resolve


@contextlib.contextmanager
def _listening(port: int, backlog: int) -> Iterator[None]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(backlog)
        yield


class Gateway:
    """A way to the server at ``target`` on a port of its own. ``open`` cleared, the server's answers are held back."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self._target = target

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Gateway]:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._pump(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(HOST, self._target)

        async def answers() -> None:
            while data := await behind.read(65_536):
                await self.open.wait()
                writer.write(data)

        answering = asyncio.create_task(answers())
        try:
            while data := await reader.read(65_536):
                self.asked.set()
                ahead.write(data)
        finally:
            answering.cancel()
            ahead.close()


def opener(retriever: ScriptedRetriever) -> Callable[[Settings], Awaitable[Backend]]:
    """Opens the Redis that settings name, and the spool, but no recall host."""

    async def opened(settings: Settings) -> Backend:
        closers: list[Callable[[], Awaitable[None]]] = []
        try:
            sessions = await open_sessions(settings, closers)
        except BaseException:
            while closers:
                await closers.pop()()
            raise

        async def archive() -> Archive:
            return InMemoryArchive()

        return Backend(sessions, retriever, archive, closers, Spool(settings.data_dir))

    return opened


def spool_files(data_dir: Path) -> list[Path]:
    return Spool(data_dir).files()
