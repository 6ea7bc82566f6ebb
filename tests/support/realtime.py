"""A realtime (speech to speech) model for tests: it answers with a text and that text's audio, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TypeVar

from livekit import rtc
from livekit.agents import llm, utils
from livekit.agents.types import NOT_GIVEN, NotGivenOr

from tests.support.voice import frames_of

T = TypeVar("T")


async def _stream(*items: T) -> AsyncIterator[T]:
    for item in items:
        yield item


class ScriptedRealtime(llm.RealtimeModel):
    """Answers with ``messages``, each a text and its audio; transcribes what ``hear`` is told.

    ``turn_detection``: it tells itself when a turn is over.
    """

    def __init__(self, *messages: str, turn_detection: bool = True) -> None:
        super().__init__(
            capabilities=llm.RealtimeCapabilities(
                message_truncation=False,
                turn_detection=turn_detection,
                user_transcription=True,
                auto_tool_reply_generation=False,
                audio_output=True,
                manual_function_calls=False,
            )
        )
        self.messages = messages
        self.sessions: list[ScriptedRealtimeSession] = []

    def session(self, *, turn_detection_disabled: bool = False) -> llm.RealtimeSession[Any]:
        self.sessions.append(ScriptedRealtimeSession(self))
        return self.sessions[-1]

    async def aclose(self) -> None:
        return None

    def hear(self, text: str, *, began_at: float) -> None:
        """The user said ``text``; as with providers, the transcript comes after the reply has begun."""
        session = self.sessions[-1]
        session.emit("generation_created", session.generation(user_initiated=False))
        session.emit(
            "input_audio_transcription_completed",
            llm.InputTranscriptionCompleted(
                item_id=utils.shortuuid("item_"), transcript=text, is_final=True, turn_started_at=began_at
            ),
        )


class ScriptedRealtimeSession(llm.RealtimeSession[Any]):
    def __init__(self, model: ScriptedRealtime) -> None:
        super().__init__(model)
        self._messages = model.messages
        self._chat_ctx = llm.ChatContext.empty()

    @property
    def chat_ctx(self) -> llm.ChatContext:
        return self._chat_ctx.copy()

    @property
    def tools(self) -> llm.ToolContext:
        return llm.ToolContext.empty()

    def generation(self, *, user_initiated: bool) -> llm.GenerationCreatedEvent:
        return llm.GenerationCreatedEvent(
            message_stream=_stream(*(self._message(text) for text in self._messages)),
            function_stream=_stream(),
            user_initiated=user_initiated,
        )

    def _message(self, text: str) -> llm.MessageGeneration:
        modalities: asyncio.Future[list[Literal["text", "audio"]]] = asyncio.get_running_loop().create_future()
        modalities.set_result(["text", "audio"])
        return llm.MessageGeneration(
            message_id=utils.shortuuid("item_"),
            text_stream=_stream(text),
            audio_stream=frames_of(text),
            modalities=modalities,
        )

    def generate_reply(self, **_: Any) -> asyncio.Future[llm.GenerationCreatedEvent]:
        made: asyncio.Future[llm.GenerationCreatedEvent] = asyncio.get_running_loop().create_future()
        event = self.generation(user_initiated=True)
        self.emit("generation_created", event)
        made.set_result(event)
        return made

    async def update_chat_ctx(self, chat_ctx: llm.ChatContext) -> None:
        self._chat_ctx = chat_ctx.copy()

    async def update_instructions(self, instructions: str) -> None: ...

    async def update_tools(self, tools: Sequence[llm.Tool]) -> None: ...

    def update_options(self, *, tool_choice: NotGivenOr[llm.ToolChoice | None] = NOT_GIVEN) -> None: ...

    def push_audio(self, frame: rtc.AudioFrame) -> None: ...

    def push_video(self, frame: rtc.VideoFrame) -> None: ...

    def commit_audio(self) -> None: ...

    def clear_audio(self) -> None: ...

    def interrupt(self) -> None: ...

    def truncate(self, **_: Any) -> None: ...

    async def aclose(self) -> None: ...
