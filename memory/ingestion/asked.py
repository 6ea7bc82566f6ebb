"""The graph and the LLM as the pipeline asks them: the one through a breaker, the other counted for each chunk.

Above: pipeline, wiring_ingestion. Below: breaker, knowledge_ports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from memory.errors import ProviderUnavailable, StoreUnavailable
from memory.ingestion.breaker import Breaker
from memory.knowledge import Knowledge, Patch
from memory.knowledge_ports import (
    EntityProbe,
    FactProbe,
    GraphMatches,
    GraphState,
    GraphStore,
    LanguageModel,
    Usage,
)
from memory.models import Scope

_T = TypeVar("_T")


class AskedGraph:
    """A ``GraphStore`` that is left alone while it is away. Where it raises StoreUnavailable, this one raises
    ProviderUnavailable, with when to come back."""

    def __init__(self, graph: GraphStore, breaker: Breaker) -> None:
        self._graph, self.breaker = graph, breaker

    async def state(self, scope: Scope) -> GraphState | None:
        return await self._ask(lambda: self._graph.state(scope))

    async def matches(
        self, scope: Scope, *, entities: Sequence[EntityProbe], facts: Sequence[FactProbe], limit: int
    ) -> GraphMatches:
        return await self._ask(lambda: self._graph.matches(scope, entities=entities, facts=facts, limit=limit))

    async def save(self, scope: Scope, patch: Patch, *, version: int, expected: int) -> None:
        await self._ask(lambda: self._graph.save(scope, patch, version=version, expected=expected))

    async def restore(self, scope: Scope, knowledge: Knowledge, *, version: int) -> None:
        await self._ask(lambda: self._graph.restore(scope, knowledge, version=version))

    async def delete(self, scope: Scope) -> bool:
        return await self._ask(lambda: self._graph.delete(scope))

    async def _ask(self, call: Callable[[], Awaitable[_T]]) -> _T:
        async def asked() -> _T:
            try:
                return await call()
            except StoreUnavailable as error:
                raise ProviderUnavailable(str(error)) from None

        return await self.breaker.ask(asked)


class LanguageModels:
    """As many of one LLM as chunks are under way, so that what each says of its ``usage`` is one chunk's.

    They are kept for the next chunk, with their connections; ``make`` sees to it that they are closed.
    """

    def __init__(self, make: Callable[[], LanguageModel]) -> None:
        self._make = make
        self._all: list[LanguageModel] = [make()]
        self._free = list(self._all)

    @property
    def name(self) -> str:
        return self._all[0].name

    @property
    def usage(self) -> Usage:
        """Of all of them, so far."""
        used = [each.usage for each in self._all]
        return Usage(*(sum(getattr(each, part) for each in used) for part in Usage.__slots__))

    @contextlib.contextmanager
    def one(self) -> Iterator[LanguageModel]:
        """One that nobody else has meanwhile."""
        if not self._free:
            self._all.append(self._make())
            self._free.append(self._all[-1])
        llm = self._free.pop()
        try:
            yield llm
        finally:
            self._free.append(llm)


def spent(after: Usage, before: Usage) -> Usage:
    """What was used between two moments."""
    return Usage(*(getattr(after, part) - getattr(before, part) for part in Usage.__slots__))
