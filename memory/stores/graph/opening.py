"""Where the graph is by the settings, and Graphiti on a user's graph for tools that users write.

Above: wiring, users' tools. Below: readers (imported only when asked for), embedded, settings, identity.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from memory.identity import group_id
from memory.models import Scope
from memory.settings import Settings

if TYPE_CHECKING:
    from graphiti_core import Graphiti
    from graphiti_core.cross_encoder.client import CrossEncoderClient
    from graphiti_core.embedder.client import EmbedderClient
    from graphiti_core.llm_client.client import LLMClient


def graph_url(settings: Settings) -> str | None:
    """The URL of the FalkorDB that settings name, without its password; ``None``: the embedded server's."""
    if settings.falkordb_host is None:
        return None
    host = f"[{settings.falkordb_host}]" if ":" in settings.falkordb_host else settings.falkordb_host
    return f"redis://{host}:{settings.falkordb_port}"


def graph_password(settings: Settings) -> str | None:
    """The password for ``graph_url``."""
    secret = settings.falkordb_password
    return None if secret is None or settings.falkordb_host is None else secret.get_secret_value()


@contextlib.asynccontextmanager
async def open_graphiti(
    settings: Settings,
    scope: Scope,
    *,
    embedder: EmbedderClient | None = None,
    llm_client: LLMClient | None = None,
    cross_encoder: CrossEncoderClient | None = None,
) -> AsyncIterator[Graphiti]:
    """Graphiti on the user's graph, to search and read it: ``async with open_graphiti(…) as graphiti``.

    Without ``embedder`` by keyword only; it has to be the one that the graph was made with. A user who has no graph is
    found to have nothing, and gets none by it. Importing Graphiti takes seconds: not for a running call.

    Raises:
        ImportError: the ``graph`` extra is not installed.
        StoreUnavailable, EmbeddedServerUnavailable: FalkorDB is away, or can't run here.
    """
    os.environ.setdefault("GRAPHITI_TELEMETRY_ENABLED", "false")
    from memory.stores.graph import readers

    async with contextlib.AsyncExitStack() as stack:
        url = graph_url(settings)
        if url is None:
            from memory.stores.embedded import EmbeddedServer

            server = EmbeddedServer(settings.data_dir, idle_s=settings.host_idle_seconds)
            stack.push_async_callback(server.aclose)
            url = await server.ensure()
        client = await readers.connect(url, graph_password(settings))
        stack.push_async_callback(client.aclose)
        yield readers.graphiti(
            client,
            group_id(scope),
            embedder=embedder,
            llm_client=llm_client,
            cross_encoder=cross_encoder,
        )
