"""The contracts between policy (service, context, retrieval, ingestion) and adapters (stores, providers).

Each is small; what only some adapters can do is a Protocol of its own. Guarantees (order, loss, durability) are
part of the contract and are checked by ``tests/conformance`` on every implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from memory.clock import Clock
from memory.models import MemoryEntry, MemoryEvent, MemorySettings, Mode, Recall, Record, Scope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Appended",
    "ArchiveStore",
    "ArchivedRecord",
    "Clock",
    "DamagedRecord",
    "DeadLetters",
    "Embedder",
    "Erasable",
    "LogRecord",
    "LogSlice",
    "Redacted",
    "Redactor",
    "Retriever",
    "Selection",
    "SessionList",
    "SessionState",
    "SessionStore",
    "SessionSummary",
    "SettingsStore",
    "Summarizer",
    "TurnLog",
    "WriterLeases",
]


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did. ``stored`` is False for an id that was there already (the call still succeeded). ``first``:
    the store knew no record of the session, erased ones included: there was none, or it has lost them.
    """

    position: str
    stored: bool
    first: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a session store knows of one session besides its entries. ``known``: there was a record of it, erased ones
    included."""

    scope: Scope
    mode: Mode | None = None
    language: str = ""
    known: bool = False


class SessionStore(Protocol):
    """The session and short-term layers, and the way into the durable per-user log.

    Order: entries and events of one session come back in the order of their appends. Loss: an append that
    returned is as durable as the server's append-only file. A session's reads end ``SESSION_TTL_S`` after its
    last use; the log does not.
    """

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> SessionState:
        """Bind ``session_id`` to ``scope``; idempotent, and extends the TTL.

        With ``writer`` (a name unique to a recording process) also take or renew the session's recording lease,
        which lapses after ``WRITER_LEASE_S``.

        Raises:
            SessionOwnership: the session is bound to another scope.
            NotTheWriter: another writer holds an unexpired lease.
            StoreUnavailable: the store is away.
        """
        ...

    async def find(self, session_id: str) -> SessionState | None:
        """Whose session it is, or ``None`` if unknown or expired. Never creates anything."""
        ...

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended:
        """Store one entry or event, in one atomic step: log, session list, mode event, de-duplication, activity.

        ``record.session_id`` must be claimed by ``scope``. The same ``record.id`` again changes nothing.
        An entry whose mode differs from the session's last one first records a ``mode_switch`` event (``data``:
        ``from_mode``, ``to_mode``, ``trigger`` = ``detected``); an explicit ``mode_switch`` event to the mode the
        session is in by a detected switch that is still its newest event is not stored a second time.

        Raises:
            NotTheWriter: ``writer`` is given and somebody else holds an unexpired lease.
            StoreUnavailable: not stored, or not known to be: append again, the id makes that safe.
        """
        ...

    async def entries(self, session_id: str, *, limit: int) -> list[MemoryEntry]:
        """The newest ``limit`` entries, oldest first; extends the TTL.

        At most ``SESSION_MESSAGES_MAX`` of them and ``SESSION_READ_BYTES_MAX``, but one at least if there is any: of a
        session of very long turns the newest come.
        """
        ...

    async def events(self, session_id: str, *, event_type: str | None, limit: int) -> list[MemoryEvent]:
        """The newest ``limit`` events, of one type if given, oldest first. Bounded as ``entries`` is."""
        ...


class WriterLeases(Protocol):
    """A session store whose recording leases need not be waited out."""

    async def release(self, session_id: str, scope: Scope, *, writer: str) -> None:
        """End the lease that ``writer`` holds on the session, so that another may record it at once; idempotent.

        Changes nothing where another writer holds it. Whoever releases for a writer that isn't itself must know that
        it is dead.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record in the user's log. ``previous`` is the position before it, whether or not that is still there."""

    position: str
    previous: str
    record: Record


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """What lies at a position of the log and can't be read as a record: damaged, or written by a newer version.

    ``raw`` is what was found, for a later version or a person to read; it is user content. ``reason`` is not.
    """

    position: str
    previous: str
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Part of a log. ``last``: position of the newest record ever appended ("" if none). ``epoch`` counts erasures:
    whoever holds copies made under another epoch must drop them. ``damaged`` lie between the ``records`` and count
    towards the limit of the read. ``facts``: the newest version of the user's facts that was announced."""

    records: tuple[LogRecord, ...]
    last: str
    epoch: int
    damaged: tuple[DamagedRecord, ...] = ()
    facts: int = 0


class TurnLog(Protocol):
    """The durable log of each user, until the archive has confirmed it.

    Positions are strings that sort: a later append has a greater position, also across a restart. "" sorts first.
    """

    async def pending(self, *, limit: int) -> list[Scope]:
        """Users whose log holds records the archive has not confirmed, longest waiting first."""
        ...

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        """Records later than ``after`` ("" = from the start of what is there). Never creates anything.

        At most ``limit`` of them, ``LOG_READ_MAX`` and ``LOG_READ_BYTES_MAX``, but one at least if there is any:
        whoever has not come to ``last`` reads on. ``limit`` 0 gives ``last`` and ``epoch`` alone. A reader whose own
        position is not the first record's ``previous`` (or, without records, not ``last``) has missed some that were
        trimmed: the archive has them.
        """
        ...

    async def confirm(self, scope: Scope, *, through: str) -> None:
        """The archive holds everything up to ``through``: it may be trimmed. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ArchivedRecord:
    """A record in the archive; ``cursor`` orders the archive's records of one user and is never used again."""

    cursor: int
    position: str
    record: Record


class ArchiveStore(Protocol):
    """The long-term layer: every user's records, verbatim, in SQL.

    Durability: ``store`` returned = committed. Effect: exactly once by ``record.id`` within a scope.
    """

    async def store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        """Store records in order; returns how many were new. Any failure stores none of them.

        Raises:
            StoreUnavailable: try again; nothing was stored, or all of it and the repeat has no effect.
        """
        ...

    async def read(self, scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        """Records of one user after a cursor (0 = from the start), oldest first.

        At most ``limit`` of them and ``ARCHIVE_READ_CHARS_MAX`` of what was said, but one at least if there is any.
        Fewer than ``limit`` that have no more than half of that text are the last ones.
        """
        ...

    async def history(
        self, scope: Scope, *, session_id: str | None, before: datetime | None, limit: int
    ) -> list[MemoryEntry]:
        """The newest ``limit`` entries, of one session if given, said before ``before`` if given; oldest first.

        At most ``ARCHIVE_READ_CHARS_MAX`` of text, but one entry at least if there is any.
        """
        ...

    async def position(self, scope: Scope) -> str:
        """The latest log position this archive holds for the user ("" if none).

        It never goes back: records since erased, and those that an erasure kept from being stored, count as well.
        """
        ...


class DeadLetters(Protocol):
    """An archive that also keeps what can't be stored as a record, so that it blocks nothing and isn't lost."""

    async def set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> int:
        """Keep these; returns how many were new by (scope, position). Erasures cover them as they cover records;
        one that doesn't tell its session or time is taken to be meant.

        Raises:
            StoreUnavailable: try again.
        """
        ...


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in the archive: when its first and its last record were made, and how many turns it has."""

    session_id: str
    first_at: datetime
    last_at: datetime
    entries: int


class SessionList(Protocol):
    """An archive that can list a user's sessions."""

    async def sessions(self, scope: Scope, *, limit: int, before: SessionSummary | None = None) -> list[SessionSummary]:
        """Newest first by ``last_at``; ``before``: the last one of the page before."""
        ...


class SettingsStore(Protocol):
    """A user's own choices. They outlive an erasure: who has switched memory off and forgets all, has it off."""

    async def get_settings(self, scope: Scope) -> MemorySettings | None:
        """What the user has chosen, or ``None``: nothing yet."""
        ...

    async def put_settings(self, scope: Scope, settings: MemorySettings) -> None: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """What to erase of one scope: one session, everything said since a time, or all of it.

    ``through`` is the log's ``last`` when the erasure was asked for: what is appended later is not meant. An archive
    remembers the selection, so that a record of it that is still on its way is never stored afterwards.
    """

    what: Literal["session", "since", "all"]
    session_id: str | None = None
    since: datetime | None = None
    through: str = ""


class Erasable(Protocol):
    """A store that can forget. When ``erase`` returns, no read of this store gives the data any more."""

    async def erase(self, scope: Scope, selection: Selection) -> int:
        """Erase; returns how many entries and events went. Idempotent; 0 says that nothing was there.

        A log counts its ``epoch`` up, also for 0.
        """
        ...


class Embedder(Protocol):
    """Text to vectors of unit length, float32, shape (len(texts), dimension)."""

    @property
    def model(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Raises EmbedderUnavailable where the model can't run."""
        ...


class Retriever(Protocol):
    """Recall over all sessions of one user."""

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int,
        budget_ms: float,
        exclude_ids: frozenset[str] = frozenset(),
    ) -> Recall:
        """The passages that bear on ``query``, best first; none where nothing does.

        Includes everything appended before the call (read-your-writes, in any process). Returns within
        ``budget_ms``; what was missing by then is named in ``degraded``.

        Raises:
            HostUnavailable: no answer within the budget.
        """
        ...

    async def warm(self, scope: Scope) -> None:
        """The user is about to talk: load what ``recall`` needs. Never raises."""
        ...


class Summarizer(Protocol):
    """Turns into one short text."""

    async def summarize(self, entries: Sequence[MemoryEntry]) -> str: ...


@dataclass(frozen=True, slots=True)
class Redacted:
    """Text with secrets masked, and how many were."""

    text: str
    count: int


class Redactor(Protocol):
    """Masks what must never be stored. Pure, quick, and idempotent: redacting twice changes nothing more."""

    def redact(self, text: str) -> Redacted: ...
