"""One user's knowledge as a graph: GraphStore on FalkorDB, one graph per group id, SQL's projection.

What a query changes, it changes whole: a save is one query, and a restore sets the version last. Nothing is made by a
read. Above: wiring. Below: driver, queries, rows, restoring, keyword_check, identity, knowledge_ports. Belongs to the
event loop it was opened in.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from memory.clock import Clock, SystemClock
from memory.errors import GraphStale, StoreFault
from memory.identity import group_id
from memory.knowledge import Knowledge, Patch
from memory.knowledge_ports import EntityProbe, FactProbe, GraphMatches, GraphState
from memory.models import Scope
from memory.stores.graph import keyword_check, keywords, queries, rows
from memory.stores.graph.driver import GraphLink, NoGraph, Recovery, patience, vector
from memory.stores.graph.restoring import make_indices, restore

# How far a vector may be (cosine distance) to be worth comparing: names nearly the same, facts about the same.
_ENTITY_FAR = 0.45
_FACT_FAR = 0.8
_PROBES = 10  # in one query: a graph of 10,000 facts is gone through for each


class FalkorGraphStore:
    """GraphStore on one FalkorDB. ``model`` names the embeddings that its vectors are made by."""

    def __init__(self, link: GraphLink, *, model: str, clock: Clock | None = None) -> None:
        self._link = link
        self._model = model
        self._clock = clock or SystemClock()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        model: str,
        password: str | None = None,
        on_lost: Recovery | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open the store on the FalkorDB at ``url``; ``on_lost`` brings a lost server back (the embedded one's ensure).

        Raises:
            SettingsError: ``url`` is no URL of a server.
            StoreUnavailable: it is away.
            StoreFault: it refuses the credentials, or has no graphs (``NoGraphServer``).
        """
        link = GraphLink.to(url, password=password, on_lost=on_lost)
        try:
            await _see_graphs(link)
        except BaseException:
            await link.aclose()
            raise
        return cls(link, model=model, clock=clock)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._link.aclose()

    # -- reading

    async def state(self, scope: Scope) -> GraphState | None:
        """See GraphStore. A graph that is not ours, or half restored, has version -1."""
        return await self._state(group_id(scope))

    async def _state(self, graph: str) -> GraphState | None:
        try:
            found = await self._link.read(graph, queries.STATE, {})
            if not found and not await self._link.read(graph, queries.ANYTHING, {}):
                return None  # its indices are there, but nothing was written yet
        except NoGraph:
            return None
        if not found:
            return GraphState(-1, "", 0)
        version, model, dimension, *_ = found[0]
        return GraphState(int(version), str(model), int(dimension))

    async def matches(
        self, scope: Scope, *, entities: Sequence[EntityProbe], facts: Sequence[FactProbe], limit: int
    ) -> GraphMatches:
        """See GraphStore. Where the graph's vectors are of another model or length, by keyword alone."""
        graph = group_id(scope)
        names = [(place, probe.vector) for place, probe in enumerate(entities)]
        texts = [(place, probe.vector) for place, probe in enumerate(facts)]
        asked = [{"i": place, "q": text} for place, probe in enumerate(facts) if (text := keywords.query(probe.text))]
        try:
            near_entities, near_facts, worded = await asyncio.gather(
                self._near(graph, queries.NEAR_ENTITIES, names, _ENTITY_FAR, limit),
                self._near(graph, queries.NEAR_FACTS, texts, _FACT_FAR, limit),
                self._read(graph, queries.FACTS_WITH_WORDS, asked, {"limit": limit}),
            )
        except NoGraph:
            near_entities = near_facts = worded = []
        return GraphMatches(
            entities=_by_probe(len(entities), near_entities), facts=_by_probe(len(facts), near_facts, worded)
        )

    async def _near(
        self, graph: str, query: str, vectors: Sequence[tuple[int, bytes]], far: float, limit: int
    ) -> list[list[Any]]:
        probes = [{"i": place, "v": vector(data)} for place, data in vectors if data]
        dimension = rows.dimension(data for _, data in vectors)
        given = {"model": self._model, "dimension": dimension, "far": far, "limit": limit}
        return await self._read(graph, query, probes, given)

    async def _read(
        self, graph: str, query: str, probes: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
    ) -> list[list[Any]]:
        found: list[list[Any]] = []
        for start in range(0, len(probes), _PROBES):
            found += await self._link.read(graph, query, {**given, "probes": probes[start : start + _PROBES]})
        return found

    # -- writing

    async def save(self, scope: Scope, patch: Patch, *, version: int, expected: int) -> None:
        """See GraphStore. Repeated while the server is busy or away, within GRAPH_SAVE_TIMEOUT_S in all."""
        graph, until = group_id(scope), patience()
        if expected == 0:
            if await self._state(graph) is None:
                await make_indices(self._link, graph, until=until)
        elif not await self._link.exists(graph):
            raise _stale()  # the query would make an empty graph
        digest, token = rows.digest(patch), uuid.uuid4().hex
        given = {
            **rows.patch(patch, graph),
            **rows.summary_rule(patch.episode.created_at),
            "model": self._model,
            "dimension": rows.dimension(rows.vectors(patch)),
            "expected": expected,
            "version": version,
            "episode": patch.episode.id,
            "digest": digest,
            "token": token,
        }
        query = queries.SAVE if expected else queries.SAVE_FIRST
        held = await self._link.write(graph, query, given, until=until)
        if held != [[1]] and not await self._was_saved(graph, version, digest):
            raise _stale()

    async def _was_saved(self, graph: str, version: int, digest: str) -> bool:
        """Whether just this patch is there as just this version: by an attempt whose answer was lost."""
        try:
            found = await self._link.read(graph, queries.STATE, {})
        except NoGraph:
            return False
        return bool(found) and found[0][0] == version and found[0][1] == self._model and found[0][4] == digest

    async def restore(self, scope: Scope, knowledge: Knowledge, *, version: int) -> None:
        """See GraphStore. Nothing known and version 0: there is no graph.

        Raises:
            StoreFault: also where a graph of this name is not ours.
        """
        graph = group_id(scope)
        state = await self._state(graph)
        if state is not None and state.version == -1 and not state.model:
            raise StoreFault(
                "A graph that this memory has not made has the name of a user's. Rename or delete it (GRAPH.DELETE), so"
                " that theirs can be restored."
            )
        await self.delete(scope)
        if version > 0:
            await restore(self._link, graph, knowledge, version=version, model=self._model, now=self._clock.now())

    async def delete(self, scope: Scope) -> bool:
        """See GraphStore. Its text is out of the server's append-only file soon after."""
        try:
            await self._link.insisting("GRAPH.DELETE", group_id(scope))
        except NoGraph:
            return False
        await self._link.rewriting.soon()
        return True

    async def check_keyword_leg(self) -> None:
        """See ``keyword_check``: for whoever opens the store to write to it, once."""
        await keyword_check.check_keyword_leg(self._link)


async def require_graphs(url: str, *, password: str | None = None) -> None:
    """Ask the server at ``url``, on a connection of its own, whether it can hold a graph.

    Raises:
        SettingsError: ``url`` is no URL of a server.
        NoGraphServer: it answers, and can't.
        StoreUnavailable, StoreFault: it is away, or refuses; nothing can be said.
    """
    link = GraphLink.to(url, password=password)
    try:
        await _see_graphs(link)
    finally:
        await link.aclose()


async def _see_graphs(link: GraphLink) -> None:
    try:
        await link.call("GRAPH.RO_QUERY", keyword_check.STRANGEST, "RETURN 1")
    except NoGraph:
        return  # it knows what a graph is


def _by_probe(count: int, *found: Sequence[Sequence[Any]]) -> tuple[tuple[str, ...], ...]:
    """Ids for each probe, those of the first search first."""
    ids: list[dict[str, None]] = [{} for _ in range(count)]
    for search in found:
        for place, id_ in search:
            ids[place].setdefault(id_)
    return tuple(tuple(each) for each in ids)


def _stale() -> GraphStale:
    return GraphStale(
        "The graph is of another version, or of another embedding model, than SQL: restore it from there."
    )
