"""``python -m agent ingest`` as a real process, with the test LLM beside it; and what a user is known by afterwards.

Above: integration tests. Below: memory.wiring_ingestion, graph_llm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory import wiring
from memory.clock import SystemClock
from memory.ingestion.archiver import Archiver
from memory.knowledge import Knowledge
from memory.models import MemoryEntry, Scope
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.settings import Settings, load_settings
from memory.stores.chunks_sql import SqlChunkStore
from memory.stores.digests_sql import SqlDigestStore
from memory.stores.knowledge_sql import SqlKnowledgeStore
from memory.stores.sql import SqlArchive

SOON_S = 60.0
IDLE_S = 1.0
_HEALTH = re.compile(r"health is answered on port (\d+)")


def environment(data_dir: Path, llm_url: str, **more: str) -> dict[str, str]:
    """What a worker and its settings are made of."""
    return {
        "VOICEASSIST_DATA_DIR": str(data_dir),
        "MEMORY_HOST_IDLE_SECONDS": "2",
        "MEMORY_IDLE_SECONDS": str(IDLE_S),
        "OPENAI_BASE_URL": llm_url,
        "AGENT_HEALTH_HOST": "127.0.0.1",
        "AGENT_INGEST_HEALTH_PORT": "0",
        **more,
    }


class IngestProcess:
    """One worker. ``said`` is what it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, values: dict[str, str], *words: str) -> IngestProcess:
        command = words or ("-m", "agent", "ingest")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env={**os.environ, **values},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.said += line.decode()
            self._changed.set()
        self._changed.set()

    async def until_said(self, text: str, timeout_s: float = SOON_S) -> None:
        async with asyncio.timeout(timeout_s):
            while text not in self.said:
                assert not self._reading.done(), f"it ended early: {self.said}"
                self._changed.clear()
                await self._changed.wait()

    async def health(self) -> dict[str, Any]:
        await self.until_said("health is answered")
        found = _HEALTH.search(self.said)
        assert found is not None
        url = f"http://127.0.0.1:{found[1]}/health"

        def asked() -> dict[str, Any]:
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    body: dict[str, Any] = json.load(answer)
            except urllib.error.HTTPError as error:
                body = json.load(error)
            return body

        return await asyncio.to_thread(asked)

    async def until_healthy(self, component: str) -> dict[str, Any]:
        async with asyncio.timeout(SOON_S):
            while True:
                found = (await self.health())["components"].get(component, {})
                if found.get("status") == "healthy":
                    return dict(found)
                await asyncio.sleep(0.1)

    async def end(self, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(timeout_s):
            code = await self._process.wait()
            await self._reading
        return code


@contextlib.asynccontextmanager
async def ingesting(values: dict[str, str], *words: str) -> AsyncIterator[IngestProcess]:
    """A worker for the duration of the block."""
    process = await IngestProcess.start(values, *words)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            await process.end(signal.SIGKILL)


@dataclass
class World:
    """The stores that workers share, from a caller's side."""

    settings: Settings
    sessions: wiring.Sessions
    archive: SqlArchive
    chunks: SqlChunkStore
    knowledge: SqlKnowledgeStore
    digests: SqlDigestStore
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    @classmethod
    async def open(cls, values: dict[str, str]) -> World:
        settings = load_settings()
        closers: list[Callable[[], Awaitable[None]]] = []
        sessions = await wiring.open_sessions(settings, closers)
        archive = await wiring.open_archive(settings, closers)
        assert isinstance(archive, SqlArchive)
        clock = SystemClock()
        database, users = archive.database, archive.users
        return cls(
            settings,
            sessions,
            archive,
            SqlChunkStore(database, clock),
            SqlKnowledgeStore(database, users, clock),
            SqlDigestStore(database, users, clock),
            closers,
        )

    def scope(self, user: str) -> Scope:
        return Scope(org_id=self.settings.org_id, agent_id=self.settings.agent_id, user_id=user)

    async def say(self, user: str, *texts: str, session: str = "call-1", archived: bool = True) -> None:
        """What a call leaves behind, its recorder gone without a word."""
        scope, clock = self.scope(user), SystemClock()
        intake = Intake(CardRedactor(), clock)
        begun = datetime.now(UTC) - timedelta(minutes=5)
        await self.sessions.claim(session, scope)
        for place, text in enumerate(texts):
            said = MemoryEntry(
                role="user", content=text, mode="voice", language="en", timestamp=begun + timedelta(seconds=place)
            )
            await self.sessions.append(scope, intake.entry(said, scope, session))
        if archived:
            await Archiver(self.sessions, self.archive, clock).drain()

    async def facts(self, user: str) -> list[str]:
        changes = await self.knowledge.changes(self.scope(user), after=0, limit=1_000)
        now = datetime.now(UTC)
        return sorted(fact.text for fact in changes.facts if fact.invalid_at is None or fact.invalid_at > now)

    async def knows(self, user: str) -> tuple[int, Knowledge]:
        return await self.knowledge.read(self.scope(user))

    async def until_facts(self, user: str, wanted: Sequence[str], timeout_s: float = SOON_S) -> None:
        async with asyncio.timeout(timeout_s):
            while await self.facts(user) != sorted(wanted):
                await asyncio.sleep(0.05)

    async def until(self, true: Callable[[], Awaitable[bool]], timeout_s: float = SOON_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not await true():
                await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        while self.closers:
            await self.closers.pop()()
