"""The worker's own answers over HTTP, on one port: /health for people and probes, and what LiveKit's server answers.

``GET /health``: ``{"status": …, "components": {name: {"status": …, "message": …, "details": {name: figure}}}}``,
``details`` where there are some. With 200, as long as calls can be held: "healthy", "degraded" (a store is away, and
calls go on without it), "draining" (calls go on, no new ones come). With 503: "starting", and "disconnected" (LiveKit
can't be reached at all). ``GET /`` and ``GET /worker`` are LiveKit's own, as its tools expect them. An ingestion worker
answers /health alone. Above: worker, commands.ingest. Below: keeper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from aiohttp import web

from agent.keeper import State

_ASK_S = 2.0
_UNABLE = ("starting", "disconnected")

States = Callable[[], Awaitable[Mapping[str, State]]]


class HealthServer:
    """Serves while the worker runs. ``status`` is the worker's own word, "" for nothing special.

    Making one does nothing yet. ``start`` raises OSError where the port is taken; close with ``aclose``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        states: States,
        status: Callable[[], str],
        livekit_port: Callable[[], int] | None = None,
    ) -> None:
        self._host, self._port = host, port
        self._states, self._status, self._livekit_port = states, status, livekit_port
        app = web.Application()
        app.router.add_get("/health", self._health)
        if livekit_port is not None:
            app.router.add_get("/", self._livekit)
            app.router.add_get("/worker", self._livekit)
        self._runner = web.AppRunner(app, access_log=None)
        self.port = port

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def aclose(self) -> None:
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        states = await self._states()
        status = self._status() or overall(states)
        body = {"status": status, "components": {name: _told(state) for name, state in states.items()}}
        return web.json_response(body, status=503 if status in _UNABLE else 200)

    async def _livekit(self, request: web.Request) -> web.Response:
        assert self._livekit_port is not None
        url = f"http://127.0.0.1:{self._livekit_port()}{request.path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as session,
                session.get(url) as answer,
            ):
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type=answer.content_type or "text/plain"
                )
        except (aiohttp.ClientError, OSError, TimeoutError):
            return web.Response(status=503, text="the worker is starting, or ending")


def _told(state: State) -> dict[str, object]:
    told = dataclasses.asdict(state)
    return told if told["details"] else {"status": state.status, "message": state.message}


def overall(states: Mapping[str, State]) -> str:
    """One word for all parts."""
    return "degraded" if any(state.status == "unhealthy" for state in states.values()) else "healthy"
