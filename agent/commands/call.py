"""``python -m agent call``: a recording as the caller's side of a spoken call, in real time.

The recording begins when the greeting is over, and the call ends with the agent's last reply.
Above: cli, demo (as a process). Below: calls, conversation, agent.local.audio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from agent.commands.calls import CallTeller
from agent.commands.conversation import (
    Conversation,
    Ends,
    check_data_dir,
    configured,
    conversation,
    notice,
    open_models,
)
from agent.commands.output import Output
from agent.commands.process import run_async
from agent.local.audio import (
    BadRecording,
    Recording,
    RecordingSpeaker,
    WavMicrophone,
    read_wav,
    write_call_recording,
)
from agent.local.wav import resampler
from agent.models import announcement, check_speech, describe
from agent.settings import Configuration
from memory.errors import VoiceMemoryError

GREETING_S_MAX = 15.0
LAST_REPLY_S_MAX = 60.0
WRITE_S_MAX = 10.0


class UnusableRecording(VoiceMemoryError, ValueError):
    """The recording can't be played, or the call's can't be written: the message says why and what to do."""


def run(arguments: argparse.Namespace) -> int:
    """Make the call; 1 if nothing was understood."""
    configuration = configured(arguments)
    check_speech(configuration.agent)
    try:
        recording = read_wav(arguments.recording)
        if arguments.out:
            resampler()
            _check_writable(Path(arguments.out), recording=Path(arguments.recording))
    except BadRecording as error:
        raise UnusableRecording(str(error)) from None
    check_data_dir(configuration, voice=True)
    output = Output()
    return run_async(lambda: call(arguments, configuration, recording, output), output)


def _check_writable(path: Path, *, recording: Path) -> None:
    # Before the call, not after: what can't be written then is lost.
    directory = path.parent
    if path.exists() and path.samefile(recording):
        raise BadRecording(f"--out {path} is the recording itself, and would replace it. Give another path.")
    if path.is_dir():
        raise BadRecording(f"{path} is a directory. Give a file's name.")
    if not directory.is_dir():
        raise BadRecording(f"There is no directory {directory}. Make it, or give another path.")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise BadRecording(f"{directory} can't be written by this user. Give a path in another directory.")


async def call(
    arguments: argparse.Namespace, configuration: Configuration, recording: Recording, output: Output
) -> int:
    """Hold the call and write its recording, also when it is ended early; the exit code."""
    started_s = time.monotonic()
    models = open_models(configuration, voice=True)
    telling = CallTeller(output, configuration.agent, as_json=arguments.json)
    microphone, speaker = WavMicrophone(), RecordingSpeaker(on_audible=telling.on_audible)
    notice(f"{announcement(configuration.agent, voice=True)}; user: {arguments.user}")
    try:
        await models.ready()
        async with conversation(
            configuration,
            models,
            Ends(microphone, speaker, listen=telling.listen),
            user_id=arguments.user,
            channel="call",
        ) as talk:
            telling.ready(talk, (time.monotonic() - started_s) * 1000, describe(configuration.agent, voice=True))
            await _hold(talk, telling, microphone, recording, greeted=configuration.agent.greets)
    finally:
        speaker.close()
        if arguments.out:
            await _write(Path(arguments.out), microphone, speaker)
    return telling.end(arguments.out)


async def _hold(
    talk: Conversation, telling: CallTeller, microphone: WavMicrophone, recording: Recording, *, greeted: bool
) -> None:
    if greeted:
        await _at_most(GREETING_S_MAX, telling.answered.wait())
    # A caller of flesh and blood would take the time that a first start of the memory takes; a recording doesn't.
    await talk.warm()
    telling.playing = microphone.play(recording.samples)
    if not await _at_most(recording.duration_s + GREETING_S_MAX, _either(telling.playing.finished, telling.closed)):
        notice("The recording could not be played in real time: the machine is overloaded.")
    if not await _at_most(LAST_REPLY_S_MAX, telling.settled()):
        notice(f"The agent was still talking {LAST_REPLY_S_MAX:g} s after the recording: cut off.")


async def _at_most(seconds: float, wait: Coroutine[Any, Any, object]) -> bool:
    """Wait, for at most ``seconds``; whether it came to be."""
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        return False
    return True


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def _write(path: Path, microphone: WavMicrophone, speaker: RecordingSpeaker) -> None:
    writing = asyncio.to_thread(write_call_recording, path, microphone, speaker)
    try:
        async with asyncio.timeout(WRITE_S_MAX):
            await writing
    except BadRecording as error:
        raise UnusableRecording(str(error)) from None
    except TimeoutError:
        raise UnusableRecording(f"{path} could not be written within {WRITE_S_MAX:g} s. Use a local disk.") from None
