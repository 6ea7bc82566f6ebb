"""Facts in a real archive, without an LLM: what ingestion does to the stores, and nothing else of it."""

from __future__ import annotations

from dataclasses import replace

from memory.clock import SystemClock
from memory.knowledge import Chunk, KnownFact
from memory.knowledge_ports import SessionRef
from memory.models import Scope
from memory.stores.chunks_sql import SqlChunkStore
from memory.stores.knowledge_sql import SqlKnowledgeStore
from memory.stores.sql import SqlArchive
from tests.support.archives import entry, logged
from tests.support.knowing import LATER, by_turns, learnt, unprojected


class Learner:
    """Commits facts of one user; each commit is of a chunk, and of a session, of its own."""

    def __init__(self, archive: SqlArchive, scope: Scope) -> None:
        self._archive, self._scope = archive, scope
        self._chunks = SqlChunkStore(archive.database, SystemClock())
        self.knowledge = SqlKnowledgeStore(archive.database, archive.users, SystemClock())
        self._number = 0

    async def learn(self, *texts: str, ending: KnownFact | None = None) -> tuple[int, list[KnownFact]]:
        """The user's new version, and the facts of ``texts``, which end ``ending``."""
        chunk = await self._chunk()
        patch = learnt(chunk, *texts, minute=self._number)
        if ending is not None:
            ended = replace(ending, invalid_at=patch.facts[0].statement.valid_at)
            patch = replace(patch, changed=(ended,))
        version = await self.knowledge.commit(chunk, patch, unprojected)
        assert version is not None
        return version, list(patch.facts)

    async def _chunk(self) -> Chunk:
        self._number += 1
        session_id = f"learnt-{self._number}"
        # Positions of long ago: the log's own go on from where they are.
        await self._archive.store(self._scope, logged([entry("hello", session=session_id)], start=self._number))
        async with self._archive.database.reading() as connection:
            user = await self._archive.users.number(connection, self._scope)
        assert user is not None
        await self._chunks.cut(SessionRef(user, session_id), by_turns(10), limit=10)
        chunk = await self._chunks.next(user, now=LATER)
        assert chunk is not None
        return chunk
