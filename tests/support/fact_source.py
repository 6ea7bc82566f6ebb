"""Facts as SQL would give them, for tests: changes by version, which can stall, be away, and are counted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from memory.knowledge import derived_id
from memory.knowledge_ports import FactChanges
from memory.models import Fact, Scope, Source
from tests.support.recalls import NOON, Trouble

EARLIER = NOON - timedelta(days=30)


def fact(
    text: str,
    *,
    key: str = "",
    turns: Iterable[str] = (),
    session: str = "past",
    said_at: datetime = EARLIER,
    valid_at: datetime | None = EARLIER,
    invalid_at: datetime | None = None,
    category: str = "user_information",
) -> Fact:
    """A fact whose id is its text's, or ``key``'s, said once in ``turns``."""
    return Fact(
        id=derived_id("fact", key or text),
        text=text,
        category=category,
        valid_at=valid_at,
        invalid_at=invalid_at,
        sources=(Source(session_id=session, turns=tuple(turns), said_at=said_at),),
    )


class Facts:
    """FactSource: each ``commit`` is a version. ``part``: versions told in one read."""

    def __init__(self) -> None:
        self.trouble = Trouble()
        self.part = 1_000
        self._commits: dict[Scope, list[tuple[Fact, ...]]] = {}

    def commit(self, scope: Scope, *facts: Fact) -> int:
        """Returns the new version."""
        self._commits.setdefault(scope, []).append(facts)
        return len(self._commits[scope])

    def forget(self, scope: Scope) -> None:
        self._commits.pop(scope, None)

    async def changes(self, scope: Scope, *, after: int, limit: int) -> FactChanges:
        await self.trouble.meet(after)
        commits = self._commits.get(scope, [])
        upto = min(len(commits), after + self.part)
        newest = {one.id: number for number, part in enumerate(commits, 1) for one in part}
        found = [
            one
            for number, part in enumerate(commits[:upto], 1)
            if number > after
            for one in part
            if newest[one.id] == number
        ]
        return FactChanges(upto, tuple(found), complete=upto == len(commits))


def at(day: int, hour: int = 12) -> datetime:
    """A moment in the month before NOON's."""
    return datetime(2026, 2, day, hour, tzinfo=UTC)
