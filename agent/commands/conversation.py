"""A conversation as ``chat`` and ``call`` hold it: a session with its models, its agent and the memory, without a room.

Opens everything in order, and closes it in reverse with a bound on each step, so that what was said is stored whatever
hangs. Above: chat, call. Below: models, assistant, memory.plugin.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.models import Models
from agent.settings import Configuration, load

if TYPE_CHECKING:
    from livekit.agents import AgentSession
    from memory.plugin import AttachedMemory

CLOSE_STEP_S = 1.5
SESSION_CLOSE_S = 2.5

logger = logging.getLogger("agent")


@dataclass
class Conversation:
    """A session that was started. ``block`` and ``recall_ms`` tell of the last LLM call's memory."""

    session: AgentSession[None]
    memory: AttachedMemory
    models: Models
    session_id: str
    user_id: str
    started_s: float = field(default_factory=time.monotonic)


def configured(arguments: argparse.Namespace) -> Configuration:
    """The settings, with the identity that was asked for.

    Raises:
        SettingsError: some are wrong.
    """
    chosen = {"org_id": getattr(arguments, "org", None), "agent_id": getattr(arguments, "agent", None)}
    return load(**{name: value for name, value in chosen.items() if value is not None})


def notice(text: str) -> None:
    """Tell whoever runs the command, apart from the conversation: on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's own words
