"""``python -m agent demo``: the promise of this project, shown with real processes.

Call 1 is spoken: the local talker says ``--say`` into the microphone of a ``call`` process, which is killed at the
first sound of its reply. Then the same user types ``--ask`` into a new ``chat`` process. Nothing but the defaults of
these two is scripted. Above: cli. Below: children, story, verdict, agent.local, memory.wiring.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np

from agent.commands.children import Child, ChildFailed
from agent.commands.conversation import check_data_dir
from agent.commands.output import Output
from agent.commands.process import run_async
from agent.commands.story import Call, Chat, Story
from agent.commands.verdict import fact_words, judge
from agent.local.client import SpeechClient
from agent.local.models import TALK_RATE, LocalSpeechUnavailable, check_installed
from agent.local.wav import Floats, write_two_channel_wav
from agent.models import ModelUnavailable
from agent.settings import Configuration, load
from memory import wiring
from memory.errors import VoiceMemoryError
from memory.models import MemoryEntry, new_id

START_S_MAX = 60.0
REPLY_S_MAX = 60.0
SAY_S_MAX = 60.0
_LEAD_S = 0.3


class DemoRefused(VoiceMemoryError, ValueError):
    """What was to be said and asked can't show anything."""


def run(arguments: argparse.Namespace) -> int:
    """Show it; 0 if the answer holds the fact, 1 if not."""
    try:
        check_installed()
    except LocalSpeechUnavailable as error:
        raise ModelUnavailable(str(error)) from None
    configuration = load()
    if not fact_words(arguments.say, ""):
        raise DemoRefused("--say holds nothing to remember. Say a fact, such as: I live in Leeds.")
    if not fact_words(arguments.say, arguments.ask):
        raise DemoRefused(
            "--ask repeats every word of --say, so that an answer would show nothing. Ask in other words."
        )
    check_data_dir(configuration, voice=True)
    output = Output()
    return run_async(lambda: demo(arguments, configuration, output), output)


async def demo(arguments: argparse.Namespace, configuration: Configuration, output: Output) -> int:
    """Call, kill, ask, judge; the exit code."""
    user = arguments.user or f"demo-{new_id()[-12:]}"
    story = Story(output, as_json=arguments.json)
    story.begin(user, configuration.agent)
    try:
        async with _speech(configuration) as speech, _directory() as directory:
            samples = await _spoken(speech, arguments.say)
            recording = directory / "caller.wav"
            await asyncio.to_thread(write_two_channel_wav, recording, samples, samples, TALK_RATE)
            call = await _call_and_kill(recording, user, len(samples) / TALK_RATE, story)
        story.tell_call(arguments.say, call)
        stored = await _stored(configuration, call.session)
        story.tell_stored(stored)
        chat = await _ask(user, arguments.ask, story)
        story.tell_chat(arguments.ask, chat)
    except (ChildFailed, VoiceMemoryError) as error:
        story.failed(str(error))
        return 1
    verdict = judge(
        said=arguments.say,
        understood=" ".join(entry.content for entry in stored),
        asked=arguments.ask,
        block=chat.block or "",
        answer=chat.answer,
    )
    story.end(call, chat, verdict)
    return 0 if verdict.ok else 1


@contextlib.asynccontextmanager
async def _speech(configuration: Configuration) -> AsyncIterator[SpeechClient]:
    client = SpeechClient(configuration.memory.data_dir)
    try:
        await client.ensure()
        yield client
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def _directory() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="voicemem-demo-") as name:
        yield Path(name)


async def _spoken(speech: SpeechClient, text: str) -> Floats:
    """``text`` as the caller's voice, with a breath before it.

    Raises:
        DemoRefused: there is nothing in it that can be spoken, or too much.
    """
    silence = np.zeros(int(_LEAD_S * TALK_RATE), np.float32)
    pieces = [np.frombuffer(part.pcm, np.int16) async for part in speech.talk(text)]
    samples = np.concatenate([np.zeros(0, np.int16), *pieces]).astype(np.float32) / np.float32(32768)
    if not np.any(np.abs(samples) > 0.01):
        raise DemoRefused("--say holds nothing that the local talker can speak; it speaks English.")
    if len(samples) > SAY_S_MAX * TALK_RATE:
        raise DemoRefused(f"--say takes {len(samples) / TALK_RATE:.0f} s to speak, {SAY_S_MAX:g} s at most.")
    return np.concatenate([silence, samples, silence])


async def _call_and_kill(recording: Path, user: str, duration_s: float, story: Story) -> Call:
    """Make the call in a process of its own, and kill that at the first sound of its reply."""
    child = await Child.start("call", str(recording), "--user", user)
    try:
        story.tell_process("Call, spoken", child.pid)
        ready = await child.until("ready", START_S_MAX)
        ready_at = time.time()
        sound = await child.until("first_audio", duration_s + REPLY_S_MAX, greeting=False)
        child.kill()
        killed_at = time.time()
        code = await child.ended()
        transcript, durable = child.find("transcript"), child.find("durable")
        return Call(
            session=str(ready["session"]),
            pid=child.pid,
            start_ms=(ready_at - child.started_at) * 1000,
            understood=str(transcript["text"]) if transcript else "",
            caller_ended_at=sound["caller_ended_at"],
            transcript_at=transcript["at"] if transcript else None,
            durable_at=durable["at"] if durable else None,
            sound_at=sound["at"],
            killed_at=killed_at,
            code=code,
        )
    finally:
        await child.aclose()


async def _stored(configuration: Configuration, session_id: str) -> list[MemoryEntry]:
    """What the store holds of the caller's words, read by this process after the kill."""
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        sessions = await wiring.open_sessions(configuration.memory, closers)
        entries = await sessions.entries(session_id, limit=50)
    finally:
        while closers:
            await closers.pop()()
    return [entry for entry in entries if entry.role == "user"]


async def _ask(user: str, question: str, story: Story) -> Chat:
    """Type ``question`` into a new process, as the same user."""
    child = await Child.start("chat", "--user", user)
    try:
        story.tell_process("Chat, typed by the same user", child.pid)
        ready = await child.until("ready", START_S_MAX)
        ready_at = time.time()
        await child.write([" ".join(question.split())])
        answer = await child.until("turn", REPLY_S_MAX, role="assistant")
        await child.ended()
        return Chat(
            session=str(ready["session"]),
            pid=child.pid,
            start_ms=(ready_at - child.started_at) * 1000,
            answer=str(answer["text"]),
            block=answer["block"],
            memory_ms=answer["memory_ms"],
            first_text_ms=answer["first_text_ms"],
        )
    finally:
        await child.aclose()
