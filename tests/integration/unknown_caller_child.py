"""A phone call whose caller isn't known yet, and that kills itself at the first audio frame of its nth reply.

Run as ``python -m tests.integration.unknown_caller_child N [NUMBER]`` with ``REDIS_URL`` and ``VOICEASSIST_DATA_DIR``
set. The number is what the server tells of the caller, late or, without one, never. With a number the call isn't
killed: it ends after the nth reply.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from livekit import rtc
from livekit.agents import Agent

from memory.plugin import attach, caller
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import ManualOutput, SilentMicrophone

ROOM, PARTICIPANT = "RM_unknown", "PA_1"


def turn_text(number: int) -> str:
    return f"this is what I say in turn {number}"


def job(number: str) -> Any:
    """As much of a job as is looked at: its room, and who is in it."""
    attributes = {"sip.phoneNumber": number} if number else {}
    phone = SimpleNamespace(
        identity="sip_unknown", kind=rtc.ParticipantKind.PARTICIPANT_KIND_SIP, attributes=attributes, sid=PARTICIPANT
    )

    async def wait_for_participant() -> Any:
        return phone

    return SimpleNamespace(
        job=SimpleNamespace(id=f"AJ_{os.getpid()}", metadata="", room=SimpleNamespace(sid=ROOM)),
        is_fake_job=lambda: False,
        wait_for_participant=wait_for_participant,
        add_shutdown_callback=lambda _: None,
    )


async def talk(last: int, number: str) -> None:
    caller.SIP_ATTRIBUTES_S = 3_600.0 if not number else 2.0

    def at_first_frame(finished: int) -> None:
        if finished == last - 1 and not number:
            os.kill(os.getpid(), signal.SIGKILL)

    output = ManualOutput(instant=True)
    output.on_first_frame = at_first_frame
    session, agent = new_session(ScriptedLLM()), Agent(instructions=INSTRUCTIONS)
    session.input.audio, session.output.audio = SilentMicrophone(), output
    memory = attach(session, agent, job(number))
    await session.start(agent, record=False)
    for turn in range(1, last + 1):
        await session.run(user_input=turn_text(turn) if not number else f"said later, {turn}")
    if not number or not await memory.flush(60):
        sys.exit("was not killed, or not stored")
    await session.aclose()
    await memory.aclose()


if __name__ == "__main__":
    asyncio.run(talk(int(sys.argv[1]), "".join(sys.argv[2:])))
