"""The profile of one user, from the facts that are held. Above: engine. Below: following, embedding, profile."""

from __future__ import annotations

import asyncio

from memory.clock import Clock
from memory.errors import VoiceMemoryError
from memory.models import Recall
from memory.retrieval.deadlines import Deadline
from memory.retrieval.embedding import EmbedDesk, Vectors
from memory.retrieval.following import FollowedUser, Retired
from memory.retrieval.profile import PROFILE_QUERIES

_RANKING_RESERVE_S = 0.01  # of a budget, kept for ranking


class Profiler:
    """Makes profiles. The queries' meanings are the same for everybody: they are embedded once."""

    def __init__(self, desk: EmbedDesk, clock: Clock) -> None:
        self._desk, self._clock = desk, clock
        self._meanings: Vectors | None = None

    async def profile(self, user: FollowedUser, name: str, limit: int, deadline: Deadline) -> Recall:
        """See ``ProfileSource``.

        Raises:
            Retired: what is held of the user was dropped meanwhile.
        """
        since = user.tick()
        lack = await self._current(user, deadline)
        if user.verified <= since:
            if user.retired or not lack:
                raise Retired
            return Recall(degraded=lack)
        words = [f"{name} {query}".strip() for query in PROFILE_QUERIES]
        meanings = await self._meant(deadline) if len(user.facts) else None
        known = await user.facts.profile(words, meanings, limit=limit, now=self._clock.now())
        if user.verified <= since:
            raise Retired  # erased while the facts or the embedder were waited for
        return Recall(facts=tuple(one.fact for one in known), degraded=lack, state=user.state)

    async def _current(self, user: FollowedUser, deadline: Deadline) -> tuple[str, ...]:
        """What is lacking once log and facts are as current as the deadline allows."""
        reading = asyncio.ensure_future(user.current())
        try:
            if not await deadline.met_by(reading, reserve_s=_RANKING_RESERVE_S):
                return ("history",)
            reading.result()
        except VoiceMemoryError:
            return ("log",)
        finally:
            reading.cancel()
        looking = asyncio.ensure_future(user.facts.looked())
        try:
            looked = await deadline.met_by(looking, reserve_s=_RANKING_RESERVE_S)
        finally:
            looking.cancel()
        return () if looked and user.facts.whole else ("facts",)

    async def _meant(self, deadline: Deadline) -> Vectors | None:
        if self._meanings is None and self._desk.model:
            self._meanings = await self._desk.for_recall(PROFILE_QUERIES, deadline, reserve_s=_RANKING_RESERVE_S)
        return self._meanings
