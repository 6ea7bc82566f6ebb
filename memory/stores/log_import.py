"""Many records at once onto the end of a user's log: what an import uses, and no live session.

Above: wiring. Below: redis (keys and form of the log), connection. Nothing of the session layer is touched: what was
said long ago is not what a session is about now. The archive's ids tell a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from memory.models import MemoryEntry, Scope
from memory.stores.connection import Recovery, RedisLink, Script
from memory.stores.redis import _digest, _dump, _Keys, _microseconds
from memory.stores.scripts import _COMMON

# As scripts.APPEND puts a record, and nothing besides. Records come in threes: microseconds, session, json.
_APPEND_MANY = Script.of(
    _COMMON
    + """
local user, log, pending = unpack(KEYS)
local uid, org, agent, user_id, scope_kind = unpack(ARGV, 1, 5)
local now = now_ms()
local known = redis.call('HMGET', user, 'last', 'user')
local last = known[1] or ''
for at = 6, #ARGV, 3 do
  local position = text(behind(last, now))
  redis.call('ZADD', log, 0, position .. '|' .. last .. '|' .. ARGV[at] .. '|' .. ARGV[at + 1] .. '|' .. ARGV[at + 2])
  last = position
end
redis.call('HSET', user, 'last', last)
if not known[2] then
  redis.call('HSET', user, 'org', org, 'agent', agent, 'user', user_id, 'kind', scope_kind)
end
if scope_kind == 'session' then redis.call('PERSIST', user) end
redis.call('ZADD', pending, 'NX', whole(now), uid)
return last
"""
)
_RECORDS = 100  # of one call: Redis does nothing else meanwhile
_BYTES = 1_048_576


class RedisLogImport:
    """``importing.ImportLog`` on one Redis. Belongs to the event loop it was opened in."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    @classmethod
    async def connect(cls, url: str, *, on_lost: Recovery | None = None) -> Self:
        """See ``RedisSessionStore.connect``."""
        return cls(await RedisLink.open(url, on_lost=on_lost))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._link.aclose()

    async def extend(self, scope: Scope, entries: Sequence[MemoryEntry]) -> None:
        """Append in order; durable when it returns. A repetition after a failure appends some of them once more.

        Raises:
            StoreUnavailable: not all of them are known to be there.
        """
        keys = _Keys.of(scope)
        owner = (scope.org_id, scope.agent_id, scope.user_id, scope.kind)
        for part in _parts([(entry, _dump(entry)) for entry in entries]):
            records = [
                value
                for entry, body in part
                for value in (_microseconds(entry.timestamp), _digest(entry.session_id), body)
            ]
            await self._link.script(_APPEND_MANY, keys.log, (keys.user, *owner, *records))


def _parts(dumped: Sequence[tuple[MemoryEntry, bytes]]) -> list[list[tuple[MemoryEntry, bytes]]]:
    parts: list[list[tuple[MemoryEntry, bytes]]] = []
    size = 0
    for entry, body in dumped:
        if not parts or len(parts[-1]) >= _RECORDS or size + len(body) > _BYTES:
            parts.append([])
            size = 0
        parts[-1].append((entry, body))
        size += len(body)
    return parts
