"""A graph made anew from SQL, in batches; its version is set last, so one that was cut off is a stale graph.

Above: store. Below: driver, queries, rows.
"""

from __future__ import annotations

import contextlib
import uuid
from datetime import datetime
from typing import Any

from memory.errors import StoreUnavailable
from memory.knowledge import Knowledge
from memory.limits import GRAPH_RESTORE_BATCH
from memory.stores.graph import queries, rows
from memory.stores.graph.driver import AlreadyIndexed, GraphLink


async def make_indices(link: GraphLink, graph: str, *, until: float | None = None) -> None:
    """Make the graph's indices, and with them the graph. Those that are there stay."""
    for query in queries.INDICES:
        with contextlib.suppress(AlreadyIndexed):
            await link.insisting("GRAPH.QUERY", graph, query, until=until)


async def restore(
    link: GraphLink, graph: str, knowledge: Knowledge, *, version: int, model: str, now: datetime
) -> None:
    """Make ``graph``, which must not be there, what ``knowledge`` is.

    Raises:
        StoreUnavailable: somebody deleted it meanwhile, or wrote to it; also whatever a write raises.
    """
    given = {
        "token": uuid.uuid4().hex,
        "model": model,
        "dimension": rows.dimension(rows.vectors(knowledge)),
        **rows.summary_rule(now),
    }
    await make_indices(link, graph)
    await _write(link, graph, queries.RESTORE_BEGIN, given)
    for name, items in rows.parts(knowledge, graph).items():
        for start in range(0, len(items), GRAPH_RESTORE_BATCH):
            batch = items[start : start + GRAPH_RESTORE_BATCH]
            await _write(link, graph, queries.RESTORE_PARTS[name], {**given, name: batch})
    await _write(link, graph, queries.RESTORE_END, {"token": given["token"], "version": version})


async def _write(link: GraphLink, graph: str, query: str, given: dict[str, Any]) -> None:
    if await link.write(graph, query, given) != [[1]]:
        raise StoreUnavailable("The graph was changed or deleted while it was being restored; try again.")
