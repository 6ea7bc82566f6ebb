"""What several files here stand on; a file, or a directory, that needs another one has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import redis_server
from tests.support.redis_server import DURABLE, RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that keeps what it is given."""
    with redis_server.running(*DURABLE) as running:
        yield running
