"""A machine that is gone with its worker and its calls: a worker on another one goes on with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.worker.conftest import Start
from tests.support import redis_server
from tests.support.livekit_server import LiveKitServer
from tests.support.redis_server import DURABLE
from tests.support.room_clients import in_room

GONE_S_MAX = 45.0  # LiveKit itself takes 20 s to believe that an agent is gone

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def shared(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The stores that all machines use, as settings; this process has them too."""
    with redis_server.running(*DURABLE) as server:
        found = {"REDIS_URL": server.url(), "DATABASE_URL": postgres_url.replace("+asyncpg", "")}
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.mark.promise("P-durable")
async def test_P_durable_a_worker_on_another_machine_goes_on_with_the_calls_of_one_that_is_gone(
    livekit: LiveKitServer, start: Start, shared: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    first = await start(**shared).registered()
    async with in_room(livekit, "machine-gone", "emma", microphone=False) as client:
        agent = await client.agent()
        await client.type("My parrot is called Mango.")
        await client.reads("Mango")
        other = await start(**shared).registered()  # with a data directory, and locks, of its own
        gone_at = time.monotonic()
        first.end()  # all of its processes at once
        while await client.agent() == agent:
            await client.until_left(agent, within_s=GONE_S_MAX)
        back_s = client.joined[-1][1] - gone_at
        record_property("agent_back_s", round(back_s, 2))
        assert back_s < GONE_S_MAX
        before = len(client.said_by_agent())
        await client.type("What is the name of my parrot?")
        await client.reads("Mango", after=before)
        assert len([identity for identity, _ in client.joined]) == 2
    assert await other.said_by("emma", turns=2) == ["My parrot is called Mango.", "What is the name of my parrot?"]
