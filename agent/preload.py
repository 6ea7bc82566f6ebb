"""Imported once in the process that LiveKit forks jobs from: what a call would else import while somebody listens.

Imports only, and such first uses as fill a table: no thread, no socket, no event loop, no model. Above: worker. Below:
job, and the providers that the settings name.
"""

from __future__ import annotations

import importlib

from livekit.agents import tokenize

from agent import job  # noqa: F401
from agent.settings import PARTS, load

# What the plugin opens in a job, and what is else imported at its first use.
_USED = [
    "livekit.agents.llm.async_toolset",
    "memory.stores.redis",
    "memory.stores.embedded",
    "memory.retrieval.client",
    "numpy.ma",
    "redis.asyncio",
]
_BY_PROVIDER = {
    "local": ["agent.endings", "agent.local.stt", "agent.local.tts", "agent.local.thinker", "agent.local.client"],
    "openai": ["livekit.plugins.openai"],
    "livekit": ["livekit.agents.inference"],
}


def preload() -> None:
    agent = load().agent
    for module in [*_USED, *(name for part in PARTS for name in _BY_PROVIDER[agent.provider(part)])]:
        try:
            importlib.import_module(module)
        except ImportError:
            continue  # the call that needs it says so
    tokenize.basic.hyphenate_word("preloaded")


preload()
