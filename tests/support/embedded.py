"""An embedded server that can't be had. Above: tests of who asks for it again and again."""

from __future__ import annotations

import pytest

from memory.errors import EmbeddedServerUnavailable
from memory.stores.embedded import EmbeddedServer


def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> tuple[list[EmbeddedServer], list[EmbeddedServer]]:
    """Have every embedded server refuse; returns those that were asked so far and those that were let go of."""
    asked: list[EmbeddedServer] = []
    closed: list[EmbeddedServer] = []

    async def ensure(server: EmbeddedServer) -> str:
        asked.append(server)
        raise EmbeddedServerUnavailable("its disk is full")

    async def aclose(server: EmbeddedServer) -> None:
        closed.append(server)

    monkeypatch.setattr(EmbeddedServer, "ensure", ensure)
    monkeypatch.setattr(EmbeddedServer, "aclose", aclose)
    return asked, closed
