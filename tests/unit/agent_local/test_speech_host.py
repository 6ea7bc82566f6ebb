"""The speech host's serving side and its client, over a real socket in one process, with models of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent.local import wire
from agent.local.alignment import Word
from agent.local.client import ATTEMPTS_MAX, CONNECTIONS_MAX, SpeechBusy, SpeechClient
from agent.local.models import Speech, Transcript
from agent.local.speech_host import Lane, Refused, SpeechServer, run, spec
from memory.errors import HostUnavailable
from memory.hosting import HostRole, serving


class Ears:
    """Hears the first sample as a number; waits for ``open`` when it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)
        self.heard = 0

    def transcribe(self, audio: NDArray[np.float32]) -> Transcript:
        self.begun.release()
        assert self.open.wait(10)
        self.heard += 1
        first = round(float(audio[0]) * 32768)
        if first < 0:
            raise ValueError("user content")
        return Transcript(str(first), 0.5)


class Mouth:
    """Speaks a word at a time; the audio is the word's length in samples."""

    def __init__(self) -> None:
        self.spoken: list[str] = []

    def pieces(self, text: str) -> list[str]:
        words = text.split(" ")
        return [word + " " for word in words[:-1]] + [word for word in words[-1:] if word]

    def speak(self, piece: str) -> Speech:
        self.spoken.append(piece)
        return Speech(b"\1\0" * len(piece), (Word(piece, 0.0, 0.5),))


class Host:
    """A host in this process: what it serves, and a client of it."""

    def __init__(self, data_dir: Path) -> None:
        self.spec = spec(data_dir)
        self.ears, self.mouth = Ears(), Mouth()
        self.server = SpeechServer(self.ears, self.mouth)
        self.client = SpeechClient(data_dir)
        self.connections = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self.server.connection(reader, writer)


@pytest.fixture
async def host(data_dir: Path) -> AsyncIterator[Host]:
    host = Host(data_dir)
    async with serving(host.spec, host.connection):
        yield host
        host.ears.open.set()
        await host.client.aclose()
    host.server.close()


def _audio(number: int) -> NDArray[np.int16]:
    return np.full(1600, number, np.int16)


async def _begun(ears: Ears) -> None:
    assert await asyncio.to_thread(ears.begun.acquire, True, 5)


async def test_listening_and_talking(host: Host) -> None:
    assert await host.client.listen(_audio(7)) == Transcript("7", 0.5)
    spoken = [speech async for speech in host.client.talk("one two")]
    assert [speech.words for speech in spoken] == [(Word("one ", 0.0, 0.5),), (Word("two", 0.0, 0.5),)]
    assert [len(speech.pcm) for speech in spoken] == [8, 6]
    state = await host.client.state()
    assert (state["listened"], state["refused"]) == (1, 0)
    assert [speech async for speech in host.client.talk("")] == []


async def test_one_connection_serves_calls_one_after_the_other(host: Host) -> None:
    await host.client.listen(_audio(1))
    before = host.connections
    for number in range(20):
        assert (await host.client.listen(_audio(number))).text == str(number)
    assert host.connections == before


async def test_a_cancelled_call_never_gives_its_answer_to_another(host: Host) -> None:
    host.ears.open.clear()
    cancelled = asyncio.create_task(host.client.listen(_audio(1)))
    await _begun(host.ears)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    host.ears.open.set()
    assert (await host.client.listen(_audio(2))).text == "2"


async def test_a_call_that_nobody_waits_for_leaves_the_queue(host: Host) -> None:
    host.ears.open.clear()
    first = asyncio.create_task(host.client.listen(_audio(1)))
    await _begun(host.ears)
    waiting = asyncio.create_task(host.client.listen(_audio(2)))
    async with asyncio.timeout(5):
        while host.connections < 4:  # each call looks whether the host answers, and connects
            await asyncio.sleep(0.001)
    await host.client.state()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await host.client.state()
    host.ears.open.set()
    assert (await first).text == "1"
    assert (await host.client.listen(_audio(3))).text == "3"
    assert host.ears.heard == 2


async def test_leaving_a_reply_early_drops_its_connection(host: Host) -> None:
    async with contextlib.aclosing(host.client.talk("one two three four")) as talking:
        assert (await anext(talking)).words[0].text == "one "
    assert [speech.words[0].text async for speech in host.client.talk("five")] == ["five"]


async def test_an_optional_call_is_refused_when_no_thread_is_free(host: Host) -> None:
    host.ears.open.clear()
    first = asyncio.create_task(host.client.listen(_audio(1)))
    await _begun(host.ears)
    with pytest.raises(SpeechBusy):
        await host.client.listen(_audio(2), optional=True)
    host.ears.open.set()
    assert (await first).text == "1"


async def test_no_answer_in_time_is_an_error(host: Host) -> None:
    host.ears.open.clear()
    with pytest.raises(HostUnavailable, match=r"within 0\.05 s"):
        await host.client.listen(_audio(1), timeout_s=0.05)


async def test_a_request_the_models_choke_on_ends_nothing_and_tells_nothing(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HostUnavailable, match="could not serve"):
        await host.client.listen(_audio(-1))
    assert (await host.client.listen(_audio(4))).text == "4"
    printed = capfd.readouterr().err
    assert "ValueError" in printed
    assert "user content" not in printed


async def test_calls_wait_for_a_free_connection(host: Host) -> None:
    count = 3 * CONNECTIONS_MAX
    heard = await asyncio.gather(*(host.client.listen(_audio(number)) for number in range(count)))
    assert [transcript.text for transcript in heard] == [str(number) for number in range(count)]
    assert host.connections <= 2 * CONNECTIONS_MAX  # each new one is preceded by a look whether anybody answers


async def test_a_closed_client_says_so(host: Host) -> None:
    await host.client.aclose()
    with pytest.raises(HostUnavailable, match="closed"):
        await host.client.listen(_audio(1))


@pytest.mark.parametrize(
    "header",
    [
        {"op": "sing"},
        {},
        {"op": "talk"},
        {"op": "talk", "text": 7},
        {"op": "listen", "timeout_s": -1},
        {"op": "listen", "timeout_s": True},
        {"op": "listen", "timeout_s": "soon"},
    ],
)
async def test_a_wrong_request_is_refused_and_the_connection_lives(host: Host, header: dict[str, object]) -> None:
    reader, writer = await asyncio.open_unix_connection(str(host.spec.socket))
    async with asyncio.timeout(5):
        await wire.write(writer, wire.Message(header))
        assert (await wire.read(reader)).header == {"error": "bad"}
        await wire.write(writer, wire.Message({"op": "listen"}, b"odd"))
        assert (await wire.read(reader)).header == {"error": "bad"}
        await wire.write(writer, wire.Message({"op": "state"}))
        assert "pid" in (await wire.read(reader)).header
    writer.close()


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\0\0\0{{", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_another_protocol_ends_that_connection_only(host: Host, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(host.spec.socket))
    writer.write(data)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert (await host.client.listen(_audio(1))).text == "1"


@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=20), st.booleans(), st.integers())),
    st.binary(max_size=50),
)
async def test_messages_arrive_as_they_were_sent(header: dict[str, object], body: bytes) -> None:
    reader = asyncio.StreamReader()

    class Writer:
        def write(self, data: bytes) -> None:
            reader.feed_data(data)

        async def drain(self) -> None:
            return None

    message = wire.Message(header, body)
    await wire.write(Writer(), message)  # type: ignore[arg-type] # only these two are used
    assert await wire.read(reader) == message


async def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(wire.BadMessage):
        await wire.write(None, wire.Message({}, bytes(wire.BODY_BYTES_MAX + 1)))  # type: ignore[arg-type]


async def test_a_reply_goes_on_where_the_host_died(data_dir: Path) -> None:
    host = Host(data_dir)
    broken: list[int] = []

    async def dies_after_one_piece(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await wire.read(reader)
        if len(broken) < ATTEMPTS_MAX - 1:
            broken.append(1)
            piece = host.mouth.pieces(request.header["text"])[0]
            words = host.mouth.speak(piece).words
            await wire.write(writer, wire.Message({"more": True, "words": words}, b"\1\0"))
            return
        await host.server._answer(request, reader, writer)

    async with serving(host.spec, dies_after_one_piece):
        spoken = [speech.words[0].text async for speech in host.client.talk("one two three four")]
        await host.client.aclose()
    host.server.close()
    assert spoken == ["one ", "two ", "three ", "four"]
    assert host.mouth.spoken == spoken


async def test_a_host_that_dies_again_and_again_is_given_up(data_dir: Path) -> None:
    tried: list[int] = []

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read(reader)
        tried.append(1)

    client = SpeechClient(data_dir)
    async with serving(spec(data_dir), dies):
        with pytest.raises(HostUnavailable, match=f"{ATTEMPTS_MAX} times"):
            await client.listen(_audio(1))
        await client.aclose()
    assert len(tried) == ATTEMPTS_MAX


async def test_a_lane_bounds_its_queue_and_skips_what_is_late() -> None:
    lane = Lane("test", threads=1, queue_max=1)
    gate = threading.Event()
    begun = threading.Event()

    def work() -> str:
        begun.set()
        assert gate.wait(10)
        return "done"

    first = asyncio.create_task(lane.run(work, timeout_s=5))
    assert await asyncio.to_thread(begun.wait, 5)
    late = asyncio.create_task(lane.run(lambda: "never", timeout_s=1e-9))
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="busy"):
        await lane.run(lambda: "never", timeout_s=5)
    gate.set()
    assert await first == "done"
    with pytest.raises(Refused, match="late"):
        await late
    assert await lane.run(lambda: "again", timeout_s=5) == "again"
    assert (lane.done, lane.refused) == (2, 1)
    lane.close()


async def test_a_kept_thread_takes_at_once_what_somebody_waits_for() -> None:
    lane = Lane("test", threads=2, kept=1)
    gate, begun = threading.Event(), threading.Event()

    def interim() -> bool:
        begun.set()
        return gate.wait(10)

    running = asyncio.create_task(lane.run(interim, timeout_s=5, optional=True))
    assert await asyncio.to_thread(begun.wait, 5)
    with pytest.raises(Refused, match="busy"):
        await lane.run(lambda: "another interim", timeout_s=5, optional=True)
    assert await lane.run(lambda: "final", timeout_s=5) == "final"
    gate.set()
    assert await running
    lane.close()


def test_a_second_host_of_a_data_directory_leaves_at_once(data_dir: Path) -> None:
    role = HostRole(spec(data_dir), idle_s=0)
    assert role.try_take()
    try:
        assert run(data_dir, idle_s=0) == 0
    finally:
        role.release()


def test_a_host_without_its_packages_says_what_to_install(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib

    def fail(_: str) -> None:
        raise ImportError("No module named 'faster_whisper'")

    monkeypatch.setattr(importlib, "import_module", fail)
    assert run(data_dir, idle_s=0) == 1
    assert "pip install" in capsys.readouterr().err
