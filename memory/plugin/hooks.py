"""What the memory changes on a session and its agents, and how it is undone. Above: attached. Below: livekit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

from livekit.agents import Agent, AgentSession

from memory.counters import Counters

logger = logging.getLogger("memory.plugin")

Event = Literal["conversation_item_added", "speech_created", "user_input_transcribed", "close"]
_MISSING = object()


class Hooks:
    """Event handlers that can't raise into the session, and methods replaced on its and its agents' instances."""

    def __init__(self, session: AgentSession[Any], counters: Counters) -> None:
        self._session = session
        self._counters = counters
        self._handlers: list[tuple[Event, Callable[[Any], None]]] = []
        self._nodes: list[tuple[Agent | AgentSession[Any], str, Any, Any]] = []

    def on(self, event: Event, handler: Callable[[Any], None]) -> None:
        """Call ``handler`` with each ``event``. What it raises is counted and logged without content."""

        def call(payload: Any) -> None:
            with self.guarded(event):
                handler(payload)

        self._session.on(event, call)
        self._handlers.append((event, call))

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """What the block raises is counted and logged: livekit would print it, or let it through into the turn."""
        try:
            yield
        except Exception as error:
            self._counters.add("plugin.errors")
            logger.error("the memory missed a %s event (%s)", what, type(error).__name__)

    def replace(self, owner: Agent | AgentSession[Any], name: str, around: Callable[[Any], Any]) -> None:
        """Replace the node or method ``name`` of this one object by ``around(it)``; once per object."""
        if any(hooked is owner and node == name for hooked, node, _, _ in self._nodes):
            return
        before = vars(owner).get(name, _MISSING)
        after = around(getattr(owner, name))
        setattr(owner, name, after)
        self._nodes.append((owner, name, before, after))

    def undo(self) -> None:
        """Take the handlers off, and the nodes, except where somebody has replaced them in turn. Idempotent."""
        for event, handler in self._handlers:
            self._session.off(event, handler)
        for owner, name, before, after in reversed(self._nodes):
            if vars(owner).get(name) is not after:
                continue
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._handlers, self._nodes = [], []
