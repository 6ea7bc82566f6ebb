"""What is known of a user in general: asked for once, when a session starts. Imports nothing heavy.

Above: engine, client, plugin, service. Below: models, limits, errors.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from memory.errors import HostUnavailable
from memory.limits import PROFILE_LIMIT
from memory.models import Fact, Recall, Scope

# What users of the format know to be asked at a session's start, word for word.
PROFILE_QUERIES = (
    "user personal information age name preferences",
    "what the user told me about themselves",
    "facts about the user",
    "user mentioned said told",
)


@runtime_checkable
class ProfileSource(Protocol):
    """A retriever that knows users in general."""

    async def profile(self, scope: Scope, *, name: str = "", limit: int, budget_ms: float) -> Recall:
        """The facts that hold now and answer ``PROFILE_QUERIES`` best, best first; never passages.

        ``name``, the user's, adds keywords to the queries and decides nothing else. Returns within ``budget_ms``;
        what was missing by then is named in ``degraded``. ``state`` is as of a recall's: a profile whose state is
        another than a later recall's may hold what was erased or has changed since.

        Raises:
            HostUnavailable: no answer within the budget.
        """
        ...


async def profile_of(retriever: object, scope: Scope, *, budget_ms: float) -> Recall:
    """A user's profile, within ``budget_ms`` in any case. Empty for a session without a user, and where ``retriever``
    knows no profiles.

    Raises:
        HostUnavailable: it was not there in time.
    """
    if scope.kind != "user" or not isinstance(retriever, ProfileSource):
        return Recall()
    try:
        async with asyncio.timeout(budget_ms / 1_000):
            return await retriever.profile(scope, limit=PROFILE_LIMIT, budget_ms=budget_ms)
    except TimeoutError:
        raise HostUnavailable("The recall host did not make the profile in time.") from None


def untold(made: Recall, recall: Recall, present: frozenset[str]) -> tuple[Fact, ...]:
    """The facts of the profile ``made`` that neither ``recall`` nor the turns in the context say, whose ids ``present``
    holds. None where the two are of different states: something was erased or has changed in between."""
    if made.state != recall.state:
        return ()
    told = {fact.id for fact in recall.facts}
    shown = present | {passage.id for passage in recall.passages}
    return tuple(fact for fact in made.facts if fact.id not in told and not _is_shown(fact, shown))


def _is_shown(fact: Fact, shown: frozenset[str]) -> bool:
    turns = [turn for source in fact.sources for turn in source.turns]
    return bool(turns) and all(turn in shown for turn in turns)
