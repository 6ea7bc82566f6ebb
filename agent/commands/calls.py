"""Tells a call as it happens: who says what, when, and how long everything took.

Above: call. Below: turns, output, conversation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np
from livekit.agents import (
    AgentSession,
    AgentStateChangedEvent,
    CloseEvent,
    CloseReason,
    ConversationItemAddedEvent,
    ErrorEvent,
    UserInputTranscribedEvent,
    UserStateChangedEvent,
    llm,
)

from agent.commands.conversation import Conversation, bounded, notice
from agent.commands.failures import why
from agent.commands.output import Output, milliseconds
from agent.commands.turns import Remembered, Turn
from agent.local.audio import Playing
from agent.local.wav import RATE
from agent.settings import AgentSettings, Part

QUIET_S = 1.2  # nothing going on for this long is the end of a call whose caller has finished
UNDERSTANDING_S = 5.0  # the same while what was said last is not understood yet
AUDIBLE = 330  # of 32768: as agent.local.audio has it
_POLL_S = 0.05
_PARTS: dict[str, tuple[Part, str]] = {
    "stt_error": ("stt", "listening"),
    "llm_error": ("llm", "thinking"),
    "tts_error": ("tts", "talking"),
}


class CallTeller:
    """Listens to a session's events. Times in events are ``time.time()``.

    ``answered`` is set by the first reply or greeting that was said to its end, or can't be; ``closed`` when the
    session gave up.
    """

    def __init__(self, output: Output, settings: AgentSettings, *, as_json: bool) -> None:
        self._output = output
        self._settings = settings
        self._as_json = as_json
        self._talk: Conversation | None = None
        self._remembered: Remembered | None = None
        self._language = ""
        self._began_at = time.time()
        self._active_at_s = time.monotonic()
        self._caller_speaks = False
        self._agent_busy = False
        self._not_understood = False
        self._failed = False
        self._problems: set[str] = set()
        self._turns = 0
        self._caller_ended_at: float | None = None
        self._audible_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.playing: Playing | None = None
        self.answered = asyncio.Event()
        self.closed = asyncio.Event()

    def listen(self, session: AgentSession[None]) -> None:
        session.on("user_state_changed", self._on_caller)
        session.on("agent_state_changed", self._on_agent)
        session.on("user_input_transcribed", self._on_transcript)
        session.on("conversation_item_added", self._on_item)
        session.on("error", self._on_error)
        session.on("close", self._on_close)

    def ready(self, talk: Conversation, start_ms: float, models: Mapping[str, str]) -> None:
        """The session has started: the call's time begins."""
        self._began_at = time.time()
        self._talk, self._remembered = talk, Remembered(talk.memory)
        self._event(
            "ready", session=talk.session_id, user=talk.scope.user_id, start_ms=round(start_ms, 1), models=models
        )

    def on_audible(self, at: float) -> None:
        """The first sound of something the agent says comes out of the speaker."""
        self._audible_at = at
        self._event("first_audio", at=at, greeting=self._turns == 0, caller_ended_at=self._caller_ended_at)

    def _on_caller(self, event: UserStateChangedEvent) -> None:
        self._active()
        if self._caller_speaks and event.new_state != "speaking":
            self._not_understood = True
        self._caller_speaks = event.new_state == "speaking"

    def _on_agent(self, event: AgentStateChangedEvent) -> None:
        self._active()
        self._agent_busy = event.new_state in ("thinking", "speaking")

    def _on_transcript(self, event: UserInputTranscribedEvent) -> None:
        self._active()
        if event.is_final:
            self._language = str(event.language or "")
            self._event("transcript", text=event.transcript, language=self._language, at=time.time())

    def _on_item(self, event: ConversationItemAddedEvent) -> None:
        self._active()
        item = event.item
        if not isinstance(item, llm.ChatMessage) or item.role not in ("user", "assistant"):
            return
        if item.role == "user":
            self._turns += 1
            self._not_understood = False
            self._caller_ended_at = self._voice_end(item.metrics.get("stopped_speaking_at"))
            self._tell(Turn("user", (item.text_content or "").strip(), "voice", self._language))
            self._later(self._tell_durable())
            return
        self._tell(self._reply(item))
        self.answered.set()

    def _reply(self, item: llm.ChatMessage) -> Turn:
        turn = Turn("assistant", (item.text_content or "").strip(), "voice", self._language, item.interrupted)
        if self._turns and self._remembered is not None:
            turn.memory_ms, turn.block = self._remembered.look()
            turn.voice_to_voice_ms = self._voice_to_voice_ms()
        return turn

    def _voice_to_voice_ms(self) -> float | None:
        ended_at, audible_at = self._caller_ended_at, self._audible_at
        if ended_at is None or audible_at is None or audible_at < ended_at:
            return None
        return (audible_at - ended_at) * 1000

    def _voice_end(self, about: float | None) -> float | None:
        """When the caller's voice ended: the last audible sample before the VAD was sure that it had."""
        playing = self.playing
        if about is None or playing is None or playing.started_at is None:
            return about
        index = max(0, int((about - playing.started_at) * RATE))
        audible = np.flatnonzero(np.abs(playing.samples[:index].astype(np.int32)) > AUDIBLE)
        return playing.started_at + (int(audible[-1]) + 1) / RATE if len(audible) else about

    async def _tell_durable(self) -> None:
        if self._talk is not None:
            await bounded(self._talk.memory.flush())
            self._event("durable", at=time.time())

    def _on_error(self, event: ErrorEvent) -> None:
        self._active()
        cause = getattr(event.error, "error", event.error)
        kind = getattr(event.error, "type", "")
        if not getattr(event.error, "recoverable", False):
            self._failed = True
            if kind == "tts_error":
                self.answered.set()  # there is nothing left to wait for
        if kind in _PARTS:
            part, doing = _PARTS[kind]
            self._problem(f"{doing}: {why(cause, part, self._settings)}")
        else:
            self._problem(f"{kind}: {type(cause).__name__}. python -m agent doctor shows what answers.")

    def _problem(self, text: str) -> None:
        if text not in self._problems:  # each attempt fails alike
            self._problems.add(text)
            notice(text)
            self._event("problem", message=text)

    def _on_close(self, event: CloseEvent) -> None:
        if event.reason == CloseReason.ERROR:
            self.closed.set()

    def _active(self) -> None:
        self._active_at_s = time.monotonic()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Return once everything said has been answered, and nothing goes on any more."""
        while not self.closed.is_set():
            quiet_s = time.monotonic() - self._active_at_s
            enough_s = UNDERSTANDING_S if self._not_understood else QUIET_S
            if not self._caller_speaks and not self._agent_busy and quiet_s >= enough_s:
                return
            await asyncio.sleep(_POLL_S)

    def end(self, recording: str | None) -> int:
        """Tell how it ended; 1 if nothing was understood, or a model failed for good."""
        understood = self._turns > 0
        if not understood and not self._failed:
            notice("Nothing was understood: there is no speech in the recording that this listener can make out.")
        if recording and not self._as_json:
            notice(f"The call is in {recording}: caller left, agent right.")
        self._event("end", recording=recording, turns=self._turns)
        return 0 if understood and not self._failed and not self.closed.is_set() else 1

    def _tell(self, turn: Turn) -> None:
        if self._as_json:
            self._output.event("turn", **turn.fields())
            return
        who = "caller" if turn.role == "user" else "agent "
        told = [turn.mode, *([turn.language] if turn.language else [])]
        if turn.role == "assistant" and self._turns:
            told.append(f"memory {milliseconds(turn.memory_ms)}")
            told.append(f"voice to voice {milliseconds(turn.voice_to_voice_ms)}")
        if turn.interrupted:
            told.append("interrupted")
        self._output.line(f"[{turn.at - self._began_at:5.1f} s] {who}  {turn.text}  ({', '.join(told)})")

    def _event(self, event: str, **fields: Any) -> None:
        if self._as_json:
            self._output.event(event, **fields)
