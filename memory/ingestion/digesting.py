"""The episodic layer: a digest of each session that went quiet, by the LLM if there is one, else by quoting.

What ingestion asks the LLM for a chunk's facts brings its part of the digest along (``digests.noted``); asked here are
only sessions that it left without one, such as those whose chunks were given up on.

Above: worker. Below: digests (what a digest says), breaker, knowledge_ports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import ProviderAnswerInvalid
from memory.ingestion.asked import LanguageModels
from memory.ingestion.breaker import Breaker
from memory.ingestion.confidential import Confidential
from memory.ingestion.digests import Digest, digest
from memory.knowledge import SessionDigest
from memory.knowledge_ports import DigestStore, SessionRef
from memory.limits import CHUNK_TURNS_MAX, INGEST_USERS_MAX
from memory.models import MemoryEntry
from memory.ports import Summarizer


@dataclass(frozen=True, slots=True)
class Teller:
    """An LLM that digests sessions, and the breaker that it is asked through."""

    llms: LanguageModels
    breaker: Breaker


class Digester:
    """Makes users' digests (``worker.Digests``). ``teller`` gives the LLM, or ``None`` where there is none.

    Counts ``digests.made`` and ``digests.by_llm``.
    """

    def __init__(
        self,
        store: DigestStore,
        extractive: Summarizer,
        clock: Clock,
        counters: Counters,
        *,
        confidential: Confidential,
        idle_s: float,
        teller: Callable[[], Teller | None],
    ) -> None:
        self._store, self._extractive, self._clock, self._teller = store, extractive, clock, teller
        self._confidential, self._idle_s = confidential, idle_s
        self.counters = counters

    async def digest(self, user: int) -> None:
        """Raises ProviderUnavailable, ProviderRefused: the LLM is away; the sessions stay due."""
        before = self._clock.now() - timedelta(seconds=self._idle_s)
        # Of all users' the first ones: this one is queued because it is among them.
        teller = self._teller()
        refs = await self._store.undigested(before=before, limit=INGEST_USERS_MAX, ingested=teller is not None)
        for ref in refs:
            if ref.user == user:
                await self._digest(ref, teller)

    async def _digest(self, ref: SessionRef, teller: Teller | None) -> None:
        entries = await self._store.entries(ref, limit=CHUNK_TURNS_MAX)
        if not entries:
            return
        said = await self._confidential.entries(entries, ref, self._store)
        made = await self._made(said, teller)
        times = [item.entry.timestamp for item in entries]
        kept = SessionDigest(
            session_id=ref.session_id,
            summary=made.summary,
            key_moments=made.key_moments,
            made_by=made.made_by,
            through_cursor=entries[-1].cursor,
            first_at=min(times),
            last_at=max(times),
        )
        if await self._store.put(ref, kept):
            self.counters.add("digests.made")

    async def _made(self, said: Sequence[MemoryEntry], teller: Teller | None) -> Digest:
        if teller is not None:
            try:
                with teller.llms.one() as llm:
                    made = await teller.breaker.ask(lambda: digest(said, llm, extractive=self._extractive))
            except ProviderAnswerInvalid:
                pass  # its next answer to the same turns would hardly be better
            else:
                self.counters.add("digests.by_llm")
                return made
        return await digest(said, None, extractive=self._extractive)
