"""What the session store does on a real Redis beyond its contract: keys, errors, erased files, cancelled calls."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from memory.errors import EmbeddedServerUnavailable, SettingsError, StoreFault, StoreUnavailable
from memory.limits import SESSION_TTL_S, SHARDS
from memory.models import MemoryEntry, MemoryEvent, Scope
from memory.ports import LogSlice, Selection
from memory.stores.connection import RedisLink, translate
from memory.stores.embedded import EmbeddedServer
from memory.stores.redis import RedisSessionStore

ANA = Scope(org_id="acme", agent_id="desk", user_id="+15550109999")
CANARY = "canary-zebra-4711"


def said(content: str = CANARY, session_id: str = "room-+15550109999", **fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"role": "user", "content": content, "mode": "voice", "session_id": session_id, **fields})


@pytest.fixture
async def url(data_dir: Path) -> AsyncIterator[str]:
    server = EmbeddedServer(data_dir, idle_s=0.0)
    yield await server.ensure()
    await server.aclose()


@pytest.fixture
async def store(url: str) -> AsyncIterator[RedisSessionStore]:
    opened = await RedisSessionStore.connect(url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def redis(url: str) -> AsyncIterator[Any]:
    client = Redis.from_url(url, decode_responses=True)
    yield client
    await client.aclose()


async def fill(store: RedisSessionStore, scope: Scope = ANA) -> None:
    await store.claim(said().session_id, scope, writer="job")
    await store.append(scope, said(), writer="job")
    await store.append(scope, said(mode="text"))
    await store.append(scope, MemoryEvent(event_type="note", session_id=said().session_id, data={"text": CANARY}))


# --- keys


def crc16_slot(key: str) -> int:
    """The slot of a key, as the cluster specification says."""
    tag = key
    if "{" in key and "}" in (rest := key.split("{", 1)[1]) and not rest.startswith("}"):
        tag = rest.split("}", 1)[0]
    value = 0
    for byte in tag.encode():
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1) ^ 0x1021 if value & 0x8000 else value << 1
        value &= 0xFFFF
    return value % 16_384


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The keys of each script that is run."""
    seen: list[list[str]] = []
    original = RedisLink.scripts

    async def scripts(self: RedisLink, *scripts: Any) -> list[Any]:
        seen.extend(list(keys) for _, keys, _ in scripts)
        return await original(self, *scripts)

    monkeypatch.setattr(RedisLink, "scripts", scripts)
    return seen


async def test_every_script_stays_in_one_slot(store: RedisSessionStore, calls: list[list[str]]) -> None:
    assert crc16_slot("123456789") == 0x31C3 % 16_384  # the specification's own example
    for number in range(50):
        scope = Scope(org_id="acme", agent_id="desk", user_id=f"user-{number}")
        session_id = f"{{{number}}}"
        await store.claim(session_id, scope, writer="w")
        await store.append(scope, said(session_id=session_id))
        await store.entries(session_id, limit=5)
        await store.events(session_id, event_type=None, limit=5)
        await store.find(session_id)
        await store.confirm(scope, through=(await store.read(scope, after="", limit=1)).last)
        await store.erase(scope, Selection("all"))

    assert len(calls) > 500
    assert [keys for keys in calls if len({crc16_slot(key) for key in keys}) != 1] == []
    tags = {key.split("}")[0] for keys in calls for key in keys if "{" in key}
    assert len(tags) > SHARDS / 2


@pytest.mark.case("L24")
async def test_L24_no_key_names_a_user_or_a_room(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    keys = await redis.keys("*")
    assert len(keys) == 10
    assert [key for key in keys if "5550109999" in key or not key.startswith("vm:")] == []


async def everything(redis: Any) -> str:
    """All that the server holds, as text."""
    found = []
    for key in await redis.keys("*"):
        kind = await redis.type(key)
        if kind == "hash":
            found.append((key, await redis.hgetall(key)))
        elif kind == "zset":
            found.append((key, await redis.zrange(key, 0, -1, withscores=True)))
        else:
            found.append((key, await redis.get(key)))
    return str(found)


@pytest.mark.case("L24")
@pytest.mark.promise("P-erased")
async def test_L24_P_erased_nothing_of_the_user_is_left(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    assert CANARY in await everything(redis)

    await store.erase(ANA, Selection("all"))

    left = await everything(redis)
    assert [word for word in (CANARY, "5550109999", "acme", "desk", "job", "voice") if word in left] == []
    kinds = sorted(key.split(":")[2] for key in await redis.keys("*"))
    assert kinds == ["ids", "user"]
    assert await redis.pttl(next(key for key in await redis.keys("*") if ":ids:" in key)) > 0


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("what", ["all", "session"])
async def test_P_erased_no_file_holds_it(data_dir: Path, store: RedisSessionStore, redis: Any, what: Any) -> None:
    await redis.config_set("rdbcompression", "no")
    await fill(store)
    await store.append(ANA, said("kept-elephant", session_id="other"))
    # what was trimmed before must be gone as well
    await store.confirm(ANA, through=(await store.read(ANA, after="", limit=1)).records[0].position)
    assert CANARY in on_disk(data_dir)

    await store.erase(ANA, Selection(what, session_id=said().session_id))

    await until_clean(data_dir, CANARY)
    assert ("kept-elephant" in on_disk(data_dir)) == (what == "session")


@pytest.mark.promise("P-erased")
async def test_P_erased_a_rewrite_that_began_before_is_followed_by_another(
    data_dir: Path, store: RedisSessionStore, redis: Any
) -> None:
    await redis.config_set("rdbcompression", "no")
    await redis.config_set("rdb-key-save-delay", 50_000)  # microseconds a key: the first rewrite takes its time
    await fill(store)
    await redis.bgrewriteaof()

    await store.erase(ANA, Selection("all"))
    assert (await redis.info("persistence"))["aof_rewrite_in_progress"]
    await redis.config_set("rdb-key-save-delay", 0)

    await until_clean(data_dir, CANARY)


@pytest.mark.promise("P-erased")
async def test_P_erased_closing_waits_for_the_rewrite(data_dir: Path, url: str, redis: Any) -> None:
    await redis.config_set("rdbcompression", "no")
    await redis.config_set("rdb-key-save-delay", 20_000)
    short = await RedisSessionStore.connect(url)
    await fill(short)
    await redis.bgrewriteaof()
    await short.erase(ANA, Selection("all"))

    await short.aclose()

    await until_clean(data_dir, CANARY)


@pytest.mark.promise("P-erased")
async def test_P_erased_closing_waits_for_a_long_rewrite_that_began_before(
    data_dir: Path, url: str, redis: Any
) -> None:
    await redis.config_set("rdbcompression", "no")
    await redis.config_set("rdb-key-save-delay", 500_000)
    short = await RedisSessionStore.connect(url)
    await fill(short)
    await redis.bgrewriteaof()
    await short.erase(ANA, Selection("all"))
    await redis.config_set("rdb-key-save-delay", 0)

    await short.aclose()

    await until_clean(data_dir, CANARY)


def on_disk(data_dir: Path) -> str:
    files = [path for path in (data_dir / "redis").rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("latin-1") for path in files if path.exists())


async def until_clean(data_dir: Path, word: str) -> None:
    async with asyncio.timeout(30):
        while word in on_disk(data_dir):
            await asyncio.sleep(0.02)


async def test_a_log_goes_on_when_the_servers_clock_goes_back(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    (user,) = await redis.keys("vm:*:user:*")
    ahead = "0007999999999999-001022"
    await redis.hset(user, "last", ahead)

    positions = [(await store.append(ANA, said(f"turn {number}", mode="text"))).position for number in range(4)]

    expected = ["0007999999999999-001023", "0008000000000000-000000", "0008000000000000-000001"]
    assert positions[:3] == expected
    oldest = (await store.entries(said().session_id, limit=4))[0]
    again = await store.append(ANA, oldest)
    assert (again.position, again.stored) == (expected[0], False)


async def test_old_activity_is_dropped(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    (active,) = await redis.keys("vm:*:active")
    now = (await redis.zrange(active, 0, -1, withscores=True))[0][1]
    old = {f"old-{number}": now - 2 * SESSION_TTL_S * 1_000 - 1_000 for number in range(10)}
    await redis.zadd(active, {**old, "yesterday": now - SESSION_TTL_S * 1_000})

    await store.append(ANA, said("one"))
    await store.append(ANA, said("two"))

    left = await redis.zrange(active, 0, -1)
    assert len(left) == 2
    assert "yesterday" in left


async def test_an_anonymous_callers_traces_lapse(store: RedisSessionStore, redis: Any) -> None:
    guest = Scope(org_id="acme", agent_id="desk", user_id="s1", kind="session")
    await store.announce(guest, version=1)
    (user,) = await redis.keys("vm:*:user:*")
    assert 0 < await redis.ttl(user) <= SESSION_TTL_S
    await fill(store, guest)
    assert await redis.ttl(user) == -1  # not before the archive has it
    await store.confirm(guest, through=(await store.read(guest, after="", limit=0)).last)
    assert 0 < await redis.ttl(user) <= SESSION_TTL_S
    await store.append(guest, said("more"))
    assert await redis.ttl(user) == -1
    await store.erase(guest, Selection("all"))
    lasting = [key for key in await redis.keys("*") if await redis.ttl(key) == -1]
    assert lasting == []


# --- what others have left there


async def test_damaged_records_are_told_apart(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    first, *_ = (await store.read(ANA, after="", limit=1)).records
    (log,) = await redis.keys("vm:*:log:*")
    (entries,) = await redis.keys("vm:*:entries:*")
    later = "9000000000000000-00000"
    newer = '{"v":9,"id":"x","event_type":"","session_id":"s"}'
    bodies = {0: "{torn", 1: newer, 2: "[1]", 3: '"text"', 4: "[" * 100_000}
    for number, body in bodies.items():
        await redis.zadd(log, {f"{later}{number}|{first.position}|0|0|{body}": 0})
        await redis.zadd(entries, {f"{later}{number}|{first.position}|0|0|{body}": 0})
    await redis.zadd(log, {f"{later}5": 0, b"9000000000000000-000006|x|0|0|\xff\xfe": 0})

    found = await store.read(ANA, after=first.position, limit=100)

    assert [item.position for item in found.damaged] == [f"{later}{number}" for number in range(7)]
    assert {item.previous for item in found.damaged[:5]} == {first.position}
    assert [item.raw for item in found.damaged[:5]] == list(bodies.values())
    assert len(found.records) == 3
    assert not any(CANARY in item.reason or "torn" in item.reason for item in found.damaged)
    assert len(await store.entries(said().session_id, limit=100)) == 2
    await store.erase(ANA, Selection("all", through="9999999999999999-000000"))
    assert (await store.read(ANA, after="", limit=10)).damaged == ()


async def test_a_key_of_another_kind_is_a_fault_without_content(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    (log,) = await redis.keys("vm:*:log:*")
    await redis.delete(log)
    await redis.set(log, CANARY)

    with pytest.raises(StoreFault, match="WRONGTYPE") as caught:
        await store.append(ANA, said())

    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_a_users_broken_fields_hide_nobody_else(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    ben = Scope(org_id="acme", agent_id="desk", user_id="ben")
    await store.append(ben, said(session_id="b"))
    for user in await redis.keys("vm:*:user:*"):
        if await redis.hget(user, "user") == ANA.user_id:
            await redis.hset(user, "kind", "strange")
    assert await store.pending(limit=10) == [ben]


# --- refusals


async def test_scripts_are_loaded_again_after_a_flush(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    await redis.script_flush()
    assert (await store.append(ANA, said("after"))).stored
    await redis.script_flush()
    assert len(await store.entries(said().session_id, limit=10)) == 3


@pytest.mark.case("L35")
async def test_L35_a_full_server_refuses_and_keeps_what_it_has(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    entry = said("not yet")
    (used,) = await redis.keys("vm:*:sessions:*")
    await redis.zincrby(used, -120_000, (await redis.zrange(used, 0, 0))[0])  # so that a read would note its time
    await redis.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="full"):
        await store.append(ANA, entry)
    assert len(await store.entries(said().session_id, limit=10)) == 2
    await redis.config_set("maxmemory", 0)
    assert (await store.append(ANA, entry)).stored
    assert (await redis.config_get("maxmemory-policy")) == {"maxmemory-policy": "noeviction"}


async def test_a_read_only_replica_is_unavailable(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.append(ANA, said())
    await redis.execute_command("REPLICAOF", "NO", "ONE")
    assert (await store.append(ANA, said("again"))).stored


async def test_wrong_credentials_say_so(url: str, redis: Any) -> None:
    await redis.config_set("requirepass", "right")
    for wrong in (url, url.replace("unix://", "unix://:wrong@")):
        with pytest.raises(StoreFault, match="REDIS_PASSWORD"):
            await RedisSessionStore.connect(wrong)
    store = await RedisSessionStore.connect(url.replace("unix://", "unix://:right@"))
    assert await store.find("s1") is None
    await store.aclose()


async def test_a_user_without_permission_is_told(url: str, redis: Any) -> None:
    await redis.execute_command("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+ping", "+get", "+set", "+client")
    store = await RedisSessionStore.connect(url.replace("unix://", "unix://weak:pw@"))
    with pytest.raises(StoreFault, match="does not let this user"):
        await store.append(ANA, said())
    await store.aclose()


async def test_erasing_where_files_are_not_ours_to_rewrite(url: str, redis: Any) -> None:
    await redis.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~vm:*", "+@all", "-@admin", "-@dangerous")
    store = await RedisSessionStore.connect(url.replace("unix://", "unix://app:pw@"))
    await fill(store)
    assert await store.erase(ANA, Selection("all")) == 4
    await store.aclose()


@pytest.mark.parametrize("text", ["http://localhost", "localhost:6379", ""])
async def test_a_url_that_is_none_is_a_setting_to_fix(text: str) -> None:
    with pytest.raises(SettingsError, match="REDIS_URL"):
        await RedisSessionStore.connect(text)


async def test_no_server_is_unavailable(data_dir: Path) -> None:
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await RedisSessionStore.connect(f"unix://{data_dir}/nothing")


def test_unknown_errors_keep_the_drivers_text_out() -> None:
    error = translate(ValueError(f"about {CANARY}"))
    assert isinstance(error, StoreFault)
    assert CANARY not in str(error)


# --- losses


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("P-silent")
async def test_P_silent_a_frozen_server_is_given_up(store: RedisSessionStore, redis: Any) -> None:
    await fill(store)
    pid = (await redis.info("server"))["process_id"]
    entry = said("while frozen")
    async with asyncio.timeout(20):
        with stopped(pid):
            results = await asyncio.gather(*(store.append(ANA, entry) for _ in range(20)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 20
    await store.append(ANA, entry)
    contents = [item.content for item in await store.entries(said().session_id, limit=50)]
    assert contents.count("while frozen") == 1


async def test_a_lost_server_is_recovered_once(url: str, redis: Any) -> None:
    recovered = 0

    async def recover() -> None:
        nonlocal recovered
        recovered += 1
        async with asyncio.timeout(10):  # the supervisor restarts it
            while True:
                try:
                    await redis.ping()
                    return
                except (OSError, ConnectionError, Exception):
                    await asyncio.sleep(0.01)

    store = await RedisSessionStore.connect(url, on_lost=recover)
    await fill(store)
    os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)

    assert (await store.append(ANA, said("after the loss"))).stored

    assert recovered <= 1  # none, if the new server was quicker than the call
    assert len(await store.entries(said().session_id, limit=50)) == 3
    await store.aclose()


async def test_a_server_that_can_not_be_recovered_is_unavailable(data_dir: Path) -> None:
    async def recover() -> None:
        raise EmbeddedServerUnavailable("No wheel for this platform.")

    link = RedisLink(await _pool(f"unix://{data_dir}/nothing"), recover)
    with pytest.raises(StoreUnavailable, match="No wheel"):
        await link.commands([("PING",)])
    await link.aclose()


async def test_a_recovery_that_hangs_is_cut_off(data_dir: Path) -> None:
    async def recover() -> None:
        await asyncio.Event().wait()

    link = RedisLink(await _pool(f"unix://{data_dir}/nothing"), recover)
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await link.commands([("PING",)])
    await link.aclose()


async def _pool(url: str) -> Any:
    from redis.asyncio import ConnectionPool

    return ConnectionPool.from_url(url)


async def test_closing_twice_is_no_matter(url: str) -> None:
    store = await RedisSessionStore.connect(url)
    await store.aclose()
    await store.aclose()


# --- users at once, and calls cut off


@pytest.mark.case("L22")
@pytest.mark.promise("P-isolated")
async def test_L22_P_isolated_cancelled_calls_mix_nobody(url: str, store: RedisSessionStore, redis: Any) -> None:
    users = [Scope(org_id="acme", agent_id="desk", user_id=f"user-{number}") for number in range(50)]
    chance = random.Random(22)
    for number, user in enumerate(users):
        await store.claim(f"s-{number}", user)
        await store.append(user, said(f"canary-{number}", session_id=f"s-{number}"))

    async def look(number: int) -> bool:
        """Read and write as one user; whether all that came back was this user's."""
        entries = await store.entries(f"s-{number}", limit=5)
        logged: LogSlice = await store.read(users[number], after="", limit=5)
        await store.append(users[number], said(f"canary-{number}", session_id=f"s-{number}"))
        found = [*entries, *(item.record for item in logged.records)]
        return {getattr(item, "content", None) for item in found} == {f"canary-{number}"}

    checked = 0
    for _ in range(60):
        await redis.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        tasks = [asyncio.create_task(look(number)) for number in range(50)]
        await _until_blocked(redis, 8)
        cancelled = chance.sample(tasks, 25)
        for task in cancelled[:15]:
            task.cancel()
        await redis.execute_command("CLIENT", "UNPAUSE")
        for task in cancelled[15:]:
            task.cancel()  # while answers are coming in
        results = await asyncio.gather(*tasks, return_exceptions=True)
        done = [result for result in results if not isinstance(result, asyncio.CancelledError)]
        assert done.count(True) == len(done) >= 25
        checked += len(done)

    assert checked >= 1_000
    for number, user in enumerate(users):
        records = (await store.read(user, after="", limit=500)).records
        assert {getattr(item.record, "content", None) for item in records} == {f"canary-{number}"}
    assert int((await redis.info("clients"))["connected_clients"]) <= 10


async def _until_blocked(redis: Any, count: int) -> None:
    async with asyncio.timeout(10):
        while int((await redis.info("clients"))["blocked_clients"]) < count:
            await asyncio.sleep(0.001)
