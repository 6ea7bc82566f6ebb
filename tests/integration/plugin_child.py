"""A call that kills itself with SIGKILL at the first audio frame of its nth reply.

Run as ``python -m tests.integration.plugin_child N`` with ``VOICEASSIST_DATA_DIR`` set. Turns are spoken and typed in
turn; stores, recorder and session are the real ones, models and audio output are scripted. With ``away`` behind ``N``
the stores are away, and not waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from livekit.agents import Agent

from memory.plugin import attach
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import ManualOutput, ScriptedSTT, SilentMicrophone, eventually

SESSION_ID = "RM_killed"
USER_ID = "ana"


def turn_text(number: int) -> str:
    return f"this is what I say in turn {number}"


async def talk(last: int, *, away: bool = False) -> None:
    def at_first_frame(finished: int) -> None:
        if finished == last:  # the greeting was the first
            os.kill(os.getpid(), signal.SIGKILL)

    output = ManualOutput(instant=True)
    hearing = ScriptedSTT()
    session, agent = new_session(ScriptedLLM(), stt=hearing), Agent(instructions=INSTRUCTIONS)
    session.input.audio, session.output.audio = SilentMicrophone(), output
    memory = attach(session, agent, user_id=USER_ID, session_id=SESSION_ID, assurance="anonymous")
    await session.start(agent, record=False)
    await session.say("Welcome.")
    if not away and not await memory.flush(60):
        sys.exit("the stores did not open")
    output.on_first_frame = at_first_frame

    def replied(number: int) -> Callable[[], bool]:
        return lambda: len(output.played) > number and session.agent_state == "listening"

    for number in range(1, last + 1):
        if number % 2:
            await hearing.turn(turn_text(number))
            await eventually(replied(number))
        else:
            await session.run(user_input=turn_text(number))
    sys.exit("was not killed")


if __name__ == "__main__":
    asyncio.run(talk(int(sys.argv[1]), away="away" in sys.argv[2:]))
