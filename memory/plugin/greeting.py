"""The profile of a session's user: asked for while the session starts, told in its first LLM calls and never again.

Which calls: one that greets (nobody has said anything yet), and those of the first turn whose recall says that nothing
was erased or has changed since the profile was made. Above: recall, opening. Below: retrieval.profile.
"""

from __future__ import annotations

import asyncio
import logging

from memory.clock import Clock
from memory.counters import Counters
from memory.limits import PROFILE_BUDGET_MS, PROFILE_LIMIT
from memory.models import Fact, Recall, Scope
from memory.retrieval.profile import ProfileSource, untold
from memory.retrieval.tasks import end_all

logger = logging.getLogger("memory.plugin")

_FRESH_S = 10.0  # a greeting has no recall that could tell of an erasure: an older profile is not told in one


class Profile:
    """One session's. Nobody waits for it, and nothing here raises. Close with ``aclose``."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self._clock, self._counters = clock, counters
        self._source: ProfileSource | None = None
        self._scope: Scope | None = None
        self._name = ""
        self._asking: asyncio.Task[None] | None = None
        self._made: Recall | None = None
        self._made_s = 0.0
        self._told_after: tuple[str, ...] | None = None  # the user's messages before the turn that it was told in

    def ask(self, source: ProfileSource, scope: Scope, name: str) -> None:
        """Have it made, in the background."""
        self._source, self._scope, self._name = source, scope, name
        self._ask()

    def for_greeting(self) -> tuple[Fact, ...]:
        """What a greeting is told."""
        fresh = self._clock.monotonic() - self._made_s <= _FRESH_S
        return self._made.facts if self._made is not None and fresh and self._told_after is None else ()

    def for_turn(self, recall: Recall | None, earlier: tuple[str, ...], present: frozenset[str]) -> tuple[Fact, ...]:
        """What a turn is told, besides what its ``recall`` has found.

        ``earlier``: ids of the user's messages before it. ``present``: ids of the entries that are in the context.
        """
        if self._told_after not in (None, earlier):
            self._made = None
        if self._made is None or recall is None:
            return ()
        if recall.state != self._made.state:
            self._made = None  # something has changed since: it is made anew, for the turn after this one
            self._ask()
            return ()
        self._told_after = earlier
        return untold(self._made, recall, present)

    async def aclose(self) -> None:
        """Stop asking. Idempotent."""
        self._source = None
        await end_all((self._asking,))

    def _ask(self) -> None:
        if self._source is not None and self._scope is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._made_by(self._source, self._scope), name="memory.profile")

    async def _made_by(self, source: ProfileSource, scope: Scope) -> None:
        try:
            made = await source.profile(scope, name=self._name, limit=PROFILE_LIMIT, budget_ms=PROFILE_BUDGET_MS)
        except Exception as error:
            self._counters.add("profile.failed")
            logger.info("a session starts without its user's profile (%s)", type(error).__name__)
            return
        self._counters.add("profile.ok" if made.facts else "profile.empty")
        self._made, self._made_s = made, self._clock.monotonic()
