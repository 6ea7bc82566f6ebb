"""One call of a worker, in a process of its own: the session, its memory, and how both begin and end.

Nothing here waits for the memory: the session starts, greets and answers, and the memory joins in. Above: worker.
Below: dispatch, answer, presence, models, assistant, memory.plugin.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing.util
import os
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from livekit import rtc
from livekit.agents import AgentSession, CloseEvent, CloseReason, JobContext, JobExecutorType, JobProcess, room_io
from livekit.agents.types import ATTRIBUTE_AGENT_NAME

from agent.answer import Answer
from agent.assistant import Assistant
from agent.dispatch import Rescue, configured
from agent.models import Models, build, new_session
from agent.presence import Presence
from agent.private import keep_traces_private
from agent.ready import keep_audible
from agent.settings import AgentSettings, is_on, load
from agent.typed import TypedInput
from memory.errors import VoiceMemoryError
from memory.models import MemoryEntry
from memory.plugin import AttachedMemory, attach

logger = logging.getLogger("agent")

FAILED_CODE = 70  # of a job that can't go on: its worker has the call gone on with, as if it had crashed
CLOSE_STEP_S = 3.0
DELETE_ROOM_S = 3.0
RESUME_S = 5.0
# Silence is encoded all call long, though hardly anything of it is sent. From 64 kbit/s on Opus does so in its other
# way: 9 ms of processor time a second instead of 23 (measured). Where packets get lost it goes back to the former.
VOICE_BITS_PER_S = 64_000
GREETED_S = 300.0  # who talked so lately isn't greeted anew
_POLL_S = 1.0
_CALL = "agent.call"

# The network's doing, or a server's that went away; not somebody's who removed the agent or closed the room.
_CUT_OFF = (
    rtc.DisconnectReason.CONNECTION_TIMEOUT,
    rtc.DisconnectReason.SIGNAL_CLOSE,
    rtc.DisconnectReason.MEDIA_FAILURE,
    rtc.DisconnectReason.STATE_MISMATCH,
    rtc.DisconnectReason.JOIN_FAILURE,
)


def setup(_: JobProcess) -> None:
    """Prepare a process for a call that will come."""
    keep_traces_private()


async def entry(ctx: JobContext) -> None:
    """Hold a call. LiveKit calls it once a process, and ends the process when the call is over."""
    call = ctx.proc.userdata[_CALL] = Call(ctx)
    await call.hold()


async def on_session_end(ctx: JobContext) -> None:
    """The session is over: store what is left, and close."""
    call: Call | None = ctx.proc.userdata.pop(_CALL, None)
    if call is not None:
        await call.aclose()


class Call:
    """A call from its dispatch to its end."""

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx
        self._rescue = Rescue.of(ctx.job)
        self._models: Models | None = None
        self._memory: AttachedMemory | None = None
        self._typed: TypedInput | None = None
        self._presence: Presence | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    async def hold(self) -> None:
        """Start the session; what comes then is events' business. A call that can't be held ends as failed."""
        try:
            await self._start()
        except Exception as error:
            # Of an error that isn't ours only the kind is told: it may quote what was said.
            why = str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
            logger.error("the call can't be held: %s", why, exc_info=logger.isEnabledFor(logging.DEBUG))
            self._fail()

    async def _start(self) -> None:
        configuration = configured(load(), self._ctx.job.metadata)
        agent_settings, memory_settings = configuration.agent, configuration.memory
        self._models = build(agent_settings, memory_settings.data_dir, voice=True)
        session = new_session(self._models, room=True)
        if self._ctx.is_fake_job():
            keep_audible(session)
        else:
            keep_audible(session, Answer(self._ctx.room, session).wait)
            self._typed = TypedInput(self._ctx.room, session)
        assistant = Assistant.of(configuration)
        if self._rescue is not None:
            assistant.greets_on_enter = False
        dead_job = self._rescue.dead_job if self._rescue is not None else None
        memory = self._memory = attach(session, assistant, self._ctx, settings=memory_settings, takes_over=dead_job)
        session.on("close", self._on_close)
        self._ctx.room.on("disconnected", self._on_disconnected)
        await session.start(
            assistant, room=self._ctx.room, room_options=room_options(), record=False, session_host=False
        )
        if self._typed is None:  # at a terminal
            return
        self._presence = Presence(self._ctx.room, session, agent_settings.reconnect_seconds, self._end)
        if self._rescue is not None and not self._presence.users_left:
            self._end("nobody is left")  # between the dispatch and now; it may even have made the room anew
        elif memory_settings.enabled:
            self._later(self._take_up(session, memory, assistant, agent_settings, self._typed))
            self._later(self._give_way(session, memory))
        else:
            self._typed.start()
            if self._rescue is not None:
                _say(session, agent_settings.resumed)

    async def _take_up(
        self,
        session: AgentSession[None],
        memory: AttachedMemory,
        assistant: Assistant,
        settings: AgentSettings,
        typed: TypedInput,
    ) -> None:
        """``_resume``. Whose agent died is answered as somebody who was heard before, hence not sooner."""
        if self._rescue is None:
            typed.start()
        try:
            await self._resume(session, memory, assistant, settings)
        finally:
            if self._rescue is not None:
                typed.start()

    async def _resume(
        self, session: AgentSession[None], memory: AttachedMemory, assistant: Assistant, settings: AgentSettings
    ) -> None:
        """Go on where the session was, if it was there before this job."""
        before: list[MemoryEntry] | None = None
        try:
            # A caller who is expected may come much later than the job; one whose agent died is there.
            async with asyncio.timeout(None if self._rescue is None else RESUME_S):
                before = await memory.resume()
        except (VoiceMemoryError, TimeoutError) as error:
            logger.warning("the call goes on without what was said in it before (%s)", type(error).__name__)
        if self._rescue is None:
            if before and _seconds_since(before[-1]) < GREETED_S:
                assistant.forgo_greeting()
        elif before is None:
            _say(session, settings.resumed)
        elif not before:
            assistant.greet()
        elif before[-1].role == "user":
            session.generate_reply()
        else:
            _say(session, settings.resumed)

    async def _give_way(self, session: AgentSession[None], memory: AttachedMemory) -> None:
        """Two agents must not answer one user: who may not record the session leaves."""
        await memory.silenced()
        while not self._is_beside_another():  # such as one that is just ending, or has died: then this one stays
            await asyncio.sleep(_POLL_S)
            await memory.silenced()
        logger.warning("another agent holds this call; this one leaves")
        session.output.set_audio_enabled(False)
        self._ctx.shutdown("another agent holds this call")

    def _is_beside_another(self) -> bool:
        return any(
            each.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT
            and each.attributes.get(ATTRIBUTE_AGENT_NAME, "") == self._ctx.job.agent_name
            for each in self._ctx.room.remote_participants.values()
        )

    def _on_close(self, event: CloseEvent) -> None:
        if event.reason == CloseReason.ERROR:
            logger.error("the session gave up: a model did not answer again and again")
            self._fail()
        elif event.reason != CloseReason.JOB_SHUTDOWN:
            self._end("the session is over")

    def _on_disconnected(self, reason: rtc.DisconnectReason.ValueType) -> None:
        # LiveKit ends the job by itself then; whether there still is a call, the worker finds out.
        if reason in _CUT_OFF and not self._ending:
            logger.error("the connection to the room was lost")
            self._exit_as_failed()

    def _end(self, reason: str) -> None:
        """The call is over. The room goes too when nobody is left in it: who comes back gets a new agent."""
        if self._ending:
            return
        self._ending = True
        if self._ctx.is_fake_job() or self._presence is None or self._presence.users_left:
            self._ctx.shutdown(reason)
        else:
            self._later(self._close_room(reason))

    async def _close_room(self, reason: str) -> None:
        await asyncio.wait({self._ctx.delete_room()}, timeout=DELETE_ROOM_S)
        self._ctx.shutdown(reason)

    def _fail(self) -> None:
        """End this process in a way that its worker takes for a crash, and goes on with the call."""
        self._ending = True
        self._exit_as_failed()
        self._ctx.shutdown("the call failed")

    def _exit_as_failed(self) -> None:
        if self._ctx.proc.executor_type == JobExecutorType.PROCESS:
            # After everything else that a process does at its end.
            multiprocessing.util.Finalize(None, os._exit, args=(FAILED_CODE,), exitpriority=-1_000)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="agent.call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Store what is left and close everything, each step within its bound. Idempotent."""
        for part in (self._typed, self._presence, self._memory, self._models):
            if part is not None:
                await _bounded(part.aclose())
        for task in list(self._tasks):
            task.cancel()


def room_options() -> room_io.RoomOptions:
    """How a session is in its room. ``TypedInput`` takes what is typed, ``Presence`` decides when the user has left;
    LiveKit's own gain control would clip the first seconds of a phone call, and browsers have one themselves."""
    published = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
    published.audio_encoding.max_bitrate = VOICE_BITS_PER_S
    return room_io.RoomOptions(
        text_input=False,
        audio_input=room_io.AudioInputOptions(auto_gain_control=False, frame_size_ms=20),
        audio_output=room_io.AudioOutputOptions(track_publish_options=published),
        close_on_disconnect=False,
    )


def _say(session: AgentSession[None], text: str) -> None:
    if is_on(text):
        session.say(text)


def _seconds_since(entry: MemoryEntry) -> float:
    return (datetime.now(UTC) - entry.timestamp).total_seconds()


async def _bounded(step: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(step)
    done, _ = await asyncio.wait({task}, timeout=CLOSE_STEP_S)
    if not done:
        task.cancel()
        logger.warning("a step of the call's end took too long and was left")
    elif not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a step of the call's end failed (%s)", type(error).__name__)
