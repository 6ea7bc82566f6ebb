"""Redis away, for real: restarted, full, killed, black-holed, slow, nameless. Calls go on, no turn lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from livekit.agents import Agent, AgentSession

from memory import UnifiedMemoryService
from memory.clock import Clock, SystemClock
from memory.counters import Counters
from memory.limits import SPOOL_AFTER_S
from memory.models import MemoryEntry, Scope
from memory.plugin import AttachedMemory, attach
from memory.ports import Selection
from memory.privacy.erasure import erase
from memory.replay import replay_left
from memory.settings import load_settings
from memory.spool import Spool
from memory.spool_frames import Spooled
from memory.stores.inmemory import InMemoryArchive
from memory.stores.redis import RedisSessionStore
from memory.wiring import open_backend
from tests.integration.plugin_child import SESSION_ID, turn_text
from tests.support import outages, redis_server
from tests.support.outages import NOWHERE, Gateway, spool_files
from tests.support.redis_server import DURABLE, HOST, RedisServer
from tests.support.remembering import remembering
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, HandClock, ScriptedRetriever, new_session
from tests.support.voice import ManualOutput, SilentMicrophone, eventually

ANA = Scope(org_id="default", agent_id="assistant", user_id="ana")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server.running(*getattr(request, "param", DURABLE)) as running:
        yield running


@pytest.fixture(autouse=True)
def without_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")


class Caller:
    """A call of ana's on the Redis at ``url``: typed turns, spoken replies."""

    def __init__(self, session: AgentSession[Any], memory: AttachedMemory, output: ManualOutput) -> None:
        self.session, self.memory, self.output = session, memory, output
        self.counters = memory.counters

    async def greeted(self) -> None:
        await self.session.say("Welcome.")

    async def says(self, text: str) -> None:
        async with asyncio.timeout(30):
            await self.session.run(user_input=text)


@contextlib.asynccontextmanager
async def calling(
    url: str, monkeypatch: pytest.MonkeyPatch, *, clock: Clock | None = None, retriever: ScriptedRetriever | None = None
) -> AsyncIterator[tuple[Caller, ScriptedLLM]]:
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setattr("memory.plugin.attached.open_backend", outages.opener(retriever or ScriptedRetriever()))
    model, output = ScriptedLLM(["All right."] * 50), ManualOutput(instant=True)
    session, agent = new_session(model), Agent(instructions=INSTRUCTIONS)
    session.input.audio, session.output.audio = SilentMicrophone(), output
    memory = attach(session, agent, user_id="ana", session_id="call-1", clock=clock)
    await session.start(agent, record=False)
    try:
        yield Caller(session, memory, output), model
    finally:
        await session.aclose()
        await memory.aclose()


async def logged(server: RedisServer, scope: Scope = ANA) -> list[str]:
    """What the user said, as the log has it."""
    store = await RedisSessionStore.connect(server.url())
    try:
        found = (await store.read(scope, after="", limit=500)).records
    finally:
        await store.aclose()
    records = [item.record for item in found]
    return [entry.content for entry in records if isinstance(entry, MemoryEntry) and entry.role == "user"]


def turns(first: int, last: int) -> list[str]:
    return [f"this is turn {number}" for number in range(first, last + 1)]


# --- in mid-call

keeping_or_not = pytest.mark.parametrize(
    "server", [DURABLE, ("--appendonly", "no")], ids=["aof", "no-aof"], indirect=True
)


async def stored_and_killed(caller: Caller, server: RedisServer, said: list[str]) -> None:
    for text in said:
        await caller.says(text)
    assert await caller.memory.flush(30)
    server.kill()


@pytest.mark.case("L35")
@pytest.mark.promise("P-durable")
@keeping_or_not
async def test_L35_P_durable_a_redis_restarted_in_mid_call_gets_every_later_turn_once(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeps = "no" not in server.options
    async with calling(server.url(), monkeypatch) as (caller, _):
        await stored_and_killed(caller, server, turns(1, 5))
        for text in turns(6, 8):
            await caller.says(text)
        assert caller.counters["record.spooled"] >= 3
        assert len(spool_files(data_dir)) == 1
        server.start()
        await caller.says("this is turn 9")
        assert await caller.memory.flush(30)
        assert await logged(server) == turns(1 if keeps else 6, 9)
        assert caller.counters["record.lost"] == 0
    assert spool_files(data_dir) == []
    assert ("has forgotten this session" in caplog.text) != keeps


@pytest.mark.case("L35")
@pytest.mark.promise("P-durable")
@keeping_or_not
async def test_L35_P_durable_what_a_redis_has_lost_between_two_turns_is_told_with_the_turns(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is back before anybody has missed it."""
    keeps = "no" not in server.options
    async with calling(server.url(), monkeypatch) as (caller, _):
        await stored_and_killed(caller, server, turns(1, 5))
        server.start()
        await caller.says("this is turn 6")
        assert await caller.memory.flush(30)
        assert await logged(server) == turns(1 if keeps else 6, 6)
        assert (caller.counters["record.forgotten"] > 0) != keeps
        assert caller.counters["record.lost"] == 0
    assert ("has forgotten this session" in caplog.text) != keeps
    assert "this is turn" not in caplog.text


@pytest.mark.case("L35")
async def test_L35_a_full_redis_refuses_and_has_every_turn_once_there_is_room(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(server.client()) as client:
        async with calling(server.url(), monkeypatch) as (caller, _):
            await caller.says("this is turn 1")
            assert await caller.memory.flush(30)
            client.config_set("maxmemory", 1)
            for text in turns(2, 4):
                await caller.says(text)
            await eventually(lambda: caller.counters["record.retries"] > 0, "a refusal")
            assert caller.counters["record.spooled"] >= 3
            client.config_set("maxmemory", 0)
            assert await caller.memory.flush(30)
            assert await logged(server) == turns(1, 4)
    assert spool_files(data_dir) == []


# --- at the start


@pytest.mark.case("L39")
@pytest.mark.promise("P-silent")
@pytest.mark.parametrize(
    ("how", "host"),
    [(outages.closed, HOST), (outages.silent, HOST), (outages.dropping, HOST), (outages.closed, NOWHERE)],
    ids=["closed", "silent", "dropped", "unresolved"],
)
async def test_L39_P_silent_a_redis_that_is_away_at_the_start_delays_nothing_and_joins_later(
    server: RedisServer, how: Any, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    clock = HandClock()
    async with contextlib.AsyncExitStack() as stack:
        with how(server.port):
            url = server.url().replace(HOST, host)
            call = calling(url, monkeypatch, clock=clock, retriever=remembering())
            caller, model = await stack.enter_async_context(call)
            await without_memory_yet(caller, clock)
        server.start()
        stack.enter_context(outages.resolving(host))
        await joined(caller, clock)
        await caller.says("this is turn 3")
        assert "Biscuit" in model.requests[-1].last_user
        assert await flushed(caller, clock)
        assert await logged(server) == turns(1, 3)


@pytest.mark.case("L39")
@pytest.mark.promise("P-silent")
async def test_L39_P_silent_a_redis_that_is_slow_at_the_start_delays_nothing_and_joins_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    async with Gateway(server.port).running() as gateway:
        url = server.url().replace(str(server.port), str(gateway.port))
        async with calling(url, monkeypatch, clock=clock, retriever=remembering()) as (caller, model):
            async with asyncio.timeout(30):
                await gateway.asked.wait()
            await without_memory_yet(caller, clock)
            gateway.open.set()
            await joined(caller, clock)
            await caller.says("this is turn 3")
            assert "Biscuit" in model.requests[-1].last_user
            assert await flushed(caller, clock)
            assert await logged(server) == turns(1, 3)


async def without_memory_yet(caller: Caller, clock: HandClock) -> None:
    """The greeting and all but the first turn wait for nothing: no deadline passes, for nobody moves the clock."""
    async with asyncio.timeout(30):
        await caller.greeted()
        first = asyncio.create_task(caller.says("this is turn 1"))
        while not first.done():
            await asyncio.sleep(0.001)
            if clock.monotonic() < 1_000 + 4 * SPOOL_AFTER_S:
                await clock.advance(SPOOL_AFTER_S / 10)
        await first
        await caller.says("this is turn 2")
    assert len(caller.output.played) == 3
    assert caller.counters["record.spooled"] >= 2


async def joined(caller: Caller, clock: HandClock) -> None:
    """The stores are open: what they are waited for passes."""
    async with asyncio.timeout(60):
        while caller.counters["record.stored"] < 2:
            await clock.advance(0.5)
            await asyncio.sleep(0.01)


async def flushed(caller: Caller, clock: HandClock) -> bool:
    flushing = asyncio.create_task(caller.memory.flush(1_000))
    async with asyncio.timeout(60):
        while not flushing.done():
            await clock.advance(0.5)
            await asyncio.sleep(0.01)
    return await flushing


# --- the end of a process


@pytest.mark.case("L38")
@pytest.mark.promise("P-durable")
async def test_L38_P_durable_a_job_killed_while_redis_is_away_leaves_its_turns_to_the_next(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    await killed_at_turn(3, server)
    assert len(spool_files(data_dir)) == 1
    server.start()
    async with calling(server.url(), monkeypatch) as (caller, _):
        await caller.says("said in the next call")
        assert await caller.memory.flush(30)
        assert caller.counters["spool.files_replayed"] == 1
        assert await logged(server) == [*map(turn_text, (1, 2, 3)), "said in the next call"]
    assert spool_files(data_dir) == []
    store = await RedisSessionStore.connect(server.url())
    in_session = [entry.content for entry in await store.entries(SESSION_ID, limit=99) if entry.role == "user"]
    await store.aclose()
    assert in_session == [turn_text(number) for number in (1, 2, 3)]


async def killed_at_turn(number: int, server: RedisServer) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.plugin_child", str(number), "away"),
        env={**os.environ, "REDIS_URL": server.url()},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        _, complaints = await child.communicate()
    assert child.returncode == -signal.SIGKILL, complaints.decode()


@pytest.mark.case("L38")
async def test_L38_the_recall_host_stores_what_the_dead_have_left(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", server.url())
    left_by_the_dead(data_dir, "my cat is called biscuit")
    backend = await open_backend(load_settings())
    try:
        assert backend.retriever is not None
        async with asyncio.timeout(60):
            await backend.retriever.warm(ANA)
            while spool_files(data_dir):
                await asyncio.sleep(0.05)
        archive = await backend.archive()
        async with asyncio.timeout(30):
            while not (found := await archive.history(ANA, session_id=None, before=None, limit=9)):
                await asyncio.sleep(0.05)
        stats = await backend.retriever.stats()  # type: ignore[attr-defined] # the host's client has it
    finally:
        await backend.aclose()
    assert [entry.content for entry in found] == ["my cat is called biscuit"]
    assert {"pending_users", "oldest_age_s", "spool_files"} <= set(stats)


def left_by_the_dead(data_dir: Path, *texts: str) -> None:
    file = Spool(data_dir).create(ANA)
    said = [MemoryEntry(role="user", content=text, mode="voice", session_id="call-1") for text in texts]
    file.append([Spooled(ANA, entry.timestamp, entry) for entry in said])
    file.close()


# --- erasing


@pytest.mark.promise("P-erased")
async def test_P_erased_nothing_of_the_spool_comes_back_after_an_erasure(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(server.url(), monkeypatch) as (caller, _):
        await caller.says("this is turn 1")
        assert await caller.memory.flush(30)
        server.kill()
        await caller.says("this is turn 2")
        assert caller.counters["record.spooled"] >= 1
        left_by_the_dead(data_dir, "this is turn 0")
        server.start()
        async with UnifiedMemoryService() as service:
            assert await service.delete_user_memory("ana", "all")
        for path in spool_files(data_dir):
            assert b"this is" not in path.read_bytes()
        await caller.says("said afterwards")
        assert await caller.memory.flush(30)
        assert await logged(server) == ["said afterwards"]


async def test_the_service_erases_what_is_in_the_spool_alone(
    server: RedisServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_the_dead(data_dir, "one", "two")
    store = await RedisSessionStore.connect(server.url())
    spool = Spool(data_dir)
    receipt = await erase(ANA, Selection("all"), sessions=store, archive=InMemoryArchive(), recall=None, spool=spool)
    assert (receipt.spool, receipt.deleted) == (2, 2)
    assert await replay_left(spool, store, Counters(), SystemClock()) == 1
    assert (await store.read(ANA, after="", limit=9)).records == ()
    await store.aclose()


# --- loops

_LOOPS = """
import asyncio, sys
from livekit.agents import Agent
from memory.plugin import attach
from memory.settings import load_settings
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import new_session
from tests.support.voice import ManualOutput, SilentMicrophone

settings = load_settings()  # at import, as in a prewarm

async def call(number):
    session, agent = new_session(ScriptedLLM()), Agent(instructions="Be brief.")
    session.input.audio, session.output.audio = SilentMicrophone(), ManualOutput(instant=True)
    memory = attach(session, agent, user_id="ana", session_id=f"call-{number}", settings=settings)
    await session.start(agent, record=False)
    await session.run(user_input=f"this is turn {number}")
    stored = await memory.flush(30 if number != 2 else 0.5)
    await session.aclose()
    await memory.aclose()
    return stored

for line in sys.stdin:
    print(asyncio.run(call(int(line))), flush=True)
"""


@pytest.mark.case("S03")
async def test_S03_calls_in_loop_after_loop_share_nothing_that_belongs_to_one(
    server: RedisServer, data_dir: Path
) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-c", _LOOPS),
        # Nobody is sure enough for recall: its host is not what is tested.
        env={**os.environ, "REDIS_URL": server.url(), "MEMORY_RECALL_ASSURANCE": "verified"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    asked, answers = child.stdin, child.stdout
    assert asked is not None
    assert answers is not None

    async def call(number: int) -> bytes:
        asked.write(f"{number}\n".encode())
        return await answers.readline()

    async with asyncio.timeout(90):
        stored = [await call(1), await call(3)]
        server.kill()
        stored += [await call(2), await call(2)]
        server.start()
        stored += [await call(4)]
        asked.close()
        _, complaints = await child.communicate()
    assert child.returncode == 0, complaints.decode()
    assert stored == [b"True\n", b"True\n", b"False\n", b"False\n", b"True\n"], complaints.decode()
    for sign in ("loop is closed", "never awaited", "different loop", "was destroyed", "unclosed"):
        assert sign not in complaints.decode(), complaints.decode()
    assert await logged(server) == [f"this is turn {number}" for number in (1, 3, 2, 2, 4)]
    assert spool_files(data_dir) == []
