"""Upkeep over the stores that the settings name: ``memory ingestion``, ``rebuild``, ``reindex``, and erasures.

Above: cli, wiring (which opens it where an erasure needs it). Below: wiring_ingestion, ingestion, stores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from memory.clock import Clock, SystemClock
from memory.datadir import prepare
from memory.errors import StoreUnavailable, VoiceMemoryError
from memory.ingestion import upkeep
from memory.ingestion.graph_upkeep import settle_erasure as settled
from memory.knowledge import ChunkState
from memory.knowledge_ports import ChunkStatus, GraphStore
from memory.models import Scope
from memory.privacy.erasure import GraphErasure
from memory.settings import Settings
from memory.wiring import Archive, open_archive

if TYPE_CHECKING:
    from memory.stores.chunks_sql import SqlChunkStore
    from memory.stores.knowledge_sql import SqlKnowledgeStore
    from memory.stores.knowledge_upkeep import SqlKnownUsers
    from memory.stores.sql import SqlArchive
    from memory.wiring_ingestion import GraphPlace

Closers = list[Callable[[], Awaitable[None]]]

_LISTED = 100


@dataclass(frozen=True, slots=True)
class _Stores:
    chunks: SqlChunkStore
    knowledge: SqlKnowledgeStore
    users: SqlKnownUsers


@contextlib.asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[_Stores, Closers]]:
    closers = Closers()
    try:
        await asyncio.to_thread(prepare, settings.data_dir)
        yield _stores(await open_archive(settings, closers), SystemClock()), closers
    finally:
        while closers:
            await closers.pop()()


def _stores(archive: Archive, clock: Clock) -> _Stores:
    from memory.stores.chunks_sql import SqlChunkStore
    from memory.stores.knowledge_sql import SqlKnowledgeStore
    from memory.stores.knowledge_upkeep import SqlKnownUsers

    sql = cast("SqlArchive", archive)
    return _Stores(
        SqlChunkStore(sql.database, clock),
        SqlKnowledgeStore(sql.database, sql.users, clock),
        SqlKnownUsers(sql.database, sql.users),
    )


class OpenGraphs:
    """The graphs, by what their vectors are of; each is opened when it is first asked for."""

    def __init__(self, settings: Settings, closers: Closers) -> None:
        self._settings, self._closers = settings, closers
        self._opened: dict[str, GraphStore] = {}
        self._where: GraphPlace | None = None

    async def __call__(self, vectors: str) -> GraphStore:
        from memory.wiring_ingestion import graph_place, open_graph

        if vectors not in self._opened:
            try:
                self._where = self._where or await graph_place(self._settings, self._closers)
            except VoiceMemoryError as error:  # such as: no embedded server on this platform
                raise StoreUnavailable(str(error)) from None
            self._opened[vectors] = await open_graph(self._where, self._closers, vectors, SystemClock())
        return self._opened[vectors]


async def settle_erasure(settings: Settings, archive: Archive, scope: Scope) -> GraphErasure:
    """Have an erasure that the archive has made reach the user's graph; see ``graph_upkeep.settle_erasure``.

    Raises:
        StoreUnavailable: the archive is away.
    """
    notes = _stores(archive, SystemClock()).knowledge
    todos = await notes.pending_graph_erasures(limit=1, scope=scope)
    if not todos:
        return GraphErasure()
    closers = Closers()
    try:
        return await settled(scope, notes, OpenGraphs(settings, closers))
    finally:
        while closers:
            await closers.pop()()


# -- chunks


def add_ingestion(parser: argparse.ArgumentParser) -> None:
    """What ``run_ingestion`` reads."""
    commands = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listed = commands.add_parser("list", help="how many chunks are in which state, and which")
    listed.add_argument("--limit", type=int, default=_LISTED, metavar="N", help="chunks (%(default)s)")
    retried = commands.add_parser("retry", help="ingest chunks again that were given up on (or are in --state)")
    dropped = commands.add_parser("drop", help="give chunks up: their turns stay in the archive")
    for moving in (retried, dropped):
        which = moving.add_mutually_exclusive_group(required=True)
        which.add_argument("ids", nargs="*", default=[], metavar="ID", help="of the chunks, as list shows them")
        which.add_argument("--all", action="store_true", help="all that are in the state")
    # What is done is not done again by hand: rebuild --retry-lost does so where that is needed.
    states: dict[argparse.ArgumentParser, list[str]] = {
        listed: list(ChunkState),
        retried: ["dead", "dropped"],
        dropped: ["dead", "waiting"],
    }
    for each, choices in states.items():
        default = None if each is listed else ChunkState.DEAD
        each.add_argument("--state", choices=choices, default=default, help="only chunks in this state")
        each.add_argument("--json", action="store_true", help="print JSON instead of text")


async def run_ingestion(arguments: argparse.Namespace, settings: Settings) -> int:
    """List, retry or drop chunks; nothing of what was said is printed.

    Raises:
        StoreUnavailable, StoreFault, DataDirectoryUnusable: with what to do.
    """
    async with _opened(settings) as (stores, _):
        if arguments.action == "list":
            states = [ChunkState(arguments.state)] if arguments.state else list(ChunkState)
            found = await upkeep.chunks_in(stores.chunks, states, limit=max(arguments.limit, 0))
            _print_chunks(await stores.chunks.counts(), found, as_json=arguments.json)
            return 0
        to = ChunkState.WAITING if arguments.action == "retry" else ChunkState.DROPPED
        states = [ChunkState(arguments.state)]
        if arguments.all:
            moved = await upkeep.move_all(stores.chunks, states, to=to)
        else:
            moved = await stores.chunks.move(arguments.ids, to=to, from_=states)
    text = f"{_number(moved, 'chunk')}: {states[0]} -> {to}."
    sys.stdout.write((json.dumps({"moved": moved, "to": to.value}) if arguments.json else text) + "\n")
    if missing := len(set(arguments.ids)) - moved if arguments.ids else 0:
        of = f"{_number(missing, 'id')} of no chunk in the state {states[0]}"
        sys.stderr.write(f"{of}: python -m memory ingestion list shows ids and states.\n")
    return 1 if missing else 0


def _print_chunks(counts: dict[str, int], found: list[ChunkStatus], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"counts": counts, "chunks": [_fields(status) for status in found]}) + "\n")
        return
    states = ", ".join(f"{state}: {counts[state]}" for state in ChunkState)
    oldest = f"; the oldest waits for {_age(counts['oldest_waiting_s'])}" if counts["waiting"] else ""
    lines = [f"{states}{oldest}; sessions not cut into chunks yet: {counts['uncut']}"]
    for status in found:
        chunk = status.chunk
        again = f", not before {chunk.not_before:%Y-%m-%d %H:%M:%S}Z" if chunk.not_before else ""
        reason = f": {chunk.reason}" if chunk.reason else ""
        lines.append(
            f"{chunk.id}  {chunk.state:8}  user {status.group_digest or '-'}  {_age(status.age_s)} old, "
            f"{chunk.attempts} attempts{again}{reason}"
        )
    sys.stdout.write("\n".join(lines) + "\n")


def _fields(status: ChunkStatus) -> dict[str, Any]:
    chunk = status.chunk
    not_before: datetime | None = chunk.not_before
    return {
        "id": chunk.id,
        "user": status.group_digest,
        "state": chunk.state.value,
        "age_s": round(status.age_s, 1),
        "attempts": chunk.attempts,
        "not_before": not_before.isoformat() if not_before else None,
        "reason": chunk.reason,
        "tokens": chunk.span.tokens,
    }


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# -- graphs and vectors


def add_users(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Which users: one, or all."""
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--user", metavar="U", help="one user")
    which.add_argument("--all", action="store_true", help="everybody of whom something is known")
    parser.add_argument("--org", metavar="O", help="of this organisation (with --user: MEMORY_ORG_ID by default)")
    parser.add_argument("--agent", metavar="A", help="of this agent (with --user: MEMORY_AGENT_ID by default)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_rebuild(parser: argparse.ArgumentParser) -> None:
    """What ``run_rebuild`` reads."""
    add_users(parser, required=True)
    parser.add_argument("--retry-lost", action="store_true", help="extract chunks again whose facts SQL does not have")


async def run_rebuild(arguments: argparse.Namespace, settings: Settings) -> int:
    """Restore graphs from what SQL knows, without an LLM. 1 if some could not be, or nothing is known of the user.

    Raises:
        StoreUnavailable, StoreFault, DataDirectoryUnusable: with what to do.
    """
    async with _opened(settings) as (stores, closers):
        with _bar("rebuild") as told:
            work = upkeep.Upkeep(stores.users, stores.knowledge, OpenGraphs(settings, closers))
            again = stores.chunks if arguments.retry_lost else None
            report = await work.rebuild(_users(arguments, settings, stores), told, again=again)
        if arguments.all and not report.failed:
            report.erased = await work.settle()
    return _print_report(report, "graph restored from SQL", arguments, settings)


async def run_reindex(arguments: argparse.Namespace, settings: Settings) -> int:
    """Make vectors anew that are of another model than GRAPHITI_EMBEDDING_MODEL. 1 if graphs could not be restored, or
    nothing is known of the user.

    Raises:
        StoreUnavailable, StoreFault, DataDirectoryUnusable, EmbedderUnavailable, ProviderFault: with what to do;
            run again, it goes on.
    """
    from memory.wiring_ingestion import open_graph_embedder, vectors_of

    async with _opened(settings) as (stores, closers):
        embedder = await open_graph_embedder(settings, closers)
        with _bar("reindex") as told:
            work = upkeep.Upkeep(stores.users, stores.knowledge, OpenGraphs(settings, closers))
            users = _users(arguments, settings, stores)
            report = await work.reindex(users, embedder, vectors_of(embedder), told)
    return _print_report(report, "vectors made anew, graph restored", arguments, settings)


def _users(arguments: argparse.Namespace, settings: Settings, stores: _Stores) -> AsyncIterator[Any]:
    if arguments.user is None:
        return upkeep.each_user(stores.users, org_id=arguments.org, agent_id=arguments.agent)
    return upkeep.one_user(stores.users, _scope(arguments, settings))


def _scope(arguments: argparse.Namespace, settings: Settings) -> Scope:
    org, agent = arguments.org or settings.org_id, arguments.agent or settings.agent_id
    return Scope(org_id=org, agent_id=agent, user_id=arguments.user)


@contextlib.contextmanager
def _bar(name: str) -> Iterator[upkeep.Told]:
    try:
        from tqdm import tqdm
    except ImportError:  # an extra; without it there is no bar
        yield lambda _: None
        return
    with tqdm(unit=" users", desc=name, disable=None, file=sys.stderr) as bar:
        yield lambda count: cast("None", bar.update(count))


def _print_report(report: upkeep.Report, done: str, arguments: argparse.Namespace, settings: Settings) -> int:
    unknown = arguments.user is not None and not report.users + report.current + report.failed
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    elif not unknown:
        sys.stdout.write("\n".join(_told(report, done)) + "\n")
    if unknown:
        scope = _scope(arguments, settings)
        whose = f"user {scope.user_id!r}, org {scope.org_id!r}, agent {scope.agent_id!r}"
        sys.stderr.write(
            f"Nothing was learnt of {whose} yet, so there is nothing to do. Check the ids; facts are learnt by "
            "python -m agent ingest.\n"
        )
    return 1 if report.failed or unknown else 0


def _told(report: upkeep.Report, done: str) -> list[str]:
    lines = [f"{_number(report.users, 'user')}: {done}."]
    if report.current:
        lines.append(f"{_number(report.current, 'user')}: nothing needed.")
    if report.failed:
        away = "graph not restored now; an ingestion worker does it (see the log)."
        lines.append(f"{_number(report.failed, 'user')}: {away}")
    if report.lost:
        advice = f"{report.again} wait to be extracted again." if report.again else "--retry-lost extracts again."
        lines.append(f"{_number(report.lost, 'chunk')}: ingested, but what was learnt is not in SQL; {advice}")
    return lines
