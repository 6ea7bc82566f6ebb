"""Recall in process: the indexes of the users now talking, each brought up to date before it answers.

Used by the recall host, and as it is by tests and tools. Above: host, wiring. Below: upkeep, following, embedding.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import HostUnavailable, VoiceMemoryError
from memory.identity import group_digest, group_id
from memory.knowledge_ports import FactSource
from memory.limits import (
    RECALL_FACTS,
    RECALL_QUIET_S,
    RECALL_USERS_MAX,
    SHUTDOWN_FLUSH_S,
    SNAPSHOT_TURNS_MIN,
)
from memory.models import Recall, Scope
from memory.ports import ArchiveStore, Embedder, Selection, TurnLog
from memory.retrieval.deadlines import Deadline
from memory.retrieval.embedding import Begun, EmbedDesk
from memory.retrieval.following import FollowedUser, Retired, Sources
from memory.retrieval.following_facts import FollowedFacts
from memory.retrieval.index import Prepared
from memory.retrieval.profiling import Profiler
from memory.retrieval.snapshot_files import KEY_BYTES, SnapshotStore
from memory.retrieval.tasks import end_all, within
from memory.retrieval.upkeep import Upkeep
from memory.retrieval.vectors import Vector

logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # an index may be dropped by an erasure while a recall waits for it
_RANKING_RESERVE_S = 0.003  # of a budget, kept for ranking; and per turn:
_RANKING_RESERVE_S_PER_TURN = 0.3e-6
_AILING_WAIT_S = 0.05  # for a store that has just kept a recall waiting in vain: it may be back
_STEPS_TO_A_READ = 2  # of the loop, until the driver has sent the log's read
_READ_ON_S = 0.25
_LEAVING_MAX = 8  # evicted indexes whose snapshots are being written


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one recall is to find, and by when."""

    query: str
    limit: int
    deadline: Deadline
    exclude_ids: frozenset[str]


class RecallEngine:
    """Retriever and Erasable over a log and an archive. Belongs to one event loop; close with ``aclose``.

    ``snapshots``: where indexes are kept between processes; ``None`` keeps them nowhere. ``facts``: where those are
    read, if there are any to be had. ``users_max``: indexes held at once; the least recently used is dropped.
    ``embedder_ready``: False until ``embedder_is_ready`` is called.
    """

    def __init__(
        self,
        *,
        log: TurnLog,
        archive: ArchiveStore,
        embedder: Embedder | None,
        clock: Clock,
        snapshots: SnapshotStore | None = None,
        facts: FactSource | None = None,
        users_max: int = RECALL_USERS_MAX,
        embedder_ready: bool = True,
        counters: Counters | None = None,
    ) -> None:
        self._clock, self._users_max = clock, users_max
        self.counters = counters or Counters()
        self._desk = EmbedDesk(embedder, clock, self.counters, ready=embedder_ready)
        self._sources = Sources(log, archive, snapshots, self._desk, clock, facts)
        self._key = secrets.token_bytes(KEY_BYTES)
        self._users: OrderedDict[Scope, FollowedUser] = OrderedDict()
        self._leaving: dict[FollowedUser, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._upkeep = Upkeep(self._users, self._desk, clock, self.counters, self.busy)
        self._closed = False
        self._profiler = Profiler(self._desk, clock)
        self._recalling, self._recalled_s = 0, float("-inf")

    # -- Retriever

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int,
        budget_ms: float,
        exclude_ids: frozenset[str] = frozenset(),
    ) -> Recall:
        """See ``ports.Retriever``. HostUnavailable is raised only once this is closed.

        ``degraded``: ``log`` (the log is away, and nothing is said; or the archive, and what the log has is),
        ``history`` (not all of it is loaded yet), ``vectors`` (by keywords alone), ``facts`` (newer ones may be there).
        """
        asked = _Asked(query, limit, Deadline(self._clock, budget_ms), exclude_ids)
        self._recalling += 1
        try:
            recall = await self._recall(scope, asked)
        finally:
            self._recalling -= 1
            self._recalled_s = self._clock.monotonic()
        return recall.model_copy(update={"elapsed_ms": asked.deadline.elapsed_ms()})

    def busy(self) -> bool:
        """A recall is under way, or was ``RECALL_QUIET_S`` ago or less: the host's other work had better wait."""
        return self._recalling > 0 or self._clock.monotonic() - self._recalled_s <= RECALL_QUIET_S

    async def profile(self, scope: Scope, *, name: str = "", limit: int, budget_ms: float) -> Recall:
        """See ``profile.ProfileSource``. HostUnavailable is raised only once this is closed."""
        deadline = Deadline(self._clock, budget_ms)
        self._recalling += 1
        try:
            recall = await self._attempted(
                scope, lambda user: self._profiler.profile(user, name, limit, deadline), counted="profile"
            )
        finally:
            self._recalling -= 1
            self._recalled_s = self._clock.monotonic()
        return recall.model_copy(update={"elapsed_ms": deadline.elapsed_ms()})

    async def _recall(self, scope: Scope, asked: _Asked) -> Recall:
        if asked.limit <= 0 or not asked.query.strip():
            self.counters.add("recall.requests")
            return Recall()
        return await self._attempted(scope, lambda user: self._answer(user, asked), counted="recall")

    async def _attempted(
        self, scope: Scope, answer: Callable[[FollowedUser], Awaitable[Recall]], *, counted: str
    ) -> Recall:
        self.counters.add(f"{counted}.requests")
        recall = Recall(degraded=("history",))
        await self.start()
        for _ in range(_ATTEMPTS):
            user = self._user(scope)
            try:
                with user.in_use():
                    recall = await answer(user)
                break
            except Retired:
                continue
            finally:
                self._let_go(user)
        for part in recall.degraded:
            self.counters.add(f"{counted}.without_{part}")
        return recall

    async def warm(self, scope: Scope) -> None:
        """See ``ports.Retriever``. Returns once the user's index is loaded."""
        try:
            await self.start()
            user = self._user(scope)
            try:
                with user.in_use():
                    await user.current()
                    await user.facts.looked()
            finally:
                self._let_go(user)
        except (VoiceMemoryError, Retired) as error:
            logger.info("A user could not be loaded ahead: %s", type(error).__name__)

    async def read_on(self, scope: Scope) -> None:
        """What the log has of a user who is held, before it is trimmed: else the next recall has to ask SQL for it.

        Loads nobody, waits a moment at most, and never raises.
        """
        user = self._users.get(scope)
        if user is not None and user.index is not None and not user.ailing:
            with contextlib.suppress(Exception):  # the next recall tells it; the log is trimmed all the same
                await within(_READ_ON_S, user.current())

    # -- Erasable

    async def erase(self, scope: Scope, selection: Selection) -> int:
        """Drop what is held of ``selection``, the user's snapshot included; returns how many turns were loaded of it.

        Call it after log and archive have erased: what they still hold would be read again.
        """
        held = [user for user in (*self._users.values(), *self._leaving) if user.scope == scope]
        gone = [await user.forget(selection) for user in held]
        if (user := self._users.get(scope)) is not None and user.retired:
            del self._users[scope]
        if self._sources.snapshots is not None:
            await self._sources.snapshots.remove(scope)
        return max(gone, default=0)

    # -- life

    def embedder_is_ready(self) -> None:
        """The embedder is loaded: vectors count from now on, and turns without one get theirs."""
        self._desk.ready = True

    async def start(self) -> None:
        """Read the key and begin to look after what is held. Idempotent; ``recall`` and ``warm`` do it, too.

        Raises:
            HostUnavailable: it is closed.
        """
        if self._closed:
            raise HostUnavailable("This recall engine is closed.")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        self._starting.result()

    async def aclose(self) -> None:
        """Write snapshots of what is worth it (``SHUTDOWN_FLUSH_S`` at most) and end everything. Idempotent."""
        self._closed = True
        await end_all((self._starting,))
        await self._upkeep.end()
        try:
            await within(SHUTDOWN_FLUSH_S, self._save_all())
        except TimeoutError:
            logger.warning("Not all snapshots of recall could be written in time; they are built anew when needed.")
        await end_all(self._leaving.values())
        for user in self._users.values():
            await user.close()
        self._users.clear()
        await self._desk.aclose()

    async def _save_all(self) -> None:
        await self._upkeep.save([user for user in self._users.values() if user.unsaved >= SNAPSHOT_TURNS_MIN])
        if self._leaving:
            await asyncio.wait(self._leaving.values())

    def stats(self) -> dict[str, int]:
        """Counts and sizes; nothing of a user is in them."""
        turns = sum(len(user.index) for user in self._users.values() if user.index is not None)
        missing = sum(user.vectors_missing + user.facts.vectors_missing for user in self._users.values())
        counts = {
            "users": len(self._users),
            "turns": turns,
            "facts": sum(len(user.facts) for user in self._users.values()),
        }
        return {**counts, "missing_vectors": missing, **self.counters.snapshot()}

    async def _start(self) -> None:
        snapshots = self._sources.snapshots
        if snapshots is not None:
            try:
                self._key = await snapshots.key()
            except OSError as error:
                logger.warning(
                    "Recall keeps no snapshots, the key can't be read: %s", error.strerror or "no reason given"
                )
                self._sources = replace(self._sources, snapshots=None)
        self._upkeep.begin(self._sources.log, self._sources.snapshots)

    # -- one recall

    async def _answer(self, user: FollowedUser, asked: _Asked) -> Recall:
        # What the query means does not depend on what the log has to tell: both are waited for at once.
        begun = self._desk.begin([asked.query]) if _wants_vector(user) else None
        try:
            return await self._answer_with(begun, user, asked)
        finally:
            if begun is not None:
                begun.cancel()

    async def _answer_with(self, begun: Begun | None, user: FollowedUser, asked: _Asked) -> Recall:
        since = user.tick()
        reading = asyncio.ensure_future(user.current())
        try:
            early = await self._prepared_early(user, asked) if begun is not None else None
            lack = await self._bring_up_to_date(reading, user, asked.deadline)
        finally:
            reading.cancel()
        if user.index is None or user.verified <= since:
            if user.retired or not lack:
                raise Retired
            return Recall(degraded=lack)
        now = self._clock.now()
        prepared = await user.prepare(asked.query, now=now, exclude_ids=asked.exclude_ids, early=early)
        lack = lack if await user.facts.current(asked.deadline, reserve_s=_reserve_s(user)) else (*lack, "facts")
        vector = None
        if self._desk.model and (user.index or len(user.facts)):
            vector = await self._query_vector(begun, user, asked)
            lack = lack if vector is not None and user.has_vectors(asked.exclude_ids) else (*lack, "vectors")
        of_turns = vector if user.has_vectors(asked.exclude_ids) else None
        hits = await user.search(prepared, query_vector=of_turns, limit=asked.limit)
        now = prepared.now
        known = await user.facts.find(
            asked.query, vector=vector, k=RECALL_FACTS, now=now, exclude_turns=asked.exclude_ids
        )
        passages, facts = await user.facts.together(hits, known, now)
        if user.verified <= since:
            raise Retired  # erased while the embedder or the facts were waited for
        return Recall(passages=passages, facts=facts, degraded=lack, state=user.state)

    async def _prepared_early(self, user: FollowedUser, asked: _Asked) -> Prepared | None:
        """The words' part of the search, while the log is read and the query's vector is made: as a rule the log tells
        nothing that changes it."""
        for _ in range(_STEPS_TO_A_READ):
            await asyncio.sleep(0)
        with contextlib.suppress(Retired):
            return await user.prepare(asked.query, now=self._clock.now(), exclude_ids=asked.exclude_ids)
        return None

    async def _bring_up_to_date(
        self, waiting: asyncio.Future[None], user: FollowedUser, deadline: Deadline
    ) -> tuple[str, ...]:
        """What is lacking when the user's index is as current as the deadline allows."""
        reserve_s = _reserve_s(user)
        if user.ailing:  # an outage costs one deadline, not one a turn
            reserve_s = max(reserve_s, deadline.remaining_s() - _AILING_WAIT_S)
        try:
            if await deadline.met_by(waiting, reserve_s=reserve_s):
                waiting.result()
                return ()
            lack = "history"
        except VoiceMemoryError as error:
            lack = "log"
            if not user.ailing:
                name = group_digest(user.scope)
                logger.warning("Recall can't read the turns of user %s: %s", name, type(error).__name__)
        user.ailing = True
        return (lack,)

    async def _query_vector(self, begun: Begun | None, user: FollowedUser, asked: _Asked) -> Vector | None:
        """The query's vector, which may be ``begun``; turns or facts that came just now get theirs in the same
        run, or the next."""
        index = user.index
        if index is None or index.vectors is None:
            return None
        lacking: FollowedUser | FollowedFacts = user
        if not (fresh := user.just_said_without_vector(asked.exclude_ids)):
            lacking, fresh = user.facts, user.facts.just_come_without_vector()
        texts = [asked.query, *(text for _, text in fresh)]
        vectors = await self._desk.for_recall(texts, asked.deadline, reserve_s=_reserve_s(user), begun=begun)
        if vectors is None or vectors.shape[1] != index.vectors.dimension:
            return None
        if fresh:
            await lacking.set_vectors([one for one, _ in fresh], vectors[1:])
        vector: Vector = vectors[0]
        return vector

    # -- the users held

    def _user(self, scope: Scope) -> FollowedUser:
        user = self._users.get(scope)
        if user is None or user.retired:
            key = hashlib.blake2b(group_id(scope).encode(), key=self._key, digest_size=KEY_BYTES).digest()
            user = self._users[scope] = FollowedUser(scope, key, self._sources)
        self._users.move_to_end(scope)
        self._make_room()
        return user

    def _let_go(self, user: FollowedUser) -> None:
        """Nothing is kept of a user of whom nothing is known, so that strangers take no room."""
        if not user.users and user.unknown and self._users.get(user.scope) is user:
            del self._users[user.scope]
            user.retire()

    def _make_room(self) -> None:
        free = [user for user in self._users.values() if not user.users] if len(self._users) > self._users_max else []
        for user in free[: len(self._users) - self._users_max]:
            if next(reversed(self._users.values())) is user:
                break  # the one that is asked for right now
            del self._users[user.scope]
            if user.unsaved >= SNAPSHOT_TURNS_MIN and len(self._leaving) < _LEAVING_MAX:
                self._leaving[user] = asyncio.create_task(self._leave(user))
            else:
                user.retire()

    async def _leave(self, user: FollowedUser) -> None:
        try:
            await self._upkeep.save([user])
        finally:
            await user.close()
            del self._leaving[user]


def _reserve_s(user: FollowedUser) -> float:
    return _RANKING_RESERVE_S + _RANKING_RESERVE_S_PER_TURN * (0 if user.index is None else len(user.index))


def _wants_vector(user: FollowedUser) -> bool:
    """A recall of this user will, most likely, compare meanings: it is loaded, has vectors, and its stores answer."""
    return user.index is not None and len(user.index) > 0 and not user.ailing and user.has_vectors()
