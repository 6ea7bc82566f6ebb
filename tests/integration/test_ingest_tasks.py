"""The task engine on real Redis servers: who does which task, how often, and what is left of it in Redis."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from memory.counters import Counters
from memory.errors import StoreFault, StoreUnavailable
from memory.ingestion import tasks
from memory.ingestion.scan import Queue
from memory.ingestion.tasks import NAME, TaskEngine
from memory.stores.embedded import EmbeddedServer
from tests.support import redis_server
from tests.support.redis_server import APPLICATION, DURABLE, RedisServer

SOON_S = 20.0
CHANNELS = ("&vm:*", "&vm:{ingest}:cancel:*")  # what its Redis user must be allowed besides APPLICATION


class Work:
    """What a test's tasks do; ``wanted`` is queued by the next look."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.digests: list[int] = []
        self.looks = 0
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.interruptions: list[int] = []
        self.at_once = self.most_at_once = 0
        self.on_ingest: Callable[[int], Awaitable[bool]] | None = None
        self.changed = asyncio.Event()

    async def look(self, queue: Queue) -> bool:
        self.looks += 1
        wanted, self.wanted = self.wanted, []
        if wanted:
            await queue.add_ingestion(wanted)
        digests, self.digests = self.digests, []
        if digests:
            await queue.add_digests(digests)
        self.changed.set()
        return bool(wanted)

    async def ingest(self, user: int) -> bool:
        self.begun[user] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.changed.set()
        try:
            await asyncio.sleep(0)
            return bool(self.on_ingest and await self.on_ingest(user))
        finally:
            self.at_once -= 1
            self.ended[user] += 1
            self.changed.set()

    async def interrupted(self, user: int) -> None:
        self.interruptions.append(user)
        self.changed.set()

    async def digest(self, user: int) -> None:
        self.ended[-user] += 1
        self.changed.set()

    async def until(self, true: Callable[[], bool], timeout_s: float = SOON_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def working(url: str, *works: Work, **options: float) -> AsyncIterator[list[TaskEngine]]:
    """An engine for each of ``works``, until the block ends."""
    stop = asyncio.Event()
    given = {"scan_s": 0.1, **options}
    engines = [TaskEngine(url, work, Counters(), **given) for work in works]  # type: ignore[arg-type]
    running = [asyncio.create_task(engine.run(stop)) for engine in engines]
    try:
        yield engines
    finally:
        stop.set()
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*running)


async def test_users_are_ingested_each_once_however_often_they_are_queued(server: RedisServer) -> None:
    work = Work()
    hold = asyncio.Event()

    async def waiting(_: int) -> bool:
        await hold.wait()
        return False

    work.on_ingest = waiting
    work.wanted = [1, 2, 3]
    async with working(server.url(), work):
        await work.until(lambda: set(work.begun) == {1, 2, 3})
        work.wanted = [1, 2, 3, 3]
        looks = work.looks
        await work.until(lambda: work.looks > looks + 1)
        hold.set()
        await work.until(lambda: sum(work.ended.values()) >= 3)
        looks = work.looks
        await work.until(lambda: work.looks > looks + 3)
    assert work.begun == {1: 1, 2: 1, 3: 1}


async def test_who_has_more_comes_again_behind_the_others(server: RedisServer) -> None:
    work = Work()

    async def thrice(user: int) -> bool:
        return user == 1 and work.begun[1] < 3

    work.on_ingest = thrice
    work.wanted = [1, 2, 3]
    async with working(server.url(), work):
        await work.until(lambda: work.ended == {1: 3, 2: 1, 3: 1})


async def test_one_task_of_a_user_at_a_time_over_all_workers(server: RedisServer) -> None:
    works = [Work() for _ in range(3)]
    running, overlaps, done = set[int](), list[int](), asyncio.Event()

    async def alone(user: int) -> bool:
        overlaps.extend([user] if user in running else [])
        running.add(user)
        await asyncio.sleep(0.01)
        running.discard(user)
        if sum(work.ended.total() for work in works) > 60:
            done.set()
        return not done.is_set()

    for work in works:
        work.on_ingest = alone
        work.wanted = list(range(5))
    async with working(server.url(), *works):
        await asyncio.wait_for(done.wait(), SOON_S)
    assert not overlaps
    assert all(work.ended.total() > 0 for work in works), "every worker does its share"


async def test_no_more_tasks_run_at_once_than_a_worker_may(server: RedisServer) -> None:
    work = Work()

    async def briefly(_: int) -> bool:
        await asyncio.sleep(0.005)
        return False

    work.on_ingest = briefly
    work.wanted = list(range(40))
    async with working(server.url(), work, concurrency=4):
        await work.until(lambda: work.ended.total() == 40)
    assert work.most_at_once <= 4


@pytest.mark.promise("P-redacted")
async def test_P_redacted_redis_holds_numbers_and_nothing_of_what_failed(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()

    async def failing(_: int) -> bool:
        raise ValueError("I am allergic to peanuts.")

    work.on_ingest = failing
    work.wanted, work.digests = [4711, 4712], [4713]
    async with working(server.url(), work) as [engine]:
        await work.until(lambda: work.ended.total() == 3)
        looks = work.looks
        await work.until(lambda: work.looks > looks + 3)
        keys = server.client().keys("*")
    assert engine.counters["tasks.ingest.faults"] == 2
    assert {key for key in keys if not key.startswith(f"{NAME}:")} == set()
    assert not any(re.search(r"471\d", key) for key in keys), "of tasks that have ended nothing is left"
    dump = b"".join(path.read_bytes() for path in server.home.rglob("*") if path.is_file())
    assert b"peanuts" not in dump
    assert "peanuts" not in caplog.text
    assert "ValueError at failing:" in caplog.text


async def test_a_store_that_is_away_ends_a_task_and_no_more(server: RedisServer) -> None:
    work = Work()

    async def away(_: int) -> bool:
        raise StoreUnavailable("The archive is away.")

    work.on_ingest = away
    work.wanted = [1]
    async with working(server.url(), work) as [engine]:
        await work.until(lambda: work.ended[1] == 1)
        work.wanted = [1]
        await work.until(lambda: work.ended[1] == 2)
    assert engine.counters["tasks.ingest.unavailable"] == 2
    assert not work.interruptions


@pytest.mark.promise("P-durable")
async def test_P_durable_the_tasks_of_a_killed_worker_are_done_by_another(server: RedisServer) -> None:
    work = Work()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.tasks_child", server.url(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        async with working(server.url(), PassingOn([1, 2]), redelivery_s=1.0):
            begun = {int(await asyncio.wait_for(child.stdout.readline(), SOON_S)) for _ in range(2)}
    finally:
        child.kill()
        await child.wait()
    assert begun == {1, 2}
    async with working(server.url(), work, redelivery_s=1.0) as [engine]:
        await work.until(lambda: set(work.interruptions) == {1, 2})
        assert engine.counters["tasks.ingest.redelivered"] == 2
        work.wanted = [1, 2]
        await work.until(lambda: work.ended == {1: 1, 2: 1})


class PassingOn(Work):
    """Queues users, and leaves them to whoever else takes one."""

    def __init__(self, users: Sequence[int]) -> None:
        super().__init__()
        self.wanted = list(users)

    async def ingest(self, user: int) -> bool:
        await asyncio.sleep(0.05)
        return True


@pytest.mark.promise("P-durable")
async def test_P_durable_a_worker_that_is_told_to_stop_lets_its_tasks_end(server: RedisServer) -> None:
    work = Work()
    hold = asyncio.Event()

    async def waiting(_: int) -> bool:
        await hold.wait()
        return True

    work.on_ingest = waiting
    work.wanted = [1]
    stop = asyncio.Event()
    engine = TaskEngine(server.url(), work, Counters(), scan_s=0.1)
    running = asyncio.create_task(engine.run(stop))
    await work.until(lambda: work.begun[1] == 1)
    stop.set()
    await asyncio.sleep(0)
    assert not running.done()
    hold.set()
    await asyncio.wait_for(running, SOON_S)
    assert work.ended[1] == 1
    assert engine.counters["tasks.ingest.cut_off"] == 0


@pytest.mark.promise("P-durable")
async def test_P_durable_a_task_that_does_not_end_in_time_is_given_back_without_waiting_for_a_redelivery(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "INGEST_STOP_S", 0.2)
    work = Work()

    async def hanging(_: int) -> bool:
        await asyncio.Event().wait()
        return False

    work.on_ingest = hanging
    work.wanted = [1]
    async with working(server.url(), work) as [engine]:
        await work.until(lambda: work.begun[1] == 1)
    assert engine.counters["tasks.ingest.cut_off"] == 1
    assert not work.interruptions, "a stop is not the chunk's fault"
    other = Work()
    other.wanted = [1]
    async with working(server.url(), other):
        await other.until(lambda: other.ended[1] == 1)


async def test_a_task_that_hangs_is_ended_and_counted(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "INGEST_TASK_S", 0.2)
    work = Work()

    async def hanging(_: int) -> bool:
        await asyncio.Event().wait()
        return False

    work.on_ingest = hanging
    work.wanted = [1]
    async with working(server.url(), work):
        await work.until(lambda: work.interruptions == [1])


@pytest.mark.promise("P-durable")
async def test_P_durable_a_redis_that_restarts_is_gone_on_with(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    async with working(server.url(), work, redelivery_s=1.0):
        await work.until(lambda: work.looks > 0)
        server.kill()
        server.start()
        work.wanted = [1, 2, 3]
        await work.until(lambda: set(work.ended) | set(work.interruptions) >= {1, 2, 3}, timeout_s=40.0)
    assert "Traceback" not in caplog.text


async def test_a_redis_that_has_lost_everything_is_looked_at_anew(server: RedisServer) -> None:
    work = Work()
    async with working(server.url(), work):
        await work.until(lambda: work.looks > 0)
        server.client().flushall()
    work.looks = 0
    async with working(server.url(), work):
        await work.until(lambda: work.looks > 1)


# -- servers of every kind


async def does_tasks(url: str) -> None:
    work = Work()
    work.wanted, work.digests = [1, 2], [3]
    async with working(url, work) as [engine]:
        await engine.check()
        await work.until(lambda: work.ended == {1: 1, 2: 1, -3: 1})


async def test_on_the_embedded_server(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir, idle_s=0.5)
    try:
        await does_tasks(await server.ensure())
    finally:
        await server.aclose()


async def test_on_a_redis_with_a_password_and_another_user() -> None:
    with redis_server.running(*DURABLE, password="p@ss:w/ö rd") as server:
        await does_tasks(server.url())
        await does_tasks(server.add_user("agent", "s3cret", *APPLICATION, *CHANNELS))


async def test_on_a_redis_that_does_not_let_tasks_talk() -> None:
    with redis_server.running(*DURABLE) as server:
        for number, channels in enumerate(((), CHANNELS[:1], CHANNELS[1:])):
            url = server.add_user(f"agent{number}", "s3cret", "resetchannels", *APPLICATION, *channels)
            with pytest.raises(StoreFault, match="ACL"):
                await TaskEngine(url, Work(), Counters()).check()


async def test_on_a_redis_that_speaks_tls() -> None:
    with redis_server.by_tls(*DURABLE) as server:
        await does_tasks(server.url())


async def test_on_a_cluster_of_one_node() -> None:
    with redis_server.cluster() as [server]:
        await does_tasks(server.url())


async def test_a_redis_that_is_away_is_said_to_be(server: RedisServer) -> None:
    server.kill()
    with pytest.raises(StoreUnavailable, match="REDIS_URL"):
        await TaskEngine(server.url(), Work(), Counters()).check()


def test_what_the_engine_says_of_a_redis_that_is_away_is_left_to_the_worker() -> None:
    tasks._quiet_logs()
    tasks._quiet_logs()
    for name in tasks._FOREIGN:
        assert len(logging.getLogger(name).filters) == 1
