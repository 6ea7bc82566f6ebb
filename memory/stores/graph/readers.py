"""Graphiti's own search and readers on a user's graph, for tools that users write: the only importer of graphiti_core.

It costs seconds and a hundred megabytes to import, and reads a ``.env`` file: never in a call's job, the recall host or
the API. What is stored is written by ``store`` alone: Graphiti's ``add_episode`` on such a graph would leave it in a
state that SQL does not know, and the next ingestion would take it back.

Above: users' tools, tests. Below: driver's addresses, keywords, graphiti_core, falkordb.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import redis.exceptions as driver
from falkordb.asyncio import FalkorDB  # type: ignore[import-untyped]
from graphiti_core import Graphiti
from graphiti_core.cross_encoder.client import CrossEncoderClient
from graphiti_core.driver.falkordb_driver import FalkorDriver
from graphiti_core.embedder.client import EmbedderClient
from graphiti_core.llm_client.client import LLMClient
from graphiti_core.llm_client.config import LLMConfig
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from memory.errors import ProviderRefused, StoreUnavailable
from memory.limits import GRAPH_TIMEOUT_S
from memory.stores.graph import keywords

_LOST = (driver.ConnectionError, driver.BusyLoadingError)
_NO_ROWS: tuple[list[Any], list[Any], None] = ([], [], None)
_ANY_LABEL = re.compile(r"(?<!\()\b([nm]):(\w+(?:\|\w+)+)")  # of a WHERE; "(n:A|B" is a pattern, which FalkorDB knows


class UserFalkorDriver(FalkorDriver):
    """Graphiti's driver on one user's graph: it makes no graph by reading, and no indices by being made."""

    def __init__(self, falkor_db: FalkorDB, database: str) -> None:
        super().__init__(falkor_db=falkor_db, database=database)
        if self._init_task is not None:
            self._init_task.cancel()
            self._init_task = None

    def clone(self, database: str) -> UserFalkorDriver:
        if database == self._database:
            return self
        return cast("UserFalkorDriver", self.with_database(database))

    async def execute_query(self, cypher_query_: str, **kwargs: Any) -> Any:
        if not await self.client.connection.exists(self._database):
            return _NO_ROWS
        return await super().execute_query(_filtered(cypher_query_), **kwargs)

    def build_fulltext_query(self, query: str, group_ids: list[str] | None = None, max_query_length: int = 128) -> str:
        """Without the group: the graph is the user's alone, and a dash in its name would find nothing."""
        return keywords.any_field(query)


def _filtered(query: str) -> str:
    """Graphiti's SearchFilters for FalkorDB, which has no ``n:A|B`` in a WHERE; and where edges are asked for by type,
    that may be one of the six categories as well as a relation."""
    labelled = _ANY_LABEL.sub(
        lambda found: f"({' OR '.join(f'{found[1]}:{label}' for label in found[2].split('|'))})", query
    )
    return labelled.replace("e.name in $edge_types", "(e.name in $edge_types OR e.category in $edge_types)")


class _NoReranker(CrossEncoderClient):
    """Recipes without a cross encoder (the RRF ones) need none; the default would want a key."""

    async def rank(self, query: str, passages: list[str]) -> list[tuple[str, float]]:
        raise ProviderRefused("This recipe needs a cross encoder: give one to open_graphiti, or use an RRF recipe.")


def no_reranker() -> CrossEncoderClient:
    """What refuses recipes with a cross encoder."""
    return _NoReranker()


class _NoLLM(LLMClient):
    """Reading needs none; the default would want a key."""

    def __init__(self) -> None:
        super().__init__(LLMConfig(api_key="", model="none"))

    async def _generate_response(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        raise ProviderRefused("This needs an LLM: give one to open_graphiti.")


class _NoEmbedder(EmbedderClient):
    """Keywords need none; the default would want a key."""

    async def create(self, input_data: Any) -> list[float]:
        raise ProviderRefused("This searches by vectors: give open_graphiti the embedder that the graph was made with.")

    async def create_batch(self, input_data_list: list[str]) -> list[list[float]]:
        return await self.create(input_data_list)  # type: ignore[return-value]


async def connect(url: str, password: str | None) -> FalkorDB:
    """A client of the server at ``url``, whose calls have deadlines.

    Raises:
        StoreUnavailable: it is away.
    """
    secret = {} if password is None else {"password": password}
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=8,
        timeout=5,
        socket_timeout=GRAPH_TIMEOUT_S,
        socket_connect_timeout=1,
        health_check_interval=15,
        decode_responses=True,
        **secret,
    )
    try:
        # Its constructor asks the server something, blocking, with these very arguments: hence on a thread, and
        # retries, which are of another kind there, only afterwards.
        client = await asyncio.to_thread(FalkorDB, connection_pool=pool)
    except (driver.ConnectionError, driver.TimeoutError):
        raise StoreUnavailable("FalkorDB can't be reached. Check FALKORDB_HOST and FALKORDB_PORT.") from None
    pool.connection_kwargs["retry"] = Retry(ExponentialBackoff(cap=1.0, base=0.05), 4, _LOST)
    return client


def graphiti(
    client: FalkorDB,
    graph: str,
    *,
    embedder: EmbedderClient | None,
    llm_client: LLMClient | None,
    cross_encoder: CrossEncoderClient | None,
) -> Graphiti:
    """Graphiti on one graph. Not to be closed: ``client`` is."""
    return Graphiti(
        graph_driver=UserFalkorDriver(client, graph),
        llm_client=llm_client or _NoLLM(),
        embedder=embedder or _NoEmbedder(),
        cross_encoder=cross_encoder or no_reranker(),
    )
