"""Parts for tests of the service: turns, and stores in memory."""

from __future__ import annotations

from typing import Any

from memory.clock import SystemClock
from memory.ingestion.archiver import Archiver
from memory.models import MemoryEntry
from memory.service import UnifiedMemoryService
from memory.wiring import Backend


def say(content: str, **fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"role": "user", "content": content, "mode": "voice", "language": "en", **fields})


# Ids of L02: more than a store's alphabet holds, look-alikes of each other, and names that mean something to a store.
L02_IDS = [
    *("+15550109999", "15550109999", "p15550109999", "user@example.org", "user_example_org", "user-example-org"),
    *("ليلى", "مريم", "_", "default_db", "x" * 300, "x" * 299 + "y", "a/b", "A", "a"),
]


async def tell_and_read_back(service: UnifiedMemoryService, user_id: str, number: int) -> None:
    """L02: a secret word for one id, in a session of its own; fails where it reads anything but its own word."""
    fact = f"My secret word is magenta{number}x."
    await service.add_entry(f"session-{number}", say(fact), user_id)
    recalled = await service.recall("What is my secret word?", user_id=user_id, budget_ms=60_000)
    assert [passage.text for passage in recalled.passages] == [fact]
    assert await contents(service, f"session-{number}", user_id=user_id) == [fact]


async def archive_all(backend: Backend) -> None:
    """Move every log into the archive."""
    await Archiver(backend.sessions, await backend.archive(), SystemClock()).drain()


async def contents(service: UnifiedMemoryService, session_id: str, **options: Any) -> list[str]:
    """What a session's history says."""
    return [entry.content for entry in await service.get_history(session_id, **options)]
