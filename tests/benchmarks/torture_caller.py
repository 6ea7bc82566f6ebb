"""One call of the torture: it talks until it is killed, and says on stdout which turns are durable.

Run as ``python -m tests.benchmarks.torture_caller USER SESSION FIRST`` with the product's variables set. The session,
the plugin and every store are the real ones; the models and the audio output are scripted. A line is written at the
first audio frame of each reply, when the turn it answers has to be durable: ``NUMBER [late]``, the latter where the
plugin itself counted that its wait for the turn ran out.
"""

from __future__ import annotations

import asyncio
import sys

from livekit.agents import Agent

from memory.plugin import AttachedMemory, attach
from tests.support.scripted_llm import ScriptedLLM
from tests.support.sessions import INSTRUCTIONS, new_session
from tests.support.voice import ManualOutput, ScriptedSTT, SilentMicrophone, eventually

TURNS_MAX = 900  # of one process: the next one has numbers of its own
_PAUSE_S = 0.05


def said(number: int) -> str:
    """What the caller says in turn ``number``: one fact that no other turn has."""
    return f"My order {number} is late."


class Caller:
    def __init__(self, user: str, session_id: str, first: int) -> None:
        self._output, self._hearing, self._first = ManualOutput(instant=True), ScriptedSTT(), first
        self._session = new_session(ScriptedLLM(), stt=self._hearing)
        self._agent = Agent(instructions=INSTRUCTIONS)
        self._session.input.audio, self._session.output.audio = SilentMicrophone(), self._output
        self._memory: AttachedMemory = attach(
            self._session, self._agent, user_id=user, session_id=session_id, assurance="signed"
        )
        self._late = 0

    async def talk(self) -> None:
        await self._session.start(self._agent, record=False)
        await self._session.say("Welcome.")
        self._output.on_first_frame = self._first_frame
        for number in range(self._first, self._first + TURNS_MAX):
            replies = len(self._output.played)
            if number % 2:
                await self._hearing.turn(said(number))
                await eventually(lambda replies=replies: self._is_over(replies), "a reply")  # type: ignore[misc]
            else:
                await self._session.run(user_input=said(number))
            await asyncio.sleep(_PAUSE_S)  # a caller's breath: the machine is other processes', too

    def _is_over(self, replies: int) -> bool:
        return len(self._output.played) > replies and self._session.agent_state == "listening"

    def _first_frame(self, finished: int) -> None:
        late = self._memory.counters["record.late"]
        mark = " late" if late > self._late else ""
        self._late = late
        print(f"{self._first + finished - 1}{mark}", flush=True)  # noqa: T201 - it is the answer


async def main(user: str, session_id: str, first: int) -> None:
    await Caller(user, session_id, first).talk()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
