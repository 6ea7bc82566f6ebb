"""A client as a process of its own, for tests that kill it: ``python -m tests.support.room_caller URL TOKEN TEXT``.

It joins, types TEXT, prints ``answered`` when the agent has answered, and stays.
"""

from __future__ import annotations

import asyncio
import sys

from livekit import rtc


async def main(url: str, token: str, text: str) -> None:
    room = rtc.Room()
    agent_is_there, answered = asyncio.Event(), asyncio.Event()

    def on_transcription(reader: rtc.TextStreamReader, identity: str) -> None:
        async def read() -> None:
            said = await reader.read_all()
            if text.rstrip(".").lower() in said.lower():
                answered.set()

        tasks.add(asyncio.create_task(read()))

    tasks: set[asyncio.Task[None]] = set()
    room.register_text_stream_handler("lk.transcription", on_transcription)
    room.on("participant_connected", lambda _: agent_is_there.set())
    await room.connect(url, token)
    if room.remote_participants:
        agent_is_there.set()
    await agent_is_there.wait()
    await room.local_participant.send_text(text, topic="lk.chat")
    await answered.wait()
    sys.stdout.write("answered\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
