"""What a worker says of a graph whose SYNs are dropped: within its bound, at every look, and until it is there."""

from __future__ import annotations

import asyncio

import pytest

from agent.keeper import Keeper
from agent.settings import load
from tests.support import graph_server, outages


@pytest.mark.case("L39")
async def test_L39_a_black_holed_graph_is_told_within_its_bound_and_back_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with graph_server.running() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("FALKORDB_HOST", "127.0.0.1")
        monkeypatch.setenv("FALKORDB_PORT", str(server.port))
        keeper = Keeper(load())
        try:
            server.kill()
            with outages.dropping(server.port):
                for _ in range(3):
                    async with asyncio.timeout(10):  # a bound for a busy machine: a part is given a second
                        state = (await keeper.states())["graphiti"]
                    assert state.status == "unhealthy"
                    assert state.message
            server.start()
            async with asyncio.timeout(30):
                while (state := (await keeper.states())["graphiti"]).status != "healthy":
                    assert state.message
            assert state.message == "FalkorDB connected"

            server.kill()  # and lost in the middle
            with outages.dropping(server.port):
                for _ in range(2):
                    async with asyncio.timeout(10):
                        assert (await keeper.states())["graphiti"].status == "unhealthy"
            server.start()
            async with asyncio.timeout(30):
                while (await keeper.states())["graphiti"].status != "healthy":
                    pass
        finally:
            async with asyncio.timeout(30):
                await keeper.aclose()
