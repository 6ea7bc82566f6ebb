"""The session layer and the per-user log on Redis: SessionStore, TurnLog, FactNotices and Erasable.

Above: wiring. Below: connection, scripts, rules, ports. Belongs to the event loop it was opened in.

Keys, all below ``vm:``. ``<u>`` and ``<s>`` are digests of the scope's group id and of the session id: nobody's number
or room is readable in a key, and no id can be long or strange enough to matter. ``{n}`` is the user's shard, a hash
tag: a script touches keys of one user and its shard, so one slot of a cluster::

    vm:{n}:pending               sorted set  <u> by the time of the first record that waits for the archive
    vm:{n}:active                sorted set  <u>:<s> by the time of the last append; of the last two days
    vm:{n}:user:<u>              hash        last (position), epoch, facts; org, agent, user, kind while there is a log
    vm:{n}:log:<u>               timeline    what the archive has not confirmed
    vm:{n}:sessions:<u>          sorted set  <s> by the time of the last use                           \\
    vm:{n}:session:<u>:<s>       hash        id, mode, language, detected (switch), writer and lease    | these
    vm:{n}:entries:<u>:<s>       timeline    the newest SESSION_MESSAGES_MAX                            | expire
    vm:{n}:events:<u>:<s>        timeline    the newest SESSION_EVENTS_MAX                              | together
    vm:{n}:ids:<u>:<s>           sorted set  record ids by their position                               |
    vm:session:<s>               string      the owner's scope as JSON                                 /

A timeline is a sorted set in the order of its text; see ``scripts``. What expires does so up to a minute after
SESSION_TTL_S without use: a use is noted once a minute, so that most reads write nothing. ``user`` stays for good: its
position and epoch are what other processes tell an erasure by, and all that it then holds.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from memory.errors import NotTheWriter, SessionOwnership, VoiceMemoryError
from memory.identity import group_id
from memory.limits import (
    LOG_READ_BYTES_MAX,
    LOG_READ_MAX,
    SESSION_EVENTS_MAX,
    SESSION_MESSAGES_MAX,
    SESSION_READ_BYTES_MAX,
    SESSION_TTL_S,
    SHARDS,
    WRITER_LEASE_S,
)
from memory.models import MemoryEntry, MemoryEvent, Mode, Record, Scope, record_from_dict
from memory.ports import Appended, DamagedRecord, LogRecord, LogSlice, Selection, SessionState
from memory.stores import durability, scripts
from memory.stores.connection import Command, Recovery, RedisLink, Script, ScriptCall
from memory.stores.rewriting import Rewriting
from memory.stores.rules import POSITION_CHARS, detected_switch, language_of, mode_of

_CLAIM = Script.of(scripts.CLAIM)
_RELEASE = Script.of(scripts.RELEASE)
_APPEND = Script.of(scripts.APPEND)
_SESSION_READ = Script.of(scripts.SESSION_READ)
_LOG_READ = Script.of(scripts.LOG_READ)
_ANNOUNCE = Script.of(scripts.ANNOUNCE)
_CONFIRM = Script.of(scripts.CONFIRM)
_ERASE_CHUNK = Script.of(scripts.ERASE_CHUNK)
_ERASE_SESSION = Script.of(scripts.ERASE_SESSION)
_ERASE_FINISH = Script.of(scripts.ERASE_FINISH)
_OWNER_KEEP = Script.of(scripts.OWNER_KEEP)
_OWNER_DROP = Script.of(scripts.OWNER_DROP)

_TRIM_CHUNK = 1_000  # records removed by one call; Redis does nothing else meanwhile
_ERASE_CHUNK_RECORDS = 200
_READ_CHUNK = 8  # records that a script looks at in one go
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The names of one user's keys."""

    user: str
    shard: int

    @classmethod
    def of(cls, scope: Scope) -> Self:
        digest = _digest(group_id(scope))
        return cls(digest, int(digest[:8], 16) % SHARDS)

    def mine(self, *kinds: str) -> list[str]:
        return [f"vm:{{{self.shard}}}:{kind}:{self.user}" for kind in kinds]

    def of_session(self, session: str, *kinds: str) -> list[str]:
        return [f"vm:{{{self.shard}}}:{kind}:{self.user}:{session}" for kind in kinds]

    @property
    def pending(self) -> str:
        return _pending(self.shard)

    @property
    def active(self) -> str:
        return f"vm:{{{self.shard}}}:active"

    @property
    def log(self) -> list[str]:
        return [*self.mine("user", "log"), self.pending]

    def session(self, session: str) -> list[str]:
        return [*self.of_session(session, "session", "entries", "events", "ids"), *self.mine("sessions")]


def _pending(shard: int) -> str:
    return f"vm:{{{shard}}}:pending"


def _owner_key(session: str) -> str:
    return f"vm:session:{session}"


def _keep_owner(session: str, scope: Scope, *, take: bool = True) -> ScriptCall:
    return _OWNER_KEEP, [_owner_key(session)], (_dump_scope(scope), SESSION_TTL_S, "1" if take else "")


class RedisSessionStore:
    """SessionStore, WriterLeases, TurnLog, FactNotices and Erasable on one Redis."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._rewriting = Rewriting(self._command)

    @classmethod
    async def connect(cls, url: str, *, on_lost: Recovery | None = None) -> Self:
        """Open the store on the Redis at ``url``; ``on_lost`` brings a lost server back (the embedded one's ensure).

        Raises:
            SettingsError: ``url`` is no Redis URL.
            StoreUnavailable: Redis is away.
            StoreFault: it refuses the credentials.
        """
        return cls(await RedisLink.open(url, on_lost=on_lost))

    async def aclose(self) -> None:
        """Close the connections; an AOF rewrite that is still wanted is waited for, within bounds. Idempotent."""
        await self._rewriting.aclose()
        await self._link.aclose()

    async def _command(self, *command: str) -> Any:
        return (await self._link.commands([command]))[0]

    async def durability(self) -> list[str]:
        """See ``durability.check``."""
        return await durability.check(self._link)

    async def filled(self) -> dict[str, int]:
        """See ``durability.filled``."""
        return await durability.filled(self._link)

    async def claim(self, session_id: str, scope: Scope, *, writer: str | None = None) -> SessionState:
        keys, session = _Keys.of(scope), _digest(session_id)
        if await self._link.script(*_keep_owner(session, scope)) != _dump_scope(scope):
            raise SessionOwnership("This session belongs to another user; start one under an id of its own.")
        lease_ms = int(WRITER_LEASE_S * 1_000)
        free, *state = await self._link.script(
            _CLAIM, keys.session(session), (session, writer or "", lease_ms, SESSION_TTL_S)
        )
        if not free:
            raise _not_the_writer()
        return _state(scope, *state)

    async def release(self, session_id: str, scope: Scope, *, writer: str) -> None:
        key = _Keys.of(scope).of_session(_digest(session_id), "session")
        await self._link.script(_RELEASE, key, (writer,))

    async def find(self, session_id: str) -> SessionState | None:
        session = _digest(session_id)
        scope = await self._owner(session)
        if scope is None:
            return None
        key, ids = _Keys.of(scope).of_session(session, "session", "ids")
        found, known = await self._link.commands([("HMGET", key, "mode", "language"), ("EXISTS", ids)])
        return _state(scope, found[0] or "", found[1] or "", known)

    async def append(self, scope: Scope, record: Record, *, writer: str | None = None) -> Appended:
        keys, session = _Keys.of(scope), _digest(record.session_id)
        names = [*keys.log, keys.active, *keys.mine("sessions"), *keys.session(session)[:-1]]
        limits = (SESSION_TTL_S, SESSION_MESSAGES_MAX, SESSION_EVENTS_MAX)
        owner = (scope.org_id, scope.agent_id, scope.user_id, scope.kind)
        arguments = (keys.user, session, writer or "", *limits, *_fields(record), *owner, record.session_id)
        done, _ = await self._link.scripts((_APPEND, names, arguments), _keep_owner(session, scope))
        stored, position, first = done
        if stored < 0:
            raise _not_the_writer()
        return Appended(position, stored=bool(stored), first=bool(first))

    async def entries(self, session_id: str, *, limit: int) -> list[MemoryEntry]:
        found = await self._session_records(session_id, "entries", min(limit, SESSION_MESSAGES_MAX))
        return [record for record in found if isinstance(record, MemoryEntry)]

    async def events(self, session_id: str, *, event_type: str | None, limit: int) -> list[MemoryEvent]:
        wanted = min(limit, SESSION_EVENTS_MAX)
        if wanted <= 0:
            return []
        read = wanted if event_type is None else SESSION_EVENTS_MAX
        # Others' bytes don't count; what has the words somewhere else is left out below.
        part = "" if event_type is None else f'"event_type":{json.dumps(event_type, ensure_ascii=False)}'
        found = await self._session_records(session_id, "events", read, part)
        events = [record for record in found if isinstance(record, MemoryEvent)]
        return [event for event in events if event_type in (None, event.event_type)][-wanted:]

    async def pending(self, *, limit: int) -> list[Scope]:
        if limit <= 0:
            return []
        shards = await self._link.commands(
            [("ZRANGE", _pending(shard), 0, limit - 1, "WITHSCORES") for shard in range(SHARDS)]
        )
        waiting = [
            (float(since), f"vm:{{{shard}}}:user:{user}")
            for shard, found in enumerate(shards)
            for user, since in zip(found[::2], found[1::2], strict=True)
        ]
        if not waiting:
            return []
        fields = ("org", "agent", "user", "kind")
        users = await self._link.commands([("HMGET", key, *fields) for _, key in sorted(waiting)[:limit]])
        return [scope for user in users if (scope := _scope(user)) is not None]

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        count = max(0, min(limit, LOG_READ_MAX))
        arguments = (after, count, LOG_READ_BYTES_MAX, _READ_CHUNK)
        last, epoch, facts, *members = await self._link.script(_LOG_READ, _Keys.of(scope).log[:2], arguments)
        found = [_parse(member) for member in members]
        return LogSlice(
            records=tuple(item for item in found if isinstance(item, LogRecord)),
            last=last,
            epoch=int(epoch),
            damaged=tuple(item for item in found if isinstance(item, DamagedRecord)),
            facts=int(facts),
        )

    async def announce(self, scope: Scope, *, version: int) -> None:
        keys = _Keys.of(scope).log[:2]
        await self._link.script(_ANNOUNCE, keys, (version, scope.kind, SESSION_TTL_S))

    async def confirm(self, scope: Scope, *, through: str) -> None:
        keys = _Keys.of(scope)
        left = 1
        while left > 0:
            left = await self._link.script(
                _CONFIRM, keys.log, (keys.user, scope.kind, SESSION_TTL_S, through, _TRIM_CHUNK)
            )

    async def erase(self, scope: Scope, selection: Selection) -> int:
        keys = _Keys.of(scope)
        through = selection.through or (await self.read(scope, after="", limit=0)).last
        session = _digest(selection.session_id or "")
        gone = await self._erase_timeline(keys.mine("log")[0], selection, session, through)
        sessions = [session] if selection.what == "session" else await self._sessions(keys)
        for each in sessions:
            gone |= await self._erase_session(scope, keys, each, selection, through)
        await self._link.script(_ERASE_FINISH, keys.log, (keys.user, scope.kind, SESSION_TTL_S, selection.what))
        await self._rewriting.soon()
        return len(gone)

    async def _erase_session(
        self, scope: Scope, keys: _Keys, session: str, selection: Selection, through: str
    ) -> set[str]:
        gone: set[str] = set()
        for timeline in keys.of_session(session, "entries", "events"):
            gone |= await self._erase_timeline(timeline, selection, session, through)
        if not gone and selection.what == "since":
            return gone
        names = [*keys.of_session(session, "session", "entries", "events"), *keys.mine("sessions"), keys.active]
        emptied = await self._link.script(_ERASE_SESSION, names, (keys.user, session))
        if emptied and selection.what != "since":
            await self._link.script(_OWNER_DROP, [_owner_key(session)], (_dump_scope(scope),))
        return gone

    async def _erase_timeline(self, key: str, selection: Selection, session: str, through: str) -> set[str]:
        since = _microseconds(selection.since) if selection.since else 0
        gone: set[str] = set()
        after = ""
        while True:
            arguments: Command = (selection.what, session, since, after, through, _ERASE_CHUNK_RECORDS, _READ_CHUNK)
            after, *positions = await self._link.script(_ERASE_CHUNK, [key], arguments)
            gone.update(positions)
            if not after:
                return gone

    async def _sessions(self, keys: _Keys) -> list[str]:
        found: list[str] = (await self._link.commands([("ZRANGE", *keys.mine("sessions"), 0, -1)]))[0]
        return found

    async def _owner(self, session: str) -> Scope | None:
        found = (await self._link.commands([("GET", _owner_key(session))]))[0]
        return None if found is None else _load_scope(found)

    async def _session_records(self, session_id: str, kind: str, limit: int, part: str = "") -> list[Record]:
        session = _digest(session_id)
        scope = await self._owner(session) if limit > 0 else None
        if scope is None:
            return []
        keys = _Keys.of(scope)
        names = [*keys.session(session), *keys.of_session(session, kind)]
        arguments = (session, SESSION_TTL_S, limit, SESSION_READ_BYTES_MAX, _READ_CHUNK, part)
        members, _ = await self._link.scripts(
            (_SESSION_READ, names, arguments), _keep_owner(session, scope, take=False)
        )
        return [item.record for item in map(_parse, reversed(members)) if isinstance(item, LogRecord)]


def _fields(record: Record) -> Command:
    """kind, id, microseconds, JSON, mode, language, event type, id and JSON of the switch that may be detected."""
    shared = (record.id, _microseconds(record.timestamp), _dump(record), mode_of(record) or "", language_of(record))
    if isinstance(record, MemoryEvent):
        return ("event", *shared, record.event_type, "", "")
    switch = detected_switch(record)
    return ("entry", *shared, "", switch.id, _dump(switch))


def _dump(record: Record) -> bytes:
    data = record.to_dict()
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate in an event's data
        return json.dumps(data, separators=(",", ":")).encode()


def _parse(member: str) -> LogRecord | DamagedRecord:
    parts = member.split("|", 4)
    if len(parts) < 5:
        return DamagedRecord(member[:POSITION_CHARS], "", "not a record of the log", member)
    position, previous, _, _, text = parts
    try:
        return LogRecord(position, previous, record_from_dict(json.loads(text)))
    except VoiceMemoryError as error:
        reason = str(error)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"not the JSON of a record ({type(error).__name__})"
    return DamagedRecord(position, previous, reason, text)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH_START) // timedelta(microseconds=1)


def _state(scope: Scope, mode: str, language: str, known: int) -> SessionState:
    told: Mode | None = "voice" if mode == "voice" else "text" if mode == "text" else None
    return SessionState(scope, told, language, known=bool(known))


def _dump_scope(scope: Scope) -> str:
    return json.dumps([scope.org_id, scope.agent_id, scope.user_id, scope.kind])


def _load_scope(text: str) -> Scope | None:
    try:
        return _scope(json.loads(text))
    except (ValueError, TypeError):
        return None


def _scope(fields: list[Any]) -> Scope | None:
    try:
        return Scope(org_id=fields[0], agent_id=fields[1], user_id=fields[2], kind=fields[3])
    except (VoiceMemoryError, IndexError):
        return None


def _not_the_writer() -> NotTheWriter:
    return NotTheWriter("Another process records this session; its lease must lapse or end before this one may.")
