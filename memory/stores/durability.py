"""Whether a Redis keeps what it was given, naming what makes it lose turns, each with the fix; and how full it is.

Redis' own CONFIG says all of it. Where that is forbidden, as managed services do, INFO says a part, and the rest is
named as what can't be checked. Above: wiring. Below: connection, errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from memory.errors import StoreFault
from memory.stores.connection import RedisLink

_POLICY, _APPEND_ONLY, _SYNC = "maxmemory-policy", "appendonly", "appendfsync"
_GOOD = {_POLICY: ("noeviction",), _APPEND_ONLY: ("yes",), _SYNC: ("always", "everysec")}
_LOSES = {
    _POLICY: "turns are thrown away when its memory is full. Set maxmemory-policy noeviction",
    _APPEND_ONLY: "turns since its last snapshot are lost when it ends. Set appendonly yes",
    _SYNC: "turns of the last half minute are lost with the machine's power. Set appendfsync always, or everysec",
}
_UNKNOWN = (
    "can't be checked: this Redis tells it neither by CONFIG nor by INFO. Let its user run CONFIG GET,"
    " or make sure with whoever runs it that it is {wanted}"
)


async def check(link: RedisLink) -> list[str]:
    """What makes this Redis lose turns, or can't be checked; a sentence each, empty where all is well.

    Raises:
        StoreUnavailable: Redis is away.
    """
    found = await _configured(link)
    return [line for option in _GOOD if (line := _judged(option, found))]


async def filled(link: RedisLink) -> dict[str, int]:
    """``used_bytes``, and ``max_bytes`` (its maxmemory; 0: it has none). Empty where this Redis doesn't tell.

    Raises:
        StoreUnavailable: Redis is away.
    """
    try:
        memory = (await link.commands([("INFO", "memory")]))[0]
    except StoreFault:
        return {}
    if not {"used_memory", "maxmemory"} <= memory.keys():
        return {}
    # Its own buffers, of the append-only file and for replicas, don't count towards maxmemory.
    used = int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))
    return {"used_bytes": used, "max_bytes": int(memory["maxmemory"])}


def _judged(option: str, found: Mapping[str, str]) -> str:
    value = found.get(option)
    if option == _SYNC and found.get(_APPEND_ONLY) == "no":
        return ""  # without an append-only file there is nothing to sync
    if value is None:
        return f"{option} {_UNKNOWN.format(wanted=' or '.join(_GOOD[option]))}."
    return "" if value in _GOOD[option] else f"{option} is {value}: {_LOSES[option]}."


async def _configured(link: RedisLink) -> dict[str, str]:
    """The options' values, as far as this Redis tells them."""
    try:
        answers = await link.commands([("CONFIG GET", option) for option in _GOOD])
    except StoreFault:
        return await _informed(link)
    return {option: str(answer[option]) for option, answer in zip(_GOOD, answers, strict=True) if option in answer}


async def _informed(link: RedisLink) -> dict[str, str]:
    try:
        memory, persistence = await link.commands([("INFO", "memory"), ("INFO", "persistence")])
    except StoreFault:
        return {}
    found = {}
    if "maxmemory_policy" in memory:
        found[_POLICY] = str(memory["maxmemory_policy"])
    if "aof_enabled" in persistence:
        found[_APPEND_ONLY] = "yes" if persistence["aof_enabled"] else "no"
    return found
