"""Forgetting, in an order that leaves nothing to come back, with a receipt. Above: service. Below: ports, settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol

from memory.errors import InvalidEntry, InvalidIdentity
from memory.models import Scope
from memory.ports import Erasable, LogSlice, Selection
from memory.settings import Settings

DeletionScope = Literal["session", "day", "all"]


class ErasableLog(Erasable, Protocol):
    """The session store, as far as erasing needs it."""

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice: ...


@dataclass(frozen=True, slots=True)
class GraphErasure:
    """What an erasure took beyond the turns. ``graph`` says how the copy in the graph is: "" = there was none, or it
    had nothing of it; "pending" = the graph was away, and an ingestion worker sees to it."""

    facts: int = 0
    graph: Literal["", "done", "pending"] = ""


class ErasableGraph(Protocol):
    """The graph, as far as erasing needs it."""

    async def settle(self, scope: Scope) -> GraphErasure:
        """The archive has erased: have the scope's graph be what is left, within bounds, or later.

        Raises:
            StoreUnavailable: the archive is away.
        """
        ...


@dataclass(frozen=True, slots=True)
class ErasureReceipt:
    """What a deletion did. False where nothing was there: nobody is told that something was deleted that wasn't.

    ``sessions``, ``archive``, ``recall`` and ``spool`` count entries and events that went from each layer; one turn is
    often in several. ``facts`` are what was known from them alone; ``graph``: see GraphErasure. ``beyond_reach`` names
    copies that this system can't delete.
    """

    selection: Selection
    sessions: int = 0
    archive: int = 0
    recall: int = 0
    beyond_reach: tuple[str, ...] = ()
    spool: int = 0
    facts: int = 0
    graph: Literal["", "done", "pending"] = ""

    @property
    def deleted(self) -> int:
        """How many entries and events are gone, at least: the most that one layer held."""
        return max(self.sessions, self.archive, self.recall, self.spool)

    def __bool__(self) -> bool:
        return self.deleted > 0 or self.facts > 0

    def __str__(self) -> str:
        if not self:
            return "Nothing was stored, so nothing was deleted."
        text = f"Deleted {self.deleted} entries and events."
        if self.facts:
            text = f"Deleted {self.deleted} entries and events, and {self.facts} facts."
        if self.graph == "pending":
            text += " The graph database is away; an ingestion worker deletes them there."
        return f"{text} Beyond reach: {'; '.join(self.beyond_reach)}." if self.beyond_reach else text


def selection(scope: DeletionScope, *, session_id: str | None, now: datetime) -> Selection:
    """What a user means by deleting one session, the day, or everything.

    ``day`` is the last 24 hours: today, wherever on earth the user is.

    Raises:
        InvalidIdentity: ``scope`` is ``session``, and ``session_id`` is missing.
        InvalidEntry: an unknown ``scope``.
    """
    if scope == "all":
        return Selection("all")
    if scope == "day":
        return Selection("since", since=now - timedelta(days=1))
    if scope != "session":
        raise InvalidEntry("scope: must be 'session', 'day' or 'all'.")
    if not session_id:
        raise InvalidIdentity("session_id: say which session of the user to delete.")
    return Selection("session", session_id=session_id)


def beyond_reach(settings: Settings) -> tuple[str, ...]:
    """Copies that may exist and that no delete of this system gets at."""
    copies = ["backups and snapshots of the data directory made by others"]
    if (settings.database_url or "").startswith("postgres"):
        copies.append("PostgreSQL's write-ahead log, replicas and backups")
    if settings.redis_url or settings.redis_host:
        copies.append("the Redis server's own snapshots, replicas and backups")
        copies.append("turns that other machines hold on disk until they reach Redis again")
        copies.append("recall's snapshots on machines where nobody uses the memory now, until somebody does")
    return tuple(copies)


async def erase(
    scope: Scope,
    selection: Selection,
    *,
    sessions: ErasableLog,
    archive: Erasable,
    recall: Erasable | None,
    spool: Erasable | None = None,
    graph: ErasableGraph | None = None,
    beyond_reach: Sequence[str] = (),
) -> ErasureReceipt:
    """Erase ``selection`` of ``scope`` everywhere; when this returns, nothing recalls, lists or re-creates it.

    The spool of this machine comes first: what has gone from it into the log is found there, the rest never gets there.
    ``selection.through`` is taken from the log where it isn't given: what is said from now on is not meant. The archive
    comes next, since it remembers the selection: a record that is already on its way from the log is refused from
    then on, and what was learnt from it goes in the same step. Then log and sessions, whose epoch tells every reader to
    drop its copies; then the indexes, which can only be built anew from what is left. The graph comes last: no call
    reads it, and where it is away, that is remembered.

    Raises:
        StoreUnavailable, HostUnavailable: not finished; call again, it is idempotent.
    """
    spooled = await spool.erase(scope, selection) if spool else 0
    if not selection.through:
        selection = replace(selection, through=(await sessions.read(scope, after="", limit=0)).last)
    archived = await archive.erase(scope, selection)
    in_sessions = await sessions.erase(scope, selection)
    recalled = await recall.erase(scope, selection) if recall else 0
    learnt = await graph.settle(scope) if graph else GraphErasure()
    counts = (in_sessions, archived, recalled)
    return ErasureReceipt(selection, *counts, tuple(beyond_reach), spooled, learnt.facts, learnt.graph)
