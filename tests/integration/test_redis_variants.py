"""The Redis servers that users bring, each for real: secured, plain, clustered, replicated, full, forgetful."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent.commands.checks import Finding, Patient, check_durability
from agent.keeper import Keeper
from agent.settings import load
from memory import MemoryEntry, UnifiedMemoryService
from memory.errors import StoreFault, StoreUnavailable
from memory.models import Scope
from memory.ports import Selection
from memory.settings import load_settings
from memory.stores.connection import RedisLink
from memory.stores.durability import check
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore
from memory.wiring import Sessions, open_sessions
from tests.support import redis_server
from tests.support.redis_server import DURABLE, HOST, RedisServer

ANA = Scope(org_id="acme", agent_id="desk", user_id="ana")
AWKWARD = "p@ss:w/ö rd%2F?#[1]"


def said(content: str) -> MemoryEntry:
    return MemoryEntry(role="user", content=content, mode="voice", session_id="s1")


async def remembers(store: Sessions) -> bool:
    """Whether it does all that a session store must."""
    await store.claim("s1", ANA, writer="job")
    position = (await store.append(ANA, said("hello"), writer="job")).position
    kept = [entry.content for entry in await store.entries("s1", limit=5)]
    logged = [item.position for item in (await store.read(ANA, after="", limit=5)).records]
    waiting = await store.pending(limit=5)
    await store.confirm(ANA, through=position)
    erased = await store.erase(ANA, Selection("all"))
    return (kept, logged, waiting, erased) == (["hello"], [position], [ANA], 1)


@contextlib.asynccontextmanager
async def opened(**environment: str) -> AsyncIterator[Sessions]:
    """The session store as any process opens it, from environment variables alone."""
    closers: list[Callable[[], Awaitable[None]]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            yield await open_sessions(load_settings(), closers)
        finally:
            while closers:
                await closers.pop()()


# --- passwords and users


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with redis_server.running(*DURABLE, "--repl-diskless-sync-delay", "0", password=AWKWARD) as server:
        yield server


async def test_a_password_in_the_url(guarded: RedisServer) -> None:
    async with opened(REDIS_URL=guarded.url()) as store:
        assert await remembers(store)


async def test_a_password_beside_host_and_port(guarded: RedisServer) -> None:
    async with opened(REDIS_HOST=HOST, REDIS_PORT=str(guarded.port), REDIS_PASSWORD=AWKWARD) as store:
        assert await remembers(store)


@pytest.mark.parametrize("password", ["", "wrong-secret"])
async def test_a_wrong_password_is_told_and_not_shown(guarded: RedisServer, password: str) -> None:
    with pytest.raises(StoreFault, match="REDIS_PASSWORD") as caught:
        async with opened(REDIS_HOST=HOST, REDIS_PORT=str(guarded.port), REDIS_PASSWORD=password):
            pass
    assert "wrong-secret" not in str(caught.value)


async def test_a_user_who_may_only_use_our_keys(guarded: RedisServer) -> None:
    url = guarded.add_user("memory", AWKWARD, *redis_server.APPLICATION)
    async with opened(REDIS_URL=url) as store:
        assert await remembers(store)


# --- TLS


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RedisServer]:
    with redis_server.by_tls(*DURABLE) as server:
        yield server


async def test_tls_with_an_authority_in_the_url(encrypted: RedisServer) -> None:
    async with opened(REDIS_URL=encrypted.url()) as store:
        assert await remembers(store)


async def test_tls_with_an_authority_in_the_environment(encrypted: RedisServer) -> None:
    assert encrypted.tls is not None
    url = encrypted.url(trusted=False)
    async with opened(REDIS_URL=url, SSL_CERT_FILE=str(encrypted.tls.authority)) as store:
        assert await remembers(store)


async def test_an_unknown_authority_is_refused_with_the_fix(encrypted: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match=r"not trusted.*ssl_ca_certs.*SSL_CERT_FILE"):
        async with opened(REDIS_URL=encrypted.url(trusted=False)):
            pass


async def test_a_certificate_of_another_host_is_refused(encrypted: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match=r"not trusted.*must be a name in the certificate"):
        async with opened(REDIS_URL=encrypted.url().replace(HOST, "localhost")):
            pass


async def test_no_tls_on_a_port_that_wants_it_is_unavailable(encrypted: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match="REDIS_URL"):
        async with opened(REDIS_HOST=HOST, REDIS_PORT=str(encrypted.port)):
            pass


# --- a plain Redis, a cluster, a replica


async def test_a_plain_redis_carries_everything_but_the_graph(
    guarded: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", guarded.url())
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name, value in (("HOST", HOST), ("PORT", str(guarded.port)), ("PASSWORD", AWKWARD)):
        monkeypatch.setenv(f"FALKORDB_{name}", value)
    with contextlib.closing(guarded.client()) as client:
        assert "graph" not in [module["name"] for module in client.execute_command("MODULE LIST")]
    async with UnifiedMemoryService() as memory:
        await memory.add_entry("s1", said("My cat is called Biscuit."), user_id="ana")
        assert [entry.content for entry in await memory.get_history("s1")] == ["My cat is called Biscuit."]
        recalled = await memory.recall("What is my cat's name?", user_id="ana", budget_ms=10_000)
        await memory.delete_user_memory("ana", "all")
    assert [passage.text for passage in recalled.passages] == ["My cat is called Biscuit."]
    keeper = Keeper(load())
    graph = (await keeper.states())["graphiti"]
    await keeper.aclose()
    assert graph.status == "skipped"
    assert "holds no graphs" in graph.message
    assert "Set FALKORDB_HOST to a FalkorDB, or GRAPHITI_ENABLED=false" in graph.message


async def test_a_cluster_of_several_nodes_is_told_apart() -> None:
    with redis_server.cluster(2) as servers:
        async with contextlib.AsyncExitStack() as stack:
            urls = [server.url() for server in servers]
            stores = [await stack.enter_async_context(opened(REDIS_URL=url)) for url in urls]
            found = [
                await asyncio.gather(*(store.find(name) for name in "abcdefgh"), return_exceptions=True)
                for store in stores
            ]
    errors = [error for answers in found for error in answers if error is not None]
    assert len(errors) == 8  # each key lives on one of the two
    assert all(isinstance(error, StoreFault) and "cluster of several nodes" in str(error) for error in errors)


async def test_a_replica_refuses_until_it_is_promoted(guarded: RedisServer) -> None:
    options = ("--replicaof", f"{HOST} {guarded.port}", "--masterauth", AWKWARD)
    async with opened(REDIS_URL=guarded.url()) as primary:
        await primary.append(ANA, said("to the primary"))
        with redis_server.running(*DURABLE, *options) as replica, contextlib.closing(replica.client()) as client:
            await _until(lambda: client.info("replication")["master_link_status"] == "up")
            await _until(lambda: client.dbsize() > 0)
            async with opened(REDIS_URL=replica.url()) as store:
                with pytest.raises(StoreUnavailable, match=r"read-only replica.*primary"):
                    await store.append(ANA, said("to the replica"))
                client.execute_command("REPLICAOF", "NO", "ONE")
                assert (await store.append(ANA, said("after the failover"))).stored
                logged = [item.record for item in (await store.read(ANA, after="", limit=9)).records]
        await primary.erase(ANA, Selection("all"))
    assert [getattr(record, "content", "") for record in logged] == ["to the primary", "after the failover"]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


# --- full


async def fill(store: Sessions) -> int:
    """Append large turns until one is refused; returns how many were taken."""
    for taken in range(100):
        with contextlib.suppress(StoreUnavailable):
            await store.append(ANA, said("x" * 100_000))
            continue
        return taken
    raise AssertionError("it never was full")


@pytest.mark.case("L35")
@pytest.mark.promise("P-durable")
async def test_L35_P_durable_a_redis_that_fills_up_loses_nothing_it_took() -> None:
    with redis_server.running(*DURABLE) as server, contextlib.closing(server.client()) as client:
        async with opened(REDIS_URL=server.url()) as store:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
            taken = await fill(store)
            assert 1 < taken < 100
            assert len((await store.read(ANA, after="", limit=500)).records) == taken  # reads go on
            with pytest.raises(StoreUnavailable, match="full"):
                await store.append(ANA, said("still full"))

            client.config_set("maxmemory", 0)
            assert (await store.append(ANA, said("after"))).stored
            assert len((await store.read(ANA, after="", limit=500)).records) == taken + 1


async def test_how_full_it_is_is_told_where_it_may_be_asked(guarded: RedisServer) -> None:
    async with opened(REDIS_URL=guarded.url()) as store:
        unbounded = await store.filled()
        with contextlib.closing(guarded.client()) as client:
            client.config_set("maxmemory", 1_000_000_000)
            bounded = await store.filled()
            client.config_set("maxmemory", 0)
    assert (unbounded["max_bytes"], bounded["max_bytes"]) == (0, 1_000_000_000)
    assert unbounded["used_bytes"] > 0
    async with opened(REDIS_URL=guarded.add_user("memory", AWKWARD, *redis_server.APPLICATION)) as store:
        assert await store.filled() == {}


# --- does it keep what it is given?

FORGETFUL = {
    "defaults": ((), ["appendonly is no"]),
    "evicts": ((*DURABLE, "--maxmemory-policy", "allkeys-lru"), ["maxmemory-policy is allkeys-lru"]),
    "syncs-when-it-likes": ((*DURABLE, "--appendfsync", "no"), ["appendfsync is no"]),
    "all": (("--maxmemory-policy", "volatile-ttl", "--appendfsync", "no"), ["maxmemory-policy is", "appendonly is no"]),
    "durable": (DURABLE, []),
    "synced-always": ((*DURABLE, "--appendfsync", "always"), []),
}


@contextlib.asynccontextmanager
async def faults_of(url: str) -> AsyncIterator[list[str]]:
    link = await RedisLink.open(url)
    try:
        yield await check(link)
    finally:
        await link.aclose()


@pytest.mark.parametrize(("options", "expected"), FORGETFUL.values(), ids=FORGETFUL)
async def test_what_may_lose_turns_is_named_with_its_fix(options: tuple[str, ...], expected: list[str]) -> None:
    with redis_server.running(*options) as server:
        async with faults_of(server.url()) as faults:
            assert len(faults) == len(expected)
            for fault, begins in zip(faults, expected, strict=True):
                assert fault.startswith(begins)
                assert "Set " in fault


async def test_the_embedded_server_is_durable(data_dir: Any) -> None:
    server = EmbeddedServer(data_dir, idle_s=0.0)
    async with faults_of(await server.ensure()) as faults:
        assert faults == []
    await server.aclose()


async def test_without_config_info_tells_a_part() -> None:
    forbidden = ("--rename-command", "CONFIG", "", "--maxmemory-policy", "allkeys-random")
    with redis_server.running("--appendonly", "yes", *forbidden) as server:
        async with faults_of(server.url()) as faults:
            policy, sync = faults
    assert policy.startswith("maxmemory-policy is allkeys-random")
    assert sync.startswith("appendfsync can't be checked")
    assert "always or everysec" in sync


async def test_without_config_and_info_nothing_can_be_checked(guarded: RedisServer) -> None:
    url = guarded.add_user("weak", "pw", "~vm:*", "+@all", "-config", "-info")
    async with faults_of(url) as faults:
        assert [fault.split(" can't be checked")[0] for fault in faults] == [
            "maxmemory-policy",
            "appendonly",
            "appendfsync",
        ]


async def test_a_forgetful_redis_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "memory")
    with redis_server.running("--maxmemory-policy", "allkeys-lru", password=AWKWARD) as server:
        async with opened(REDIS_URL=server.url()) as store:
            assert await remembers(store)
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("memory")]
    assert "maxmemory-policy is allkeys-lru" in warning
    assert "appendonly is no" in warning
    assert AWKWARD not in warning


async def test_a_forgetful_redis_is_refused_where_that_is_required() -> None:
    with redis_server.running() as server, contextlib.closing(server.client()) as client:
        with pytest.raises(StoreFault, match=r"MEMORY_REQUIRE_DURABLE.*appendonly is no.*Set appendonly yes"):
            async with opened(REDIS_URL=server.url(), MEMORY_REQUIRE_DURABLE="true"):
                pass
        assert client.dbsize() == 0
        client.config_set("appendonly", "yes")
        async with opened(REDIS_URL=server.url(), MEMORY_REQUIRE_DURABLE="true") as store:
            assert await remembers(store)


async def examined(**environment: str) -> Finding:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return await check_durability(Patient(load(), []))


async def test_the_doctor_names_what_may_lose_turns_with_its_fix(guarded: RedisServer) -> None:
    fine = await examined(REDIS_URL=guarded.url())
    assert (fine.status, fine.fix) == ("ok", "")
    with redis_server.running("--maxmemory-policy", "allkeys-lru", password=AWKWARD) as server:
        found = await examined(REDIS_URL=server.url())
        assert found.status == "warn"
        assert found.detail == "maxmemory-policy is allkeys-lru; appendonly is no"
        assert "Set maxmemory-policy noeviction" in found.fix
        assert "Set appendonly yes" in found.fix
        assert AWKWARD not in str(found)
        refused = await examined(REDIS_URL=server.url(), MEMORY_REQUIRE_DURABLE="true")
        assert (refused.status, refused.fix) == ("fail", found.fix)
    unknown = await examined(REDIS_URL=guarded.add_user("dim", "pw", "~vm:*", "+@all", "-config", "-info"))
    assert unknown.status == "warn"
    assert "appendfsync can't be checked" in unknown.detail
    assert "CONFIG GET" in unknown.fix
    with redis_server.running("--appendonly", "yes", "--appendfsync", "no") as server:
        lazy = await examined(REDIS_URL=server.url())
        assert (lazy.status, lazy.detail) == ("warn", "appendfsync is no")


async def test_the_doctor_checks_the_embedded_server_too() -> None:
    assert (await examined()).status == "ok"


async def test_a_durable_redis_is_opened_without_a_word(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "memory")
    async with opened(REDIS_URL=guarded.url(), MEMORY_REQUIRE_DURABLE="true") as store:
        assert await remembers(store)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("memory")] == []


async def test_a_redis_lost_with_its_machine_comes_back_with_every_turn() -> None:
    with redis_server.running(*DURABLE) as server:
        store = await RedisSessionStore.connect(server.url())
        await store.append(ANA, said("before"))
        server.kill()
        server.start()
        assert [entry.content for entry in await store.entries("s1", limit=5)] == ["before"]
        assert (await store.append(ANA, said("after"))).stored
        await store.aclose()
