"""A session store and an archive in this process, gone with it: for tests and for trying out.

The same contracts as ``redis`` and ``sql``, checked by the same tests. Above: wiring. Below: rules, ports, models.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from memory.clock import Clock
from memory.errors import NotTheWriter, SessionOwnership
from memory.limits import (
    ARCHIVE_READ_CHARS_MAX,
    LOG_READ_BYTES_MAX,
    LOG_READ_MAX,
    SESSION_EVENTS_MAX,
    SESSION_MESSAGES_MAX,
    SESSION_READ_BYTES_MAX,
    SESSION_TTL_S,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, MemoryEvent, MemorySettings, Mode, Record, Scope, in_order
from memory.ports import (
    Appended,
    ArchivedRecord,
    DamagedRecord,
    LogRecord,
    LogSlice,
    Selection,
    SessionState,
    SessionSummary,
)
from memory.stores.rules import (
    MODE_SWITCH,
    bytes_of,
    chars_of,
    detected_switch,
    language_of,
    mode_of,
    next_position,
    selects,
    within,
)

_IDS_MAX = SESSION_MESSAGES_MAX + SESSION_EVENTS_MAX


@dataclass
class _User:
    log: list[LogRecord] = field(default_factory=list)
    last: str = ""
    epoch: int = 0
    facts: int = 0


@dataclass
class _Session:
    expires: float
    mode: Mode | None = None
    language: str = ""
    detected: tuple[Mode, str] | None = None  # the newest event, if it is a detected switch: mode and position
    writer: str | None = None
    lease_ends: float = 0.0
    entries: deque[LogRecord] = field(default_factory=lambda: deque(maxlen=SESSION_MESSAGES_MAX))
    events: deque[LogRecord] = field(default_factory=lambda: deque(maxlen=SESSION_EVENTS_MAX))
    ids: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def check_writer(self, writer: str | None, now: float) -> None:
        if writer is not None and self.writer not in (None, writer) and self.lease_ends > now:
            raise NotTheWriter("Another process records this session; it must lapse or end before this one may.")

    def remember(self, record_id: str, position: str) -> None:
        self.ids[record_id] = position
        while len(self.ids) > _IDS_MAX:
            self.ids.popitem(last=False)


class InMemorySessionStore:
    """SessionStore, WriterLeases, TurnLog, FactNotices and Erasable in memory. TTL, leases and positions go by
    ``clock``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owners: dict[str, tuple[Scope, float]] = {}
        self._sessions: dict[tuple[Scope, str], _Session] = {}
        self._users: dict[Scope, _User] = {}

    async def durability(self) -> list[str]:
        return ["Turns are kept in this process alone and end with it. Set REDIS_URL, or leave it unset."]

    async def filled(self) -> dict[str, int]:
        return {}

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> SessionState:
        self._drop_expired()
        owner = self._owner(session_id)
        if owner is not None and owner != scope:
            raise SessionOwnership("This session belongs to another user; start one under an id of its own.")
        session = self._session(scope, session_id)
        now = self._clock.monotonic()
        self._owners[session_id] = (scope, now + SESSION_TTL_S)
        if session is None and writer is None:
            return SessionState(scope)
        session = session or self._new_session(scope, session_id)
        if writer is not None:
            session.check_writer(writer, now)
            session.writer, session.lease_ends = writer, now + WRITER_LEASE_S
        session.expires = now + SESSION_TTL_S
        return _state(scope, session)

    async def release(self, session_id: str, scope: Scope, *, writer: str) -> None:
        session = self._session(scope, session_id)
        if session is not None and session.writer == writer:
            session.writer = None

    async def find(self, session_id: str) -> SessionState | None:
        scope = self._owner(session_id)
        if scope is None:
            return None
        session = self._session(scope, session_id)
        return _state(scope, session) if session else SessionState(scope)

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended:
        now = self._clock.monotonic()
        session = self._session(scope, record.session_id) or self._new_session(scope, record.session_id)
        session.check_writer(writer, now)
        session.expires = now + SESSION_TTL_S
        self._owners[record.session_id] = (self._owner(record.session_id) or scope, now + SESSION_TTL_S)
        if (known := session.ids.get(record.id)) is not None:
            return Appended(known, stored=False)
        mode, first = mode_of(record), not session.ids
        if isinstance(record, MemoryEvent):
            if record.event_type == MODE_SWITCH and session.detected and session.detected[0] == mode:
                session.remember(record.id, session.detected[1])
                return Appended(session.detected[1], stored=False)
            session.detected = None
        elif session.mode is not None and session.mode != record.mode:
            session.detected = (record.mode, self._put(scope, session, detected_switch(record)))
        session.mode = mode or session.mode
        session.language = language_of(record) or session.language
        return Appended(self._put(scope, session, record), stored=True, first=first)

    async def entries(self, session_id: str, *, limit: int) -> list[MemoryEntry]:
        session = self._used(session_id)
        found = [item.record for item in session.entries] if session and limit > 0 else []
        entries = [record for record in found[-limit:] if isinstance(record, MemoryEntry)]
        return within(reversed(entries), bytes_of, SESSION_READ_BYTES_MAX)[::-1]

    async def events(self, session_id: str, *, event_type: str | None, limit: int) -> list[MemoryEvent]:
        session = self._used(session_id)
        found = [item.record for item in session.events] if session and limit > 0 else []
        events = [record for record in found if isinstance(record, MemoryEvent)]
        chosen = [event for event in events if event_type in (None, event.event_type)][-limit:]
        return within(reversed(chosen), bytes_of, SESSION_READ_BYTES_MAX)[::-1]

    async def pending(self, *, limit: int) -> list[Scope]:
        waiting = [(user.log[0].position, scope) for scope, user in self._users.items() if user.log]
        return [scope for _, scope in sorted(waiting, key=lambda item: item[0])[:limit]]

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        user = self._users.get(scope, _User())
        records = [item for item in user.log if item.position > after][: max(0, min(limit, LOG_READ_MAX))]
        part = tuple(within(records, lambda item: bytes_of(item.record), LOG_READ_BYTES_MAX))
        return LogSlice(part, user.last, user.epoch, facts=user.facts)

    async def announce(self, scope: Scope, *, version: int) -> None:
        user = self._users.setdefault(scope, _User())
        user.facts = max(user.facts, version)

    async def confirm(self, scope: Scope, *, through: str) -> None:
        if (user := self._users.get(scope)) is not None:
            user.log = [item for item in user.log if item.position > through]

    async def erase(self, scope: Scope, selection: Selection) -> int:
        user = self._users.setdefault(scope, _User())
        through = selection.through or user.last

        def meant(item: LogRecord) -> bool:
            record = item.record
            return item.position <= through and selects(selection, record.session_id, record.timestamp)

        gone = {item.position for item in user.log if meant(item)}
        user.log = [item for item in user.log if not meant(item)]
        for (owner, session_id), session in list(self._sessions.items()):
            if owner == scope and (selection.what != "session" or session_id == selection.session_id):
                gone |= self._erase_session(session, meant, whole=selection.what != "since")
        for session_id, (owner, _) in list(self._owners.items()):
            empty = not self._holds(scope, session_id)
            if owner == scope and empty and (selection.what == "all" or session_id == selection.session_id):
                del self._owners[session_id]
        user.epoch += 1
        user.facts = 0 if selection.what == "all" else user.facts
        return len(gone)

    def _erase_session(self, session: _Session, meant: Callable[[LogRecord], bool], *, whole: bool) -> set[str]:
        gone = {item.position for item in (*session.entries, *session.events) if meant(item)}
        for records in (session.entries, session.events):
            kept = [item for item in records if not meant(item)]
            records.clear()
            records.extend(kept)
        if not gone and not whole:
            return gone
        session.detected = None
        if not session.entries and not session.events:
            # The ids stay for as long as the session would have: a late repeat of an append must not bring it back.
            session.mode, session.language, session.writer = None, "", None
        return gone

    def _holds(self, scope: Scope, session_id: str) -> bool:
        session = self._session(scope, session_id)
        return session is not None and bool(session.entries or session.events)

    def _put(self, scope: Scope, session: _Session, record: Record) -> str:
        user = self._users.setdefault(scope, _User())
        position = next_position(user.last, int(self._clock.now().timestamp() * 1_000))
        item = LogRecord(position, user.last, record)
        user.log.append(item)
        user.last = position
        (session.entries if isinstance(record, MemoryEntry) else session.events).append(item)
        session.remember(record.id, position)
        return position

    def _owner(self, session_id: str) -> Scope | None:
        scope, expires = self._owners.get(session_id, (None, 0.0))
        return scope if expires > self._clock.monotonic() else None

    def _session(self, scope: Scope, session_id: str) -> _Session | None:
        session = self._sessions.get((scope, session_id))
        return session if session and session.expires > self._clock.monotonic() else None

    def _new_session(self, scope: Scope, session_id: str) -> _Session:
        session = _Session(self._clock.monotonic() + SESSION_TTL_S)
        self._sessions[scope, session_id] = session
        return session

    def _used(self, session_id: str) -> _Session | None:
        scope = self._owner(session_id)
        if scope is None:
            return None
        expires = self._clock.monotonic() + SESSION_TTL_S
        self._owners[session_id] = (scope, expires)
        if (session := self._session(scope, session_id)) is not None:
            session.expires = expires
        return session

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        self._owners = {key: owner for key, owner in self._owners.items() if owner[1] > now}
        self._sessions = {key: session for key, session in self._sessions.items() if session.expires > now}


class InMemoryArchive:
    """ArchiveStore, DeadLetters, SessionList, SettingsStore and Erasable in memory."""

    def __init__(self) -> None:
        self._users: dict[Scope, _Archived] = {}

    async def store(self, scope: Scope, records: Sequence[LogRecord]) -> int:
        user = self._users.setdefault(scope, _Archived())
        return sum(user.add(item) for item in records)

    async def read(self, scope: Scope, *, after: int, limit: int) -> list[ArchivedRecord]:
        found = [item for item in self._of(scope).records if item.cursor > after][:limit]
        return within(found, lambda item: chars_of(item.record), ARCHIVE_READ_CHARS_MAX)

    async def history(
        self, scope: Scope, *, session_id: str | None, before: datetime | None, limit: int
    ) -> list[MemoryEntry]:
        found = in_order(item.record for item in self._of(scope).records if isinstance(item.record, MemoryEntry))
        chosen = [
            entry
            for entry in found
            if session_id in (None, entry.session_id) and (before is None or entry.timestamp < before)
        ]
        entries = [entry for entry in chosen if isinstance(entry, MemoryEntry)][-limit:] if limit > 0 else []
        return within(reversed(entries), chars_of, ARCHIVE_READ_CHARS_MAX)[::-1]

    async def position(self, scope: Scope) -> str:
        return self._of(scope).position

    async def set_aside(self, scope: Scope, damaged: Sequence[DamagedRecord]) -> int:
        user = self._users.setdefault(scope, _Archived())
        return sum(user.set_aside(item) for item in damaged)

    async def sessions(self, scope: Scope, *, limit: int, before: SessionSummary | None = None) -> list[SessionSummary]:
        by_session: dict[str, list[Record]] = {}
        for item in self._of(scope).records:
            by_session.setdefault(item.record.session_id, []).append(item.record)
        found = sorted((_summary(*pair) for pair in by_session.items()), key=_newest_last, reverse=True)
        return [one for one in found if before is None or _newest_last(one) < _newest_last(before)][:limit]

    async def get_settings(self, scope: Scope) -> MemorySettings | None:
        return self._of(scope).settings

    async def put_settings(self, scope: Scope, settings: MemorySettings) -> None:
        self._users.setdefault(scope, _Archived()).settings = settings

    async def erase(self, scope: Scope, selection: Selection) -> int:
        user = self._users.setdefault(scope, _Archived())
        return user.erase(selection)

    async def beyond_reach(self) -> list[str]:
        return []

    def _of(self, scope: Scope) -> _Archived:
        return self._users.get(scope) or _Archived()


@dataclass
class _Archived:
    """One user's part of the archive."""

    records: list[ArchivedRecord] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    letters: dict[str, DamagedRecord] = field(default_factory=dict)
    erased: list[Selection] = field(default_factory=list)
    position: str = ""
    cursor: int = 0
    settings: MemorySettings | None = None

    def add(self, item: LogRecord) -> bool:
        record = item.record
        self.position = max(self.position, item.position)
        if record.id in self.ids or self._buried(item.position, record.session_id, record.timestamp):
            return False
        self.cursor += 1
        self.records.append(ArchivedRecord(self.cursor, item.position, record))
        self.ids.add(record.id)
        return True

    def set_aside(self, item: DamagedRecord) -> bool:
        self.position = max(self.position, item.position)
        if item.position in self.letters or self._buried(item.position, *_told(item.raw)):
            return False
        self.letters[item.position] = item
        return True

    def erase(self, selection: Selection) -> int:
        self.erased.append(selection)
        size = len(self.records) + len(self.letters)

        def kept(position: str, session_id: str | None, said_at: datetime | None) -> bool:
            later = bool(selection.through) and position > selection.through
            return later or not selects(selection, session_id, said_at)

        self.records = [one for one in self.records if kept(one.position, one.record.session_id, one.record.timestamp)]
        self.letters = {key: one for key, one in self.letters.items() if kept(key, *_told(one.raw))}
        self.ids = {one.record.id for one in self.records}
        return size - len(self.records) - len(self.letters)

    def _buried(self, position: str, session_id: str | None, said_at: datetime | None) -> bool:
        return any(position <= one.through and selects(one, session_id, said_at) for one in self.erased)


def _told(raw: str) -> tuple[str | None, datetime | None]:
    try:
        found = json.loads(raw)
        session_id, said_at = found.get("session_id"), found.get("timestamp")
    except (ValueError, AttributeError, RecursionError):
        return None, None
    try:
        moment = datetime.fromisoformat(said_at)
    except (ValueError, TypeError):
        moment = None
    known = moment if moment is not None and moment.tzinfo is not None else None
    return session_id if isinstance(session_id, str) else None, known


def _summary(session_id: str, records: list[Record]) -> SessionSummary:
    times = [record.timestamp for record in records]
    entries = sum(isinstance(record, MemoryEntry) for record in records)
    return SessionSummary(session_id, min(times), max(times), entries)


def _newest_last(summary: SessionSummary) -> tuple[datetime, str]:
    return summary.last_at, summary.session_id


def _state(scope: Scope, session: _Session) -> SessionState:
    return SessionState(scope, session.mode, session.language, known=bool(session.ids))
