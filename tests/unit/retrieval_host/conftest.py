"""An engine over stores that tests can stall, with a clock of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memory.models import Recall, Scope
from memory.retrieval.engine import RecallEngine
from memory.retrieval.snapshot_files import SnapshotStore, snapshot_directory
from tests.support.recalls import (
    ManualClock,
    TroubledArchive,
    TroubledLog,
    WordEmbedder,
    archive_all,
    said,
    scope_of,
)


@dataclass
class Bench:
    """An engine and everything around it."""

    clock: ManualClock
    log: TroubledLog
    archive: TroubledArchive
    embedder: WordEmbedder
    engine: RecallEngine
    data_dir: Path

    async def say(self, *contents: str, scope: Scope | None = None, **fields: Any) -> list[str]:
        """Append entries; returns their ids."""
        entries = [said(content, **fields) for content in contents]
        for entry in entries:
            await self.log.append(scope or scope_of(), entry)
        return [entry.id for entry in entries]

    async def archive_all(self, scope: Scope | None = None) -> None:
        await archive_all(self.log, self.archive, scope or scope_of())

    async def recall(
        self, query: str, scope: Scope | None = None, *, budget_ms: float = 300.0, limit: int = 8
    ) -> Recall:
        return await self.engine.recall(scope or scope_of(), query, limit=limit, budget_ms=budget_ms)

    def another(self, **fields: Any) -> RecallEngine:
        """A second engine over the same stores, as another process would have."""
        settings: dict[str, Any] = {"embedder": self.embedder, "clock": self.clock, **fields}
        return RecallEngine(log=self.log, archive=self.archive, **settings)

    def snapshots(self) -> SnapshotStore:
        return SnapshotStore(snapshot_directory(self.data_dir))


@pytest.fixture
async def bench(data_dir: Path) -> AsyncIterator[Bench]:
    clock, embedder = ManualClock(), WordEmbedder()
    log, archive = TroubledLog(clock), TroubledArchive()
    engine = RecallEngine(log=log, archive=archive, embedder=embedder, clock=clock)
    yield Bench(clock, log, archive, embedder, engine, data_dir)
    for trouble in (log.trouble, archive.trouble):
        trouble.open.set()
    embedder.hold.set()
    await engine.aclose()
