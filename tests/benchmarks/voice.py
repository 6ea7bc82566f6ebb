"""From the end of what a caller says to the first sound of the answer, in a room: local models, memory, real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks import rooms
from tests.benchmarks.harness import Figure, percentile
from tests.benchmarks.tracing import Event, Traces
from tests.support.room_clients import RoomClient, in_room
from tests.support.workers import WorkerProcess

TURNS = 20
_WARM = 1  # turns that nobody counts: the first of a process loads what the others have
_BETWEEN_S = 0.4
_SAID = (
    "My cat is called Biscuit.",
    "My sister lives in Lyon.",
    "I drive a green car.",
    "My train leaves at noon.",
    "I am allergic to peanuts.",
    "What is my cat called?",
    "Where does my sister live?",
    "Which car do I drive?",
)
PARTS = ("heard", "endpointing", "synthesis", "hand_over", "transport", "stt", "recall", "llm")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, in seconds. ``heard`` to ``transport`` follow each other and add up to ``total``: from the caller's
    last sound until the voice detector dates the end of speech, from there until the turn counts as ended, until the
    first frame of speech is there, until the room has it, until the caller hears it. ``stt`` (end of speech to final
    transcript), ``recall`` and ``llm`` (to the first token, recall included) run beside them."""

    total: float
    heard: float
    endpointing: float
    synthesis: float
    hand_over: float
    transport: float
    stt: float
    recall: float
    llm: float


async def voice_to_voice() -> list[Figure]:
    """Goals of issue 4: p50 0.55 s, p95 0.65 s."""
    with rooms.server() as livekit:
        async with rooms.worker(livekit) as (worker, traces), in_room(livekit, "voice", "ana") as client:
            turns = await conversation(client, worker, traces, TURNS + _WARM)
    counted = turns[_WARM:]
    totals = [turn.total for turn in counted]
    return [
        Figure("voice_to_voice_p50_s", percentile(totals, 0.5), 0.55, unit="s", detail=told(counted, 0.5)),
        Figure("voice_to_voice_p95_s", percentile(totals, 0.95), 0.65, unit="s", detail=told(counted, 0.95)),
    ]


def told(turns: Sequence[Turn], share: float) -> str:
    """The same percentile of each part, in milliseconds."""
    parts = {name: percentile([getattr(turn, name) for turn in turns], share) * 1e3 for name in PARTS}
    return f"{len(turns)} turns; ms: " + ", ".join(f"{name} {value:.0f}" for name, value in parts.items())


async def conversation(client: RoomClient, worker: WorkerProcess, traces: Traces, count: int) -> list[Turn]:
    """``count`` turns, each begun when the answer to the one before has been said."""
    voices = [await worker.voice(text) for text in _SAID]
    await client.agent()
    await client.hears_end(since=client.connected_at)
    greeted = len(traces.of("item"))
    turns = []
    for number in range(count):
        begun = len(traces.events)
        await client.say(voices[number % len(voices)])
        heard_at = await client.hears(since=client.spoken_at)
        await traces.until("item", lambda event: bool(event["role"] == "assistant"), times=greeted + number + 1)
        turns.append(_turn(client.spoken_at, heard_at, traces.events[begun:]))
        await asyncio.sleep(_BETWEEN_S)
    return turns


def _turn(spoken_at: float, heard_at: float, events: Sequence[Event]) -> Turn:
    def first(event: str) -> Event:
        return next(each for each in events if each["event"] == event)

    said = next(each for each in events if each["event"] == "item" and each["role"] == "user")
    reply = next(each for each in events if each["event"] == "item" and each["role"] == "assistant")
    stopped_at = said["metrics"]["stopped_speaking_at"] - (time.time() - time.monotonic())
    synthesized_at, handed_over_at = first("synthesized")["at"], first("handed_over")["at"]
    return Turn(
        total=heard_at - spoken_at,
        heard=stopped_at - spoken_at,
        endpointing=said["at"] - stopped_at,
        synthesis=synthesized_at - said["at"],
        hand_over=handed_over_at - synthesized_at,
        transport=heard_at - handed_over_at,
        stt=said["metrics"].get("transcription_delay", 0.0),
        recall=[each["ms"] for each in events if each["event"] == "recalled"][-1] / 1e3,
        llm=reply["metrics"].get("llm_node_ttft", 0.0),
    )
