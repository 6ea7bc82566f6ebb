"""What is known of a user in general: asked for once, when a session starts. Imports nothing heavy.

Above: engine, client, plugin. Below: models.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from memory.models import Recall, Scope

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
