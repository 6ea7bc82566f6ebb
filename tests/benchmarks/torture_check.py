"""What the torture looks for, in the stores themselves: raw SQL, raw Cypher, and recall as a call would ask for it.

What was durable must be in every layer: once, in order. Above: torture. Below: nothing of the product but the names of
its tables and graphs, and its recall client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from memory.hosting import HostUse
from memory.identity import group_id
from memory.models import Scope
from memory.retrieval.client import HostRetriever
from memory.settings import load_settings
from memory.stores.embedded import EmbeddedServer
from memory.wiring import recall_host
from tests.benchmarks.torture_caller import said

_POLL_S = 0.5
_RECALLED_MAX = 25  # turns of each user that recall is asked for
_RECALL_MS = 5_000.0

SESSION_NUMBERS = 1_000  # turn numbers of one session

Said = Mapping[str, tuple[Sequence[int], Sequence[int]]]  # user -> numbers that were durable, and that were late


@dataclass
class Found:
    """What is wrong, by layer. ``turns`` were durable; ``late`` ones are not promised, and not counted as lost."""

    turns: int = 0
    late: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    duplicated: Counter[str] = field(default_factory=Counter)
    disordered: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return self.turns > 0 and not any(self.figures().values())

    def figures(self) -> dict[str, int]:
        return {name: getattr(self, name).total() for name in ("lost", "duplicated", "disordered")}

    def compare(self, layer: str, durable: Sequence[int], there: Iterable[int], *, ordered: bool = False) -> None:
        """``there``: the numbers that a layer holds, as often and in the order it holds them."""
        held = list(there)
        counts = Counter(held)
        self.lost[layer] += sum(1 for number in durable if number not in counts)
        self.duplicated[layer] += sum(count - 1 for count in counts.values())
        if ordered:
            # Of one session: what a call's death left on disk may arrive after the next call's turns.
            self.disordered[layer] += sum(1 for a, b in pairwise(sorted(held, key=_session_of)) if _goes_back(a, b))


def _session_of(number: int) -> int:
    return number // SESSION_NUMBERS


def _goes_back(a: int, b: int) -> bool:
    return a > b and _session_of(a) == _session_of(b)


async def look_everywhere(environment: Mapping[str, str], said_by: Said) -> Found:
    """Wait until nothing waits to be ingested, then look; whoever calls sets the deadline."""
    engine = create_async_engine(environment["DATABASE_URL"], poolclass=NullPool)
    found = Found()
    server = EmbeddedServer(Path(environment["VOICEASSIST_DATA_DIR"]), idle_s=0.0)
    redis: Redis = Redis.from_url(await server.ensure())
    try:
        await _settled(engine, redis, said_by)
        for user, (durable, late) in said_by.items():
            found.turns, found.late = found.turns + len(durable), found.late + len(late)
            number = await _user_number(engine, user)
            turns = await _archive(engine, number)
            found.compare("archive", durable, turns.values(), ordered=True)
            await _chunks(engine, number, turns, durable, found)
            facts = await _facts(engine, number, turns, durable, found)
            await _graph(redis, engine, number, user, durable, facts, found)
            await _digests(engine, number, found)
        await _recall(environment, said_by, found)
    finally:
        await redis.aclose()
        await server.aclose()
        await engine.dispose()
    return found


async def _rows(engine: Any, query: str, **values: Any) -> list[Any]:
    async with engine.connect() as connection:
        return list(await connection.execute(sa.text(query), values))


async def _settled(engine: Any, redis: Redis, said_by: Said) -> None:
    """Until the log is empty, and every turn is in a chunk that is done, and every session has its digest."""
    waiting = (
        "SELECT (SELECT count(*) FROM chunks WHERE state = 'waiting')"
        " + (SELECT count(*) FROM conversations c WHERE EXISTS (SELECT 1 FROM conversation_entries e"
        "    WHERE e.conversation_id = c.id AND e.cursor > c.chunked))"
        " + (SELECT count(*) FROM conversations c WHERE NOT EXISTS"
        "    (SELECT 1 FROM session_digests d WHERE d.conversation_id = c.id))"
        " + (SELECT count(*) FROM graph_todo)"
    )
    users = {group_id(_scope(user)) for user in said_by}
    while True:
        with contextlib.suppress(DBAPIError, RedisError, OSError):  # killed last, or not yet made
            known = {row[0] for row in await _rows(engine, "SELECT group_id FROM users")}
            left = (await _rows(engine, waiting))[0][0]
            logged = [key async for key in redis.scan_iter("vm:*:pending", count=1_000)]
            if users <= known and not left and not logged:
                return
        await asyncio.sleep(_POLL_S)


def _scope(user: str) -> Scope:
    return Scope(org_id="default", agent_id="assistant", user_id=user)


async def _user_number(engine: Any, user: str) -> int:
    rows = await _rows(engine, "SELECT id FROM users WHERE group_id = :group", group=group_id(_scope(user)))
    number: int = rows[0][0]
    return number


async def _archive(engine: Any, user: int) -> dict[str, int]:
    """The numbers said, by turn id, in the archive's order."""
    query = "SELECT id, content FROM conversation_entries WHERE user_id = :user AND role = 'user' ORDER BY cursor"
    return {row.id: _number(row.content) for row in await _rows(engine, query, user=user)}


def _number(text: str) -> int:
    return int("".join(part for part in text if part.isdigit()) or "-1")


async def _chunks(engine: Any, user: int, turns: Mapping[str, int], durable: Sequence[int], found: Found) -> None:
    query = (
        "SELECT c.state, e.id FROM chunks c JOIN conversation_entries e ON e.user_id = c.user_id"
        " AND e.conversation_id = c.conversation_id AND e.cursor BETWEEN c.first_cursor AND c.last_cursor"
        " WHERE c.user_id = :user AND e.role = 'user' ORDER BY c.first_cursor, e.cursor"
    )
    rows = await _rows(engine, query, user=user)
    found.compare("chunks", durable, (turns[row.id] for row in rows if row.state == "done"))
    query = "SELECT session_id, ordinal FROM episodes WHERE user_id = :user ORDER BY version"
    episodes = [tuple(row) for row in await _rows(engine, query, user=user)]
    found.duplicated["episodes"] += len(episodes) - len(set(episodes))
    by_session = sorted(episodes, key=lambda episode: str(episode[0]))  # stable: the order of ingestion within each
    found.disordered["episodes"] += sum(1 for a, b in pairwise(by_session) if a[0] == b[0] and a[1] > b[1])


async def _facts(
    engine: Any, user: int, turns: Mapping[str, int], durable: Sequence[int], found: Found
) -> dict[str, int]:
    """The numbers by fact; each has to come from the turn that said it."""
    facts = await _rows(engine, "SELECT id, text, turns FROM facts WHERE user_id = :user ORDER BY version", user=user)
    numbers = {row.id: _number(row.text) for row in facts}
    found.compare("facts", durable, numbers.values())
    sources = [(numbers[row.id], turns.get(turn)) for row in facts for turn in _list(row.turns)]
    found.lost["sources"] += sum(1 for number, source in sources if number != source)
    repeated = await _rows(engine, "SELECT count(*) FROM wordings WHERE user_id = :user", user=user)
    found.duplicated["wordings"] += repeated[0][0]  # nothing was said twice
    return numbers


def _list(value: Any) -> list[str]:
    return list(json.loads(value) if isinstance(value, str) else value)


async def _graph(
    redis: Redis,
    engine: Any,
    user: int,
    name: str,
    durable: Sequence[int],
    facts: Mapping[str, int],
    found: Found,
) -> None:
    graph = group_id(_scope(name))
    edges = await _cypher(redis, graph, "MATCH ()-[e:RELATES_TO]->() RETURN e.uuid, e.fact")
    found.compare("graph", durable, (_number(text) for _, text in edges))
    found.lost["graph and SQL"] += len(facts.keys() ^ {uuid for uuid, _ in edges})
    episodes = await _cypher(redis, graph, "MATCH (e:Episodic) RETURN e.uuid")
    known = await _rows(engine, "SELECT id FROM episodes WHERE user_id = :user", user=user)
    found.lost["graph episodes"] += len({row.id for row in known} ^ {row[0] for row in episodes})
    found.duplicated["graph episodes"] += len(episodes) - len({row[0] for row in episodes})


async def _cypher(redis: Redis, graph: str, query: str) -> list[list[str]]:
    answer: Any = await redis.execute_command("GRAPH.RO_QUERY", graph, query)  # type: ignore[no-untyped-call]
    return [[cell.decode() for cell in row] for row in answer[1]]


async def _digests(engine: Any, user: int, found: Found) -> None:
    query = (
        "SELECT count(*) FROM session_digests d WHERE d.user_id = :user AND d.through_cursor <"
        " (SELECT max(e.cursor) FROM conversation_entries e WHERE e.conversation_id = d.conversation_id)"
    )
    found.lost["digests"] += (await _rows(engine, query, user=user))[0][0]


async def _recall(environment: Mapping[str, str], said_by: Said, found: Found) -> None:
    settings = load_settings(data_dir=Path(environment["VOICEASSIST_DATA_DIR"]), embedder="none")
    settings = settings.model_copy(update={"database_url": environment["DATABASE_URL"]})
    retriever = HostRetriever(HostUse(recall_host(settings)))
    try:
        for user, (durable, _) in said_by.items():
            for number in durable[:: max(1, len(durable) // _RECALLED_MAX)]:
                recall = await retriever.recall(_scope(user), said(number), limit=8, budget_ms=_RECALL_MS)
                texts = [*(one.text for one in recall.passages), *(fact.text for fact in recall.facts)]
                if not any(_number(text) == number for text in texts):
                    found.lost["recall"] += 1
    finally:
        await retriever.aclose()
