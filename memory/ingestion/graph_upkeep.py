"""Making graphs what SQL knows: after an erasure, for a graph that was lost, for one of another embedding model.

Nothing here asks an LLM. Whatever is begun is noted in SQL first and settled last, so that a process that ends in
between leaves it to the next. Above: the pipeline, the worker, upkeep, the service's erasures. Below: knowledge_ports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from memory.errors import StoreFault, StoreUnavailable
from memory.identity import group_digest
from memory.knowledge_ports import GraphNotes, GraphStore, GraphTodo
from memory.limits import AWAY_IN_A_ROW, GRAPH_ERASE_S, GRAPH_TODO_MAX
from memory.models import Scope
from memory.privacy.erasure import GraphErasure

logger = logging.getLogger(__name__)

_TRIES = 3  # a user whose knowledge changes while the graph is restored


Graphs = Callable[[str], Awaitable[GraphStore]]
"""Gives the graphs whose vectors are of this model and dimension. Raises StoreUnavailable, StoreFault."""


async def restore_graph(
    scope: Scope, notes: GraphNotes, graphs: Graphs, *, noted: bool = False, to_be_saved: bool = False
) -> int:
    """Make the user's graph what SQL knows; where no fact is known, there is none. Returns the version it is of.

    ``noted``: the caller has it noted already, and settles that. ``to_be_saved``: a patch comes next, which needs a
    graph of SQL's version even where nothing is known yet.

    Raises:
        StoreUnavailable: SQL or the graph is away, or others change it all the time; it is noted, and done by others.
        StoreFault: the graph refuses.
    """
    own = [] if noted else [await notes.note_graph(scope)]
    for _ in range(_TRIES):
        graph = await graphs(await notes.vectors(scope))
        version, known = await notes.read(scope)
        if known.facts or to_be_saved:
            await graph.restore(scope, known, version=version)
        else:
            await graph.delete(scope)
        # What was read may have been erased, or embedded anew, while the graph was written.
        if await notes.version(scope) == version:
            await notes.graph_settled(own)
            return version
    raise StoreUnavailable("The user's facts change while their graph is restored; it is tried again later.")


async def is_current(scope: Scope, notes: GraphNotes, graphs: Graphs) -> bool:
    """Whether the graph is of the version, and of the vectors, that SQL knows."""
    vectors = await notes.vectors(scope)
    state = await (await graphs(vectors)).state(scope)
    if state is None:
        return not (await notes.read(scope))[1].facts
    return bool(vectors) and state.model == vectors and state.version == await notes.version(scope)


async def settle(todos: Sequence[GraphTodo], notes: GraphNotes, graphs: Graphs) -> int:
    """Have erasures reach these graphs; returns how many graphs were made anew or deleted.

    Raises:
        StoreUnavailable, StoreFault: SQL or the graph; the rest stays noted.
    """
    made = 0
    for scope in dict.fromkeys(todo.scope for todo in todos):
        if not await is_current(scope, notes, graphs):
            await restore_graph(scope, notes, graphs, noted=True)
            made += 1
        await notes.graph_settled([todo.id for todo in todos if todo.scope == scope])
    return made


async def settle_pending(notes: GraphNotes, graphs: Graphs) -> int:
    """Finish erasures that could not reach the graph when they were made; for the ingestion worker's look for work.

    One graph's trouble is not the others', and stays noted; a fault is logged. Returns how many graphs were made anew.

    Raises:
        StoreUnavailable: SQL or the graphs are away; or a graph is, such as one that takes too long.
    """
    made = in_a_row = 0
    away: StoreUnavailable | None = None
    todos = await notes.pending_graph_erasures(limit=GRAPH_TODO_MAX)
    for scope in dict.fromkeys(todo.scope for todo in todos):
        try:
            made += await settle([todo for todo in todos if todo.scope == scope], notes, graphs)
            in_a_row = 0
        except StoreUnavailable as error:
            in_a_row, away = in_a_row + 1, error
            if in_a_row >= AWAY_IN_A_ROW:
                break
        except StoreFault as error:
            logger.error("The graph of user %s has still to forget: %s", group_digest(scope), error)
    if away is not None:
        raise away
    return made


async def settle_erasure(scope: Scope, notes: GraphNotes, graphs: Graphs) -> GraphErasure:
    """An erasure in SQL has been made: have it reach the user's graph within ``GRAPH_ERASE_S``, or later, by a worker.

    A graph is asked for only where something has to go from it.

    Raises:
        StoreUnavailable: SQL is away.
    """
    todos = await notes.pending_graph_erasures(limit=GRAPH_TODO_MAX, scope=scope)
    facts = sum(todo.facts for todo in todos)
    if not todos:
        return GraphErasure()
    try:
        async with asyncio.timeout(GRAPH_ERASE_S):
            await settle(todos, notes, graphs)
    except (StoreUnavailable, StoreFault, TimeoutError) as error:
        logger.warning("A graph has still to forget; an ingestion worker sees to it: %s", type(error).__name__)
        await notes.graph_told([todo.id for todo in todos])
        return GraphErasure(facts, "pending")
    return GraphErasure(facts, "done")
