"""The host around an engine in this process, on a real socket: answers, refusals, its consumer, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from memory.clock import SystemClock
from memory.errors import EmbedderUnavailable, HostUnavailable, StoreUnavailable
from memory.hosting import HostRole, HostSpec, HostUse
from memory.limits import HOST_CROWD_PER_CORE, HOST_QUEUE_MAX
from memory.models import Recall
from memory.ports import Selection
from memory.retrieval import engine as engine_module
from memory.retrieval import host as host_module
from memory.retrieval.client import HostRetriever
from memory.retrieval.engine import RecallEngine
from memory.retrieval.host import RecallHost
from memory.retrieval.protocol import Reply, Request, read_frame
from memory.scheduling import Precedence
from tests.support.fact_source import Facts, fact
from tests.support.frames import frame
from tests.support.recalls import TroubledArchive, TroubledLog, WordEmbedder, said, scope_of, texts

FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"


@dataclass
class Consumer:
    """A consumer that counts."""

    runs: int = 0
    drained: int = 0
    error: Exception | None = None
    drops: int = 0  # cancellations that it does not hear
    pending_users: int = 3
    oldest_age_s: float = 1.25
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.drops -= 1
                if self.drops < 0:
                    self.stopped.set()
                    raise

    async def drain(self) -> int:
        assert self.stopped.is_set()
        self.drained += 1
        if self.error is not None:
            raise self.error
        return 0


@dataclass
class Stage:
    spec: HostSpec
    log: TroubledLog
    engine: RecallEngine
    embedder: WordEmbedder
    consumer: Consumer
    stop: asyncio.Event
    running: asyncio.Task[None]
    clients: list[HostRetriever] = field(default_factory=list)

    def client(self) -> HostRetriever:
        client = HostRetriever(HostUse(self.spec))
        self.clients.append(client)
        return client

    async def say(self, text: str, user: str = "ana") -> None:
        await self.log.append(scope_of(user), said(text, session=f"of {user}"))


@contextlib.asynccontextmanager
async def staged(
    data_dir: Path,
    *,
    idle_s: float = 60.0,
    embedder: WordEmbedder | None = None,
    consumer: Consumer | None = None,
    facts: Facts | None = None,
    precedence: Precedence | None = None,
) -> AsyncIterator[Stage]:
    spec = HostSpec.module("recall", data_dir, "memory", "host")
    role = HostRole(spec, idle_s=idle_s)
    assert role.try_take()
    clock, stop = SystemClock(), asyncio.Event()
    embedder, consumer = embedder or WordEmbedder(), consumer or Consumer()
    log, archive = TroubledLog(clock), TroubledArchive()
    engine = RecallEngine(log=log, archive=archive, embedder=embedder, embedder_ready=False, clock=clock, facts=facts)
    host = RecallHost(role, engine, embedder=embedder, consumer=consumer, precedence=precedence)
    running = asyncio.create_task(host.run(stop))
    stage = Stage(spec, log, engine, embedder, consumer, stop, running)
    try:
        async with asyncio.timeout(10):
            while not spec.socket.exists():
                await asyncio.sleep(0.001)
        yield stage
    finally:
        for client in stage.clients:
            await client.aclose()
        stop.set()
        log.trouble.open.set()
        await running
        role.release()


@pytest.fixture
async def stage(data_dir: Path) -> AsyncIterator[Stage]:
    async with staged(data_dir) as stage:
        yield stage


async def recall(client: HostRetriever, user: str = "ana") -> Recall:
    return await client.recall(scope_of(user), QUESTION, limit=8, budget_ms=5_000)


class Told(Precedence):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(0)
        self.has = False
        self.times = 0

    def take(self) -> None:
        self.has = True
        self.times += 1

    def give(self) -> bool:
        self.has, gives = False, not self.has
        return gives


async def test_it_goes_before_others_of_many_calls_while_a_recall_is_under_way_and_no_longer(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "RECALL_QUIET_S", 0.001)
    monkeypatch.setattr(engine_module, "RECALL_QUIET_S", 0.001)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    precedence = Told()
    async with staged(data_dir, precedence=precedence) as stage:
        client = stage.client()
        await client.warm(scope_of())
        await client.stats()
        for _ in range(HOST_CROWD_PER_CORE - 1):
            await recall(stage.client())
        await recall(client)
        assert precedence.times == 0  # with so few, whoever recalls would be the one who waits for a core
        await stage.client().warm(scope_of())
        stage.log.trouble.open.clear()
        recalling = asyncio.create_task(recall(client))
        async with asyncio.timeout(10):
            while precedence.times < 5:  # it is looked at again and again, and kept
                await asyncio.sleep(0.001)
            assert precedence.has
            stage.log.trouble.open.set()
            await recalling
            while precedence.has:
                await asyncio.sleep(0.001)


async def test_a_fault_is_told_whatever_its_message_holds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("No such directory: \udc80")

    monkeypatch.setattr(stage.engine, "erase", away)
    client = stage.client()
    await client.warm(scope_of())
    link = client._link
    assert link is not None
    with pytest.raises(HostUnavailable, match="No such directory: \N{REPLACEMENT CHARACTER}"):
        await link.ask(10, op="erase", scope=scope_of(), selection=Selection("all"))


async def test_recall_warm_erase_and_stats_go_through_the_socket(stage: Stage) -> None:
    client = stage.client()
    await stage.say(FACT)
    await client.warm(scope_of())
    found = await recall(client)
    assert texts(found) == [FACT]
    assert found.passages[0].role == "user"
    stats = await client.stats()
    assert (stats["turns"], stats["pending_users"], stats["oldest_age_s"]) == (1, 3, 1.2)
    await stage.log.erase(scope_of(), Selection("all"))
    assert await client.erase(scope_of(), Selection("all")) == 1
    assert texts(await recall(client)) == []


async def test_facts_and_the_profile_go_through_the_socket(data_dir: Path) -> None:
    facts = Facts()
    async with staged(data_dir, facts=facts) as stage:
        client = stage.client()
        await stage.say(FACT)
        home = fact("The user's home is in York", turns=["t1"])
        await stage.log.announce(scope_of(), version=facts.commit(scope_of(), home))
        found = await client.recall(scope_of(), "Where is my home?", limit=8, budget_ms=5_000)
        made = await client.profile(scope_of(), name="Ana", limit=5, budget_ms=5_000)
        assert found.facts == made.facts == (home,)
        assert found.state == made.state != ""


async def test_vectors_come_once_the_embedder_is_loaded(data_dir: Path) -> None:
    embedder = WordEmbedder()
    embedder.hold.clear()
    async with staged(data_dir, embedder=embedder) as stage:
        client = stage.client()
        await stage.say(FACT)
        found = await recall(client)
        assert texts(found) == [FACT]
        assert found.degraded == ("vectors",)
        embedder.hold.set()
        async with asyncio.timeout(10):
            while (await recall(client)).degraded:
                await asyncio.sleep(0.001)


async def test_without_its_model_the_host_says_so_once_and_goes_by_keywords(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = WordEmbedder()
    embedder.error = EmbedderUnavailable("The weights are missing; install them.")
    async with staged(data_dir, embedder=embedder) as stage:
        client = stage.client()
        await stage.say(FACT)
        for _ in range(3):
            assert texts(await recall(client)) == [FACT]
    assert caplog.text.count("The weights are missing; install them.") == 1


async def test_a_client_that_talks_nonsense_loses_its_connection_and_nobody_else_does(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    client = stage.client()
    await stage.say(FACT)
    await recall(client)
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", frame(id=1, op="secret")):
        reader, writer = await asyncio.open_unix_connection(str(stage.spec.socket))
        writer.write(nonsense)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
    assert texts(await recall(client)) == [FACT]
    assert "secret" not in caplog.text


async def test_a_request_that_fails_is_answered_and_the_next_one_works(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*arguments: object, **more: object) -> Recall:
        raise RuntimeError(FACT)

    client = stage.client()
    await stage.say(FACT)
    with monkeypatch.context() as patch:
        patch.setattr(stage.engine, "recall", broken)
        with pytest.raises(Exception, match="RuntimeError"):
            await recall(client)
    assert texts(await recall(client)) == [FACT]
    assert "Biscuit" not in caplog.text


async def test_a_client_that_goes_away_takes_its_requests_along(stage: Stage) -> None:
    await stage.say(FACT)
    stage.log.trouble.open.clear()
    _, writer = await asyncio.open_unix_connection(str(stage.spec.socket))
    for number in range(5):
        request = Request(id=number, op="recall", scope=scope_of(f"u{number}"), query="x", budget_ms=60_000)
        writer.write(request.frame())
    async with asyncio.timeout(10):
        while stage.engine.stats()["users"] < 5:
            await asyncio.sleep(0.001)
        writer.close()
        while any(user.users for user in stage.engine._users.values()):
            await asyncio.sleep(0.001)


async def test_more_requests_at_once_than_the_bound_are_refused(stage: Stage) -> None:
    stage.log.trouble.open.clear()
    reader, writer = await asyncio.open_unix_connection(str(stage.spec.socket))
    for number in range(HOST_QUEUE_MAX + 1):
        writer.write(Request(id=number, op="recall", scope=scope_of(), query="x", budget_ms=60_000).frame())
    async with asyncio.timeout(10):
        body = await read_frame(reader)
    assert Reply.parse(body or b"") == Reply(id=HOST_QUEUE_MAX, error="too many requests at once")
    writer.close()


async def test_the_consumer_runs_again_after_a_fault(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_module, "ARCHIVE_POLL_IDLE_S", 0.0)
    async with staged(data_dir, consumer=Consumer(error=RuntimeError(FACT))) as stage:
        async with asyncio.timeout(10):
            while stage.consumer.runs < 3:
                await asyncio.sleep(0.001)
        stage.consumer.stopped.set()
    assert stage.consumer.drained == 1
    assert "Biscuit" not in caplog.text


async def test_it_ends_when_nobody_uses_it_and_drains_first(data_dir: Path) -> None:
    async with staged(data_dir, idle_s=0.2) as stage:
        client = stage.client()
        await stage.say(FACT)
        assert texts(await recall(client)) == [FACT]
        assert not stage.running.done()
        await client.aclose()
        async with asyncio.timeout(10):
            await asyncio.wait((stage.running,))
        assert stage.consumer.drained == 1


async def test_it_ends_although_a_cancellation_is_lost_on_the_way(data_dir: Path) -> None:
    async with staged(data_dir, idle_s=0.0, consumer=Consumer(drops=1)) as stage:
        async with asyncio.timeout(10):
            await asyncio.wait((stage.running,))
        assert stage.consumer.drained == 1


async def test_it_ends_when_its_data_directory_is_gone(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with staged(data_dir) as stage:
        shutil.rmtree(data_dir)
        async with asyncio.timeout(10):
            await asyncio.wait((stage.running,))
        assert stage.consumer.drained == 1
        assert "The data directory is gone" in caplog.text
        data_dir.mkdir()


async def test_told_to_stop_it_ends_although_it_is_used(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with staged(data_dir) as stage:
        client = stage.client()
        await stage.say(FACT)
        await recall(client)
        stage.consumer.error = StoreUnavailable("The archive is away.")
        stage.stop.set()
        async with asyncio.timeout(10):
            await asyncio.wait((stage.running,))
        assert stage.consumer.drained == 1
        assert "it is kept, and moved next time" in caplog.text
