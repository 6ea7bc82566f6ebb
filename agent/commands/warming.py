"""Waits until what is remembered of a user can be recalled in full.

A service that runs all day never needs it: its recall host is long there. A command that is started for one question
is over before a host that was just started has its embedder loaded, and until then recall knows keywords only.
Above: conversation. Below: memory.wiring, memory.retrieval.client, memory.providers.embedders.
"""

from __future__ import annotations

import asyncio

from memory.errors import HostUnavailable, VoiceMemoryError
from memory.models import Scope
from memory.ports import Retriever
from memory.settings import Settings
from memory.wiring import Backend

WARM_S_MAX = 10.0
_POLL_S = 0.1
_BUDGET_MS = 2_000.0
_QUESTION = "What do you know about me?"


async def warm(backend: Backend | None, settings: Settings, scope: Scope) -> None:
    """Return when recall works as well as it can here, ``WARM_S_MAX`` after the host is up at most. Never raises."""
    if backend is None or backend.retriever is None:
        return
    await backend.retriever.warm(scope)
    if not await asyncio.to_thread(_has_embedder, settings):
        return
    try:
        async with asyncio.timeout(WARM_S_MAX):
            while not await _in_full(backend.retriever, scope):  # noqa: ASYNC110 - the host tells nobody by itself
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return


def _has_embedder(settings: Settings) -> bool:
    if settings.embedder == "none":
        return False
    from memory.providers.embedders import model_file, tokenizer_file

    try:
        model_file()
        tokenizer_file(settings.data_dir)
    except VoiceMemoryError:
        return False
    return True


async def _in_full(retriever: Retriever, scope: Scope) -> bool:
    """Whether a recall lacks nothing, and every turn has its vector."""
    from memory.retrieval.client import HostRetriever

    try:
        recall = await retriever.recall(scope, _QUESTION, limit=1, budget_ms=_BUDGET_MS)
        if recall.degraded:
            return False
        # Of all users the host has: where others talk at the same time, the bound ends the wait.
        return not isinstance(retriever, HostRetriever) or not (await retriever.stats())["missing_vectors"]
    except HostUnavailable:
        return False
