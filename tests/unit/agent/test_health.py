"""What the worker answers over HTTP, and how a store that is away shows."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent.health import HealthServer, overall
from agent.keeper import State

HEALTHY, SKIPPED, UNHEALTHY = State("healthy", "answers"), State("skipped", "off"), State("unhealthy", "away")


@contextlib.asynccontextmanager
async def serving(
    states: Mapping[str, State] | None = None, *, status: str = "", livekit_port: int = 1
) -> AsyncIterator[HealthServer]:
    async def found() -> Mapping[str, State]:
        return states or {"redis": HEALTHY, "recall": HEALTHY, "graphiti": SKIPPED}

    server = HealthServer("127.0.0.1", 0, states=found, status=lambda: status, livekit_port=lambda: livekit_port)
    await server.start()
    try:
        yield server
    finally:
        await server.aclose()


async def get(server: HealthServer, path: str) -> tuple[int, Any]:
    address = f"http://127.0.0.1:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        body = await answer.text()
        return answer.status, json.loads(body) if "json" in answer.content_type else body


async def test_every_part_is_told_with_its_reason() -> None:
    async with serving() as server:
        assert await get(server, "/health") == (
            200,
            {
                "status": "healthy",
                "components": {
                    "redis": {"status": "healthy", "message": "answers"},
                    "recall": {"status": "healthy", "message": "answers"},
                    "graphiti": {"status": "skipped", "message": "off"},
                },
            },
        )


async def test_figures_are_told_where_there_are_some() -> None:
    waiting = State("healthy", "moved", {"pending_users": 2, "oldest_age_s": 1.5})
    async with serving({"archive": waiting}) as server:
        _, body = await get(server, "/health")
        assert body["components"]["archive"] == {
            "status": "healthy",
            "message": "moved",
            "details": {"pending_users": 2, "oldest_age_s": 1.5},
        }


async def test_a_store_that_is_away_is_no_reason_to_take_calls_away() -> None:
    async with serving({"redis": UNHEALTHY, "recall": HEALTHY}) as server:
        status, body = await get(server, "/health")
        assert (status, body["status"]) == (200, "degraded")


@pytest.mark.parametrize(("word", "code"), [("starting", 503), ("disconnected", 503), ("draining", 200)])
async def test_the_workers_own_word_comes_first(word: str, code: int) -> None:
    async with serving({"redis": UNHEALTHY}, status=word) as server:
        status, body = await get(server, "/health")
        assert (status, body["status"]) == (code, word)


@pytest.mark.parametrize(
    ("states", "word"),
    [([], "healthy"), ([HEALTHY, SKIPPED], "healthy"), ([SKIPPED, UNHEALTHY], "degraded")],
)
def test_one_word_for_all(states: list[State], word: str) -> None:
    assert overall({str(number): state for number, state in enumerate(states)}) == word


async def test_what_livekit_answers_is_answered_too() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"active_jobs": 2}, status=201)

    app = web.Application()
    app.router.add_get("/worker", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with serving(livekit_port=runner.addresses[0][1]) as server:
            assert await get(server, "/worker") == (201, {"active_jobs": 2})
            assert (await get(server, "/"))[0] == 404
    finally:
        await runner.cleanup()


async def test_until_livekit_has_a_server_it_is_not_ready() -> None:
    async with serving(livekit_port=0) as server:
        assert (await get(server, "/"))[0] == 503
        assert (await get(server, "/metrics"))[0] == 404


async def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def found() -> Mapping[str, State]:
            return {}

        server = HealthServer("127.0.0.1", port, states=found, status=str, livekit_port=int)
        with pytest.raises(OSError, match="in use"):
            await server.start()
        await server.aclose()
