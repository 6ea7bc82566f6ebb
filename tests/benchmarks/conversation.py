"""A process of ``turns``: two sessions with the same scripted models, one with memory and one without, turn about.

The LLM's first token comes 300 ms after it was asked. Prints one JSON object. ``--plain``: the session without memory
alone, for what a process costs without it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
from livekit.agents import Agent, AgentSession, llm, stt

from memory.plugin import attach
from memory.settings import load_settings
from tests.benchmarks.harness import percentile
from tests.support.scripted_llm import ScriptedLLM
from tests.support.voice import ManualOutput, ScriptedSTT, SilentMicrophone, WordTTS, eventually

USER = "bench-user"
_LLM_S = 0.3
_PAUSE_S = 0.2  # between the last interim and the end of speech: what a speaker leaves
_QUESTIONS = (
    "what did I say about the garden gate",
    "when is my next appointment at the clinic",
    "which parcel came back from Elm Road",
    "do you remember what my sister studies",
    "what should I bring for the picnic on Sunday",
)


class TimedLLM(ScriptedLLM):
    """Answers 300 ms after it was asked, and notes when the first token left."""

    def __init__(self) -> None:
        super().__init__(("Certainly, I have noted that for you.",))
        self.first_token_at: list[float] = []

    def take(self, chat_ctx: llm.ChatContext, tools: Any) -> Any:
        self.hold = asyncio.Event()
        asyncio.get_running_loop().call_later(_LLM_S, self._release, self.hold)
        return super().take(chat_ctx, tools)

    def _release(self, hold: asyncio.Event) -> None:
        self.first_token_at.append(time.perf_counter())
        hold.set()


class InterimSTT(ScriptedSTT):
    """Hears one interim at a time."""

    async def turn_interim(self, text: str) -> None:
        await self.send(stt.SpeechEventType.INTERIM_TRANSCRIPT, text)


@dataclass
class Side:
    """One session and its times in milliseconds, by kind of turn."""

    session: AgentSession[Any]
    stt: InterimSTT
    llm: TimedLLM
    output: ManualOutput
    times: dict[str, list[float]] = field(default_factory=dict)

    async def spoken(self, question: str, *, interims: bool) -> None:
        if interims:
            words = question.split()
            for count in (*range(2, len(words), 2), len(words)):
                await self.stt.turn_interim(" ".join(words[:count]))
            await asyncio.sleep(_PAUSE_S)
        await self._timed("spoken_interims" if interims else "spoken", self.stt.turn(question, preflight=False))

    async def typed(self, question: str) -> None:
        await self._timed("typed", self._type(question))

    async def _type(self, question: str) -> None:
        self.session.generate_reply(user_input=question)

    async def _timed(self, kind: str, asking: Any) -> None:
        known, played = len(self.llm.first_token_at), len(self.output.played)
        begun = time.perf_counter()
        await asking
        await eventually(lambda: len(self.llm.first_token_at) > known, "the first token")
        self.times.setdefault(kind, []).append((self.llm.first_token_at[known] - begun) * 1e3)
        await eventually(lambda: len(self.output.played) > played, "the reply")
        await eventually(lambda: self.session.current_speech is None, "silence")


async def side() -> tuple[Side, Agent]:
    recognizer, thinker, output = InterimSTT(), TimedLLM(), ManualOutput(instant=True)
    session: AgentSession[Any] = AgentSession(
        stt=recognizer,
        llm=thinker,
        tts=WordTTS(),
        turn_handling={
            "turn_detection": "stt",
            "endpointing": {"min_delay": 0.0, "max_delay": 0.0},
            "preemptive_generation": {"enabled": True},
        },
        user_away_timeout=None,
        aec_warmup_duration=None,
    )
    session.input.audio, session.output.audio = SilentMicrophone(), output
    return Side(session, recognizer, thinker, output), Agent(instructions="Answer briefly.")


async def main(turns: int, *, plain: bool) -> None:
    sides = []
    for with_memory in (False,) if plain else (False, True):
        one, agent = await side()
        if with_memory:
            memory = attach(one.session, agent, user_id=USER, settings=load_settings())
        await one.session.start(agent)
        sides.append(one)
    if not plain:
        async with asyncio.timeout(60):
            await memory.identified()
            await memory.flush(30)
    for number in range(turns):
        question = _QUESTIONS[number % len(_QUESTIONS)]
        for one in sides:
            await one.spoken(question, interims=False)
            await one.spoken(question, interims=True)
            await one.typed(question)
    times = [{kind: list(found) for kind, found in one.times.items()} for one in sides]
    stalls = await stalls_ms(sides[-1], turns)
    gc.collect()
    report: dict[str, Any] = {
        "rss_mb": psutil.Process().memory_info().rss / 1e6,
        "stall_p99_ms": percentile(stalls, 0.99),
        "times": times,
    }
    if not plain:
        report["counters"] = memory.counters.snapshot()
    for one in sides:
        await one.session.aclose()
    sys.stdout.write(json.dumps(report) + "\n")


async def stalls_ms(one: Side, turns: int) -> list[float]:
    """How late a 2 ms timer fires while ``one`` talks: every overrun, in milliseconds."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.002)
            late.append((time.perf_counter() - begun) * 1e3 - 2)

    watching = asyncio.create_task(watch())
    for number in range(turns):
        await one.spoken(_QUESTIONS[number % len(_QUESTIONS)], interims=True)
    watching.cancel()
    return late


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), plain="--plain" in sys.argv))
