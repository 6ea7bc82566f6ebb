"""What recall does between recalls: reads on, fills in vectors, keeps snapshots, removes those of before an erasure.

Above: engine. Below: following, embedding, snapshot_files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import StoreUnavailable, VoiceMemoryError
from memory.limits import (
    AWAY_IN_A_ROW,
    EMBED_IDLE_BATCH,
    FOLLOW_ACTIVE_S,
    FOLLOW_POLL_S,
    FOLLOW_POLL_S_MAX,
    RECALL_YIELD_S_MAX,
    SNAPSHOT_EVERY_S,
    SNAPSHOT_KEEP_S,
    SNAPSHOT_QUIET_S,
    SNAPSHOT_SWEEP_S,
    SNAPSHOT_TURNS_MIN,
)
from memory.models import Scope
from memory.ports import TurnLog
from memory.retrieval.deadlines import while_busy
from memory.retrieval.embedding import EmbedDesk
from memory.retrieval.following import FollowedUser, Retired
from memory.retrieval.snapshot_files import SnapshotStore
from memory.retrieval.tasks import end_all

logger = logging.getLogger(__name__)


class Upkeep:
    """Looks after ``users``, which is the engine's and changes all the time. ``begin`` it, and ``end`` it.

    While ``busy`` it does nothing, but for ``RECALL_YIELD_S_MAX`` of each round at most.
    """

    def __init__(
        self,
        users: Mapping[Scope, FollowedUser],
        desk: EmbedDesk,
        clock: Clock,
        counters: Counters,
        busy: Callable[[], bool],
    ) -> None:
        self._users, self._desk, self._clock, self._counters, self._busy = users, desk, clock, counters, busy
        self._loops: list[asyncio.Task[None]] = []
        self._filling: asyncio.Task[None] | None = None

    def begin(self, log: TurnLog, snapshots: SnapshotStore | None) -> None:
        self._loops.append(asyncio.create_task(self._again_and_again(self._follow, FOLLOW_POLL_S)))
        if snapshots is not None:

            async def sweep() -> None:
                await self._sweep(log, snapshots)

            self._loops.append(asyncio.create_task(self._again_and_again(sweep, SNAPSHOT_SWEEP_S)))

    async def end(self) -> None:
        await end_all((*self._loops, self._filling))

    async def save(self, users: Iterable[FollowedUser]) -> None:
        """Write snapshots of these; what can't be written is told, and no more."""
        for user in users:
            user.not_saved_before_s = self._clock.monotonic() + SNAPSHOT_EVERY_S  # unless it goes well
            try:
                if await user.save():
                    self._counters.add("snapshot.written")
                user.not_saved_before_s = float("-inf")
            except OSError as error:
                logger.warning("A snapshot of recall can't be written: %s", error.strerror or type(error).__name__)
            except VoiceMemoryError as error:
                logger.info("A snapshot of recall was not written: %s", type(error).__name__)

    async def _again_and_again(self, duty: Callable[[], Awaitable[None]], every_s: float) -> None:
        well = True
        while True:
            try:
                await duty()
                well = True
            except Exception as error:  # whatever it is must not end it for good
                (logger.warning if well else logger.debug)("Recall's upkeep is held up: %s", type(error).__name__)
                well = False
            await self._clock.sleep(every_s)

    async def _follow(self) -> None:
        """Read on in the logs of users now talking, and have the embedder do what is left to do."""
        now_s, away = self._clock.monotonic(), 0
        for user in [user for user in self._users.values() if _due(user, now_s)]:
            await while_busy(self._busy, self._clock, now_s + RECALL_YIELD_S_MAX)
            user.facts.look()
            try:
                await user.current()
                away = 0
            except Retired:
                continue
            except VoiceMemoryError as error:
                away = away + 1 if isinstance(error, StoreUnavailable) else 0
                if away >= AWAY_IN_A_ROW:
                    raise
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())
        await self.save(self._quiet(now_s))

    def _quiet(self, now_s: float) -> list[FollowedUser]:
        return [
            user
            for user in self._users.values()
            if user.unsaved >= SNAPSHOT_TURNS_MIN
            and user.settled
            and now_s >= user.not_saved_before_s
            and (now_s - user.changed_s >= SNAPSHOT_QUIET_S or now_s - user.saved_s >= SNAPSHOT_EVERY_S)
        ][:1]  # one a round: the disk is shared

    async def _fill(self) -> None:
        """Vectors for older turns and facts, a few at a time, round the users, while nobody waits for the embedder."""
        until_s = self._clock.monotonic() + RECALL_YIELD_S_MAX
        while lacking := [
            part for user in self._users.values() for part in (user, user.facts) if part.missing_vectors(1)
        ]:
            for part in lacking:
                await while_busy(self._busy, self._clock, until_s)
                missing = part.missing_vectors(EMBED_IDLE_BATCH)
                vectors = await self._desk.when_idle([text for _, text in missing]) if missing else None
                if vectors is None:
                    return
                await part.set_vectors([one for one, _ in missing], vectors)

    async def _sweep(self, log: TurnLog, snapshots: SnapshotStore) -> None:
        """Remove snapshots of users of whom something was erased elsewhere, and of those who never come back."""
        for header in await snapshots.headers():
            head = await log.read(header.scope, after="", limit=0)
            if head.epoch != header.epoch:
                await snapshots.remove(header.scope)
                self._counters.add("snapshot.swept")
        await snapshots.prune(older_than_s=SNAPSHOT_KEEP_S)


def _due(user: FollowedUser, now_s: float) -> bool:
    """Whoever has been quiet for long is not likely to have said something just now."""
    quiet_s, unread_s = now_s - max(user.used_s, user.changed_s), now_s - user.read_s
    return now_s - user.used_s < FOLLOW_ACTIVE_S and unread_s >= min(quiet_s / 2, FOLLOW_POLL_S_MAX)
