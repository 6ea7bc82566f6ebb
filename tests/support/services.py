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


async def archive_all(backend: Backend) -> None:
    """Move every log into the archive."""
    await Archiver(backend.sessions, await backend.archive(), SystemClock()).drain()


async def contents(service: UnifiedMemoryService, session_id: str, **options: Any) -> list[str]:
    """What a session's history says."""
    return [entry.content for entry in await service.get_history(session_id, **options)]
