"""How many sentences are answered before they are over, because their speaker paused within: local models, real server.

Each is said in one breath, as the local talker says it, and cut open where people pause: before what they have to
think of, between groups of digits, between two halves of a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tests.benchmarks import rooms
from tests.benchmarks.harness import Figure
from tests.benchmarks.tracing import Traces
from tests.support.room_clients import RoomClient, in_room
from tests.support.workers import Samples

PAUSE_S = 0.4
CALLERS = 2  # at once, so that it takes half of the time
_BETWEEN_S = 0.3
SENTENCES = (
    "I would like to … book a table for two.",
    "My number is five five five … one two three.",
    "Could you send the … invoice to my office?",
    "My sister and … her husband live in Lyon.",
    "I am calling about my … order from last week.",
    "The parcel should go to … twelve Baker Street.",
    "I want to fly on Friday … or on Saturday morning.",
    "My name is … Sarah Miller.",
    "We need a room with … a view of the garden.",
    "I have been waiting for … almost three weeks.",
    "When I called last week … nobody could help me.",
    "I moved to York in March … and need to change my address.",
    "The code on the box is four seven … nine two.",
    "I think that … the red one is too big.",
    "Is there a … train that leaves before noon?",
    "I bought milk, bread … and a dozen eggs.",
    "Because of the rain … we stayed at home.",
    "My appointment is on the … third of May.",
    "I would rather have … tea than coffee.",
    "It was delivered yesterday … but the screen is broken.",
)


async def pauses() -> list[Figure]:
    """Each sentence is one turn, or was cut."""
    with rooms.server() as livekit:
        async with (
            rooms.worker(livekit, AGENT_GREETING="off") as (worker, traces),
            contextlib.AsyncExitStack() as calls,
        ):
            speaking = []
            for number in range(CALLERS):
                user = f"halting-{number}"
                client = await calls.enter_async_context(in_room(livekit, user, user))
                job = await traces.until("started", times=number + 1)
                sentences = SENTENCES[number::CALLERS]
                voices = [await worker.paused(text, pause_s=PAUSE_S) for text in sentences]
                speaking.append(said(client, traces, int(job["pid"]), voices))
            found = [turns for half in await asyncio.gather(*speaking) for turns in half]
    cut = [turns for turns in found if len(turns) > 1]
    detail = f"of {len(found)}, with a pause of {PAUSE_S:g} s; cut: " + ("; ".join(map(" | ".join, cut)) or "none")
    return [Figure("sentences_cut_by_a_pause", len(cut), 1, detail=detail)]


async def said(client: RoomClient, traces: Traces, pid: int, voices: Sequence[Samples]) -> list[list[str]]:
    """The turns that each of ``voices`` made of it, said one after the other in the call of job ``pid``."""
    found: list[list[str]] = []
    for voice in voices:
        await asyncio.sleep(_BETWEEN_S)
        begun = len(traces.events)
        await client.say(voice)
        await client.hears_end(since=client.spoken_at)
        mine = [event for event in traces.events[begun:] if event["pid"] == pid and event["event"] == "item"]
        found.append([str(event["text"]) for event in mine if event["role"] == "user"])
    return found
