"""Clients of a LiveKit room for tests: they speak, type, hear and read, as a browser or a phone does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from livekit import rtc
from numpy.typing import NDArray

from agent.local.wav import resample
from tests.support.livekit_server import LiveKitServer

Samples = NDArray[np.int16]

RATE = 24_000
PHONE_RATE = 8_000
WAIT_S = 30.0  # a bound for a busy machine; nothing takes so long when it works
LOUD = 300  # of 32768, root mean square of a frame
QUIET_S = 0.8  # of silence are the end of what somebody says

_FRAME_S = 0.02
_QUEUE_MS = 60
_CHAT, _TRANSCRIPTION = "lk.chat", "lk.transcription"


@dataclass(frozen=True, slots=True)
class Line:
    """A transcript: who spoke, and what. ``at`` is ``time.monotonic()`` of its end."""

    identity: str
    text: str
    at: float


class RoomClient:
    """One participant of one room. Times are ``time.monotonic()``. Close with ``aclose``."""

    def __init__(self, identity: str, *, rate: int = RATE) -> None:
        self.identity = identity
        self.room = rtc.Room()
        self.lines: list[Line] = []
        self.joined: list[tuple[str, float]] = []  # agents that came
        self.left: list[tuple[str, float]] = []  # agents that left
        self.loud: list[float] = []  # when each frame of an agent's voice was heard that isn't silence
        self.connected_at = 0.0
        self.spoken_at = 0.0  # when the last sound of what this client said was played
        self._rate = rate
        self._source: rtc.AudioSource | None = None
        self._saying: asyncio.Queue[Samples] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._happened = asyncio.Event()

    # -- coming and going

    async def connect(self, server: LiveKitServer, room: str, *, microphone: bool = True, **token: Any) -> RoomClient:
        """Join; see ``LiveKitServer.token`` for what a token may hold."""
        self.room.on("participant_connected", self._on_joined)
        self.room.on("participant_disconnected", self._on_left)
        self.room.on("track_subscribed", self._on_track)
        self.room.register_text_stream_handler(_TRANSCRIPTION, self._on_transcription)
        await self.room.connect(server.url, server.token(self.identity, room, **token))
        self.connected_at = time.monotonic()
        for each in self.room.remote_participants.values():
            self._on_joined(each)
        if microphone:
            await self._open_microphone()
        return self

    async def aclose(self) -> None:
        """Leave as a client does that means to. Idempotent."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(5):
                await self.room.disconnect()

    async def _open_microphone(self) -> None:
        self._source = rtc.AudioSource(self._rate, 1, queue_size_ms=_QUEUE_MS)
        track = rtc.LocalAudioTrack.create_audio_track("microphone", self._source)
        options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
        await self.room.local_participant.publish_track(track, options)
        self._later(self._play(self._source))

    # -- speaking and typing

    async def say(self, samples: Samples) -> None:
        """Speak ``samples`` (at ``RATE``) in real time; returns when the last of them was played."""
        at = self.spoken_at
        await self._saying.put(_at_rate(samples, self._rate))
        await self._until(lambda: self.spoken_at != at, "the end of what is said", len(samples) / RATE + WAIT_S)

    async def type(self, text: str) -> None:
        await self.room.local_participant.send_text(text, topic=_CHAT)

    async def _play(self, source: rtc.AudioSource) -> None:
        size = int(self._rate * _FRAME_S)
        silence = np.zeros(size, np.int16)
        while True:
            if self._saying.empty():
                await source.capture_frame(_frame(silence, self._rate))
                continue
            samples = self._saying.get_nowait()
            for begin in range(0, len(samples), size):
                piece = samples[begin : begin + size]
                await source.capture_frame(_frame(np.pad(piece, (0, size - len(piece))), self._rate))
            self.spoken_at = time.monotonic() + source.queued_duration - _trailing_silence_s(samples, self._rate)
            self._happened.set()

    # -- hearing and reading

    def said_by_agent(self) -> list[str]:
        return [line.text for line in self.lines if line.identity != self.identity]

    def understood(self) -> list[str]:
        """What the agent took this client to have said."""
        return [line.text for line in self.lines if line.identity == self.identity]

    async def agent(self, *, but: str | None = None) -> str:
        """The identity of an agent that is in the room, another one than ``but``; waits for it."""

        def there() -> list[str]:
            gone = {identity for identity, _ in self.left}
            return [identity for identity, _ in self.joined if identity not in gone and identity != but]

        await self._until(there, "an agent")
        return there()[0]

    async def agent_that_came(self) -> str:
        """The identity of the first agent that came, whether or not it is still there; waits for it."""
        await self._until(lambda: self.joined, "an agent")
        return self.joined[0][0]

    async def until_left(self, agent: str, *, within_s: float = WAIT_S) -> None:
        """Wait until an agent has left the room."""
        await self._until(lambda: agent in [identity for identity, _ in self.left], "an agent's leaving", within_s)

    async def reads(self, *words: str, after: int = 0) -> Line:
        """The agent's first line, not counting ``after`` of them, that has all ``words``; waits for it."""

        def found() -> list[Line]:
            lines = [line for line in self.lines if line.identity != self.identity][after:]
            return [line for line in lines if all(word.lower() in line.text.lower() for word in words)]

        await self._until(found, f"a line of the agent with {', '.join(words) or 'anything'}")
        return found()[0]

    async def hears(self, *, since: float) -> float:
        """When the agent's voice was first heard after ``since``; waits for it."""
        await self._until(lambda: self._first_loud(since) is not None, "the agent's voice")
        at = self._first_loud(since)
        assert at is not None
        return at

    async def hears_end(self, *, since: float) -> float:
        """When the agent fell silent; waits until it has."""
        await self.hears(since=since)
        await self._until(lambda: time.monotonic() - self.loud[-1] > QUIET_S, "the end of the agent's voice")
        return self.loud[-1]

    def _first_loud(self, since: float) -> float | None:
        return next((at for at in self.loud if at > since), None)

    def _on_joined(self, participant: rtc.RemoteParticipant) -> None:
        if participant.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT:
            self.joined.append((participant.identity, time.monotonic()))
            self._happened.set()

    def _on_left(self, participant: rtc.RemoteParticipant) -> None:
        if participant.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT:
            self.left.append((participant.identity, time.monotonic()))
            self._happened.set()

    def _on_track(self, track: rtc.Track, _: rtc.RemoteTrackPublication, participant: rtc.RemoteParticipant) -> None:
        is_voice = track.kind == rtc.TrackKind.KIND_AUDIO
        if is_voice and participant.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT:
            self._later(self._hear(track))

    async def _hear(self, track: rtc.Track) -> None:
        stream = rtc.AudioStream.from_track(track=track, sample_rate=RATE, num_channels=1)
        try:
            async for event in stream:
                samples = np.frombuffer(event.frame.data, np.int16).astype(np.float32)
                if len(samples) and float(np.sqrt(np.mean(samples**2))) > LOUD:
                    self.loud.append(time.monotonic())
                    self._happened.set()
        finally:
            await stream.aclose()

    def _on_transcription(self, reader: rtc.TextStreamReader, identity: str) -> None:
        self._later(self._read(reader, identity))

    async def _read(self, reader: rtc.TextStreamReader, identity: str) -> None:
        text = await reader.read_all()
        attributes = reader.info.attributes or {}
        # What the user says comes as it is guessed, then as it is final; what the agent says comes once.
        if identity == self.identity and attributes.get("lk.transcription_final") != "true":
            return
        self.lines.append(Line(identity, text.strip(), time.monotonic()))
        self._happened.set()

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until(self, condition: Callable[[], object], what: str, within_s: float = WAIT_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self._happened.clear()
                    # What is waited for may also be that nothing happens any more.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.1):
                            await self._happened.wait()
        except TimeoutError:
            told = f"read {self.said_by_agent()}, understood {self.understood()}"
            raise AssertionError(f"{self.identity} waited in vain for {what}; {told}") from None


@contextlib.asynccontextmanager
async def in_room(server: LiveKitServer, room: str, identity: str, **options: Any) -> AsyncIterator[RoomClient]:
    """A client that speaks and types, for as long as the block runs."""
    client = RoomClient(identity)
    try:
        yield await client.connect(server, room, **options)
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def on_the_phone(
    server: LiveKitServer, room: str, number: str, *, call_id: str = "SCL_test", **attributes: str
) -> AsyncIterator[RoomClient]:
    """A caller as livekit-sip puts one into a room: kind SIP, its attributes, narrow-band sound. ``attributes``: other
    ones, or other values; underscores stand for dots."""
    client = RoomClient(f"sip_{number}", rate=PHONE_RATE)
    found = {
        "sip.phoneNumber": number,
        "sip.callID": call_id,
        "sip.ruleID": "SDR_test",
        "sip.trunkPhoneNumber": "+15105550100",
        "sip.callStatus": "active",
        **{name.replace("_", "."): value for name, value in attributes.items()},
    }
    try:
        yield await client.connect(
            server, room, kind="sip", attributes={name: value for name, value in found.items() if value}
        )
    finally:
        await client.aclose()


def g711(samples: Samples) -> Samples:
    """``samples`` at ``PHONE_RATE`` as they come out of a telephone line: mu-law (ITU-T G.711) and back."""
    linear = np.clip(samples.astype(np.float64) / 32768, -1, 1)
    coded = np.sign(linear) * np.log1p(255 * np.abs(linear)) / np.log1p(255)
    steps = np.round((coded + 1) * 127.5) / 127.5 - 1
    restored: Samples = (np.sign(steps) * np.expm1(np.abs(steps) * np.log1p(255)) / 255 * 32767).astype(np.int16)
    return restored


def _at_rate(samples: Samples, rate: int) -> Samples:
    if rate == RATE:
        return samples
    narrow = resample(samples.astype(np.float32) / np.float32(32768), RATE, rate)
    return g711((np.clip(narrow, -1, 1) * 32767).astype(np.int16))


def _trailing_silence_s(samples: Samples, rate: int) -> float:
    audible = np.flatnonzero(np.abs(samples.astype(np.int32)) > LOUD)
    return (len(samples) - 1 - int(audible[-1])) / rate if len(audible) else 0.0


def _frame(samples: Samples, rate: int) -> rtc.AudioFrame:
    return rtc.AudioFrame(samples.tobytes(), rate, 1, len(samples))
