"""Imported where jobs are forked from, in a worker that is measured: wraps what a job does, to tell when it did it.

Above: worker. Below: tracing, the agent and the memory's plugin as they are.
"""

from __future__ import annotations

import time
from typing import Any

from livekit import rtc
from livekit.agents import (
    AgentSession,
    AgentStateChangedEvent,
    ConversationItemAddedEvent,
    UserInputTranscribedEvent,
    UserStateChangedEvent,
)

from agent import job, models
from memory.heard import Ear, HeardOutput
from memory.plugin.recall import RecallGate
from tests.benchmarks.tracing import tell


def watch(session: AgentSession[Any]) -> None:
    """Tell what happens in a session."""

    def on_transcript(event: UserInputTranscribedEvent) -> None:
        tell("transcript", final=event.is_final, text=event.transcript)

    def on_item(event: ConversationItemAddedEvent) -> None:
        if event.item.type == "message":
            metrics = {name: value for name, value in event.item.metrics.items() if isinstance(value, float)}
            tell(
                "item",
                role=event.item.role,
                text=event.item.text_content or "",
                interrupted=event.item.interrupted,
                metrics=metrics,
            )

    def on_user(event: UserStateChangedEvent) -> None:
        tell("user", state=event.new_state)

    def on_agent(event: AgentStateChangedEvent) -> None:
        tell("agent", state=event.new_state)

    session.on("user_input_transcribed", on_transcript)
    session.on("user_state_changed", on_user)
    session.on("conversation_item_added", on_item)
    session.on("agent_state_changed", on_agent)


def _wrap() -> None:
    start, new_session = job.Call._start, models.new_session
    prefixed, first_frame, capture = RecallGate._prefixed, Ear.before_first_frame, HeardOutput.capture_frame

    async def _start(self: job.Call) -> None:
        tell("job")
        await start(self)
        tell("started")

    def _new_session(*arguments: Any, **options: Any) -> AgentSession[None]:
        session = new_session(*arguments, **options)
        watch(session)
        return session

    async def _prefixed(self: RecallGate, chat_ctx: Any) -> Any:
        begun = time.perf_counter()
        try:
            return await prefixed(self, chat_ctx)
        finally:
            tell("recalled", ms=(time.perf_counter() - begun) * 1e3)

    async def _before_first_frame(self: Ear) -> None:
        begun = time.perf_counter()
        await first_frame(self)
        tell("durable", ms=(time.perf_counter() - begun) * 1e3)

    async def _capture_frame(self: HeardOutput, frame: rtc.AudioFrame) -> None:
        begins = self._segment is None
        if begins:
            tell("synthesized")
        await capture(self, frame)
        if begins:
            tell("handed_over")

    job.Call._start = _start  # type: ignore[method-assign]
    job.new_session = _new_session  # type: ignore[attr-defined]
    RecallGate._prefixed = _prefixed  # type: ignore[method-assign]
    Ear.before_first_frame = _before_first_frame  # type: ignore[method-assign]
    HeardOutput.capture_frame = _capture_frame  # type: ignore[method-assign]


_wrap()
