"""Session stores with the time they go by, for tests that run on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from memory.knowledge_ports import FactNotices
from memory.ports import Erasable, SessionStore, TurnLog, WriterLeases
from memory.stores.inmemory import InMemorySessionStore
from memory.stores.redis import RedisSessionStore


class Store(SessionStore, WriterLeases, TurnLog, FactNotices, Erasable, Protocol):
    """What a session store is."""


class World(Protocol):
    """A store, the time it goes by, and how much it holds."""

    store: Store

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def size(self) -> int:
        """How many things of any kind are kept."""
        ...


class TestClock:
    """A clock that stands still until it is moved."""

    __test__ = False

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds


class InMemoryWorld:
    def __init__(self) -> None:
        self._clock = TestClock()
        self._store = InMemorySessionStore(self._clock)
        self.store: Store = self._store

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def size(self) -> int:
        store = self._store
        return len(store._owners) + len(store._sessions) + len(store._users)


class RedisWorld:
    """Time passes here by taking it off what the server keeps: expiries, leases, times of use."""

    def __init__(self, store: RedisSessionStore, redis: Any) -> None:
        self.store: Store = store
        self.redis = redis

    async def advance(self, seconds: float) -> None:
        milliseconds = int(seconds * 1_000)
        for key in await self.redis.keys("vm:*"):
            left = await self.redis.pttl(key)
            if 0 < left <= milliseconds:
                await self.redis.delete(key)
            elif left > 0:
                await self.redis.pexpire(key, left - milliseconds)
            await self._age(key, milliseconds)

    async def _age(self, key: str, milliseconds: int) -> None:
        kind = key.split(":")[2]
        if kind == "session" and await self.redis.hexists(key, "lease"):
            await self.redis.hincrby(key, "lease", -milliseconds)
        if kind in ("sessions", "active", "pending"):
            for member in await self.redis.zrange(key, 0, -1):
                await self.redis.zincrby(key, -milliseconds, member)

    async def size(self) -> int:
        return int(await self.redis.dbsize())
