"""What a job's dispatch says: how this one call is held, and whether it goes on where another job has died.

A dispatch is signed, whoever made it: a token with a room configuration, a dispatch rule, the API. Still, what is wrong
in it is left out with a line in the log, and the call is held. Above: job, rescue. Below: settings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from livekit.protocol import agent as protocol
from livekit.protocol.agent_dispatch import AgentDispatch
from pydantic import ValidationError

from agent.settings import AgentSettings, Configuration
from memory.settings import explain

logger = logging.getLogger("agent")

# What each call may have of its own; user_id, phone, org_id, agent_id and session_id are the memory plugin's to read.
OPTIONS = ("name", "instructions", "greeting", "voice", "language")
MEMORY_OPTION = "memory"
_IDENTITY = ("user_id", "phone", "org_id", "agent_id", "session_id")
_UNKNOWN_SHOWN_MAX = 5
_KEY_CHARS_MAX = 40

_RESCUE_JOB, _RESCUE_COUNT = "agent.rescue.job", "agent.rescue.count"


def configured(configuration: Configuration, metadata: str) -> Configuration:
    """``configuration`` with what a job's metadata, a JSON object, say of this one call.

    ``{"name", "instructions", "greeting", "voice", "language": text, "memory": false}``, each of them optional, each
    with the bounds of the ``AGENT_`` variable of that name. ``memory`` can be switched off here, not on.
    """
    found = _object(metadata)
    unknown = [str(key)[:_KEY_CHARS_MAX] for key in found if key not in (*OPTIONS, *_IDENTITY, MEMORY_OPTION)]
    if unknown:
        shown = ", ".join(unknown[:_UNKNOWN_SHOWN_MAX])
        logger.info("the job's metadata have %d keys that are not the agent's own: %s", len(unknown), shown)
    changes = {key: value for key in OPTIONS if (value := _checked(key, found.get(key))) is not None}
    agent = configuration.agent.model_copy(update=changes)
    return Configuration(agent, configuration.memory.model_copy(update={"enabled": _remembers(configuration, found)}))


def _object(metadata: str) -> Mapping[str, Any]:
    if not metadata.strip():
        return {}
    try:
        found: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, Mapping):
        return found
    logger.info("the job's metadata are no JSON object; the call is held as the settings say")
    return {}


def _checked(key: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        checked: str | None = getattr(AgentSettings(**{key: value}), key)
    except ValidationError as error:
        reason = "; ".join(line.partition(": ")[2] for line in explain(error, AgentSettings))
        logger.warning("%s of the job's metadata is left out: %s", key, reason)
        return None
    return checked


def _remembers(configuration: Configuration, found: Mapping[str, Any]) -> bool:
    wanted = found.get(MEMORY_OPTION, True)
    if not isinstance(wanted, bool):
        logger.warning("%s of the job's metadata is left out: it must be true or false", MEMORY_OPTION)
        wanted = True
    return configuration.memory.enabled and wanted


@dataclass(frozen=True, slots=True)
class Rescue:
    """A job that goes on with a call whose job has died: that one's id, and how many of the call's jobs have died."""

    dead_job: str
    count: int

    @classmethod
    def of(cls, made: protocol.Job | AgentDispatch) -> Self | None:
        """What a dispatch says, or its job; ``None`` for a call that begins."""
        dead_job, count = made.attributes.get(_RESCUE_JOB), made.attributes.get(_RESCUE_COUNT, "")
        return cls(dead_job, int(count)) if dead_job and count.isdecimal() else None

    def attributes(self) -> dict[str, str]:
        """The same for a dispatch."""
        return {_RESCUE_JOB: self.dead_job, _RESCUE_COUNT: str(self.count)}
