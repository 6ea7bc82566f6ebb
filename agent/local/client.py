"""The way to the speech host: async calls with deadlines, over a few pooled connections, for one event loop.

The host is started when it is away, and again when it dies under a call; what had been spoken by then is not
spoken twice. Above: stt, tts. Below: wire, memory.hosting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.local import wire
from agent.local.alignment import Word
from agent.local.models import Speech, Transcript, check_installed
from agent.local.speech_host import TIMEOUT_S_MAX, spec
from memory.errors import HostUnavailable
from memory.hosting import HostSpec, HostUse
from memory.limits import HOST_START_S

CONNECTIONS_MAX = 8
ATTEMPTS_MAX = 3
LISTEN_TIMEOUT_S = 10.0
TALK_TIMEOUT_S = 30.0

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SpeechService(Protocol):
    """Speech to text and text to speech; see ``SpeechClient`` for what each call promises."""

    async def ensure(self) -> object: ...

    async def listen(self, audio: NDArray[np.int16], *, optional: bool = False) -> Transcript: ...

    def talk(self, text: str) -> AsyncGenerator[Speech]: ...


class SpeechBusy(HostUnavailable):
    """The speech host has more to do than it can; the same call may succeed later."""


class SpeechClient:
    """Speech to text and text to speech by the host of a data directory. Belongs to one event loop.

    Cancelling a call is safe at any time: its connection is dropped and the host forgets the request.
    """

    def __init__(self, data_dir: Path, *, host: HostSpec | None = None) -> None:
        self._spec = host or spec(data_dir)
        self._use: HostUse | None = None
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._closed = False

    async def ensure(self, *, timeout_s: float = HOST_START_S) -> Path:
        """Make sure the host is up: about two seconds when it has to be started, else about one millisecond.

        Raises:
            LocalSpeechUnavailable: the packages are not installed.
            HostUnavailable: it could not be started in time; the message says why.
        """
        if self._closed:
            raise HostUnavailable("This speech client is closed; make a new one.")
        if self._use is None:
            made = await asyncio.to_thread(self._make_use)
            self._use = self._use or made
        return await self._use.ensure(timeout_s=timeout_s)

    def _make_use(self) -> HostUse:
        check_installed()
        return HostUse(self._spec)

    async def listen(
        self, audio: NDArray[np.int16], *, optional: bool = False, timeout_s: float = LISTEN_TIMEOUT_S
    ) -> Transcript:
        """What is said in ``audio``: 16-bit mono at 16 kHz. ``optional``: rather refuse than wait for a thread.

        Raises:
            SpeechBusy: the host refused.
            HostUnavailable: no answer within ``timeout_s``, though the host was started anew where it had died.
            LocalSpeechUnavailable: the packages are not installed.
        """
        header = {"op": "listen", "optional": optional}
        answer = await self._ask(wire.Message(header, np.ascontiguousarray(audio, "<i2").tobytes()), timeout_s)
        return Transcript(str(answer.header["text"]), float(answer.header["confidence"]))

    async def talk(self, text: str, *, timeout_s: float = TALK_TIMEOUT_S) -> AsyncGenerator[Speech]:
        """``text`` spoken, sentence by sentence as each is ready; the words of all of them joined are ``text``.

        Close the generator (``contextlib.aclosing``) when leaving it early. ``timeout_s`` is for each sentence.

        Raises:
            SpeechBusy, HostUnavailable, LocalSpeechUnavailable: as ``listen``.
        """
        requests = [wire.Message({"op": "talk", "text": text})]
        async with contextlib.aclosing(self._answers(requests, timeout_s)) as answers:
            async for answer in answers:
                if "words" not in answer.header:
                    return
                speech = Speech(answer.body, tuple(Word(*word) for word in answer.header["words"]))
                # Where the host dies now, the next one is asked for the rest only.
                text = text[sum(len(word.text) for word in speech.words) :]
                requests[-1] = wire.Message({"op": "talk", "text": text})
                yield speech

    async def state(self, *, timeout_s: float = LISTEN_TIMEOUT_S) -> dict[str, Any]:
        """The host's process id and counts.

        Raises:
            HostUnavailable, LocalSpeechUnavailable: as ``listen``.
        """
        return (await self._ask(wire.Message({"op": "state"}), timeout_s)).header

    async def _ask(self, request: wire.Message, timeout_s: float) -> wire.Message:
        answers = [answer async for answer in self._answers([request], timeout_s)]
        return answers[0]

    async def _answers(self, requests: list[wire.Message], timeout_s: float) -> AsyncGenerator[wire.Message]:
        """The answers to the last of ``requests``; where the connection breaks, what is the last then is sent."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                async with contextlib.aclosing(self._exchange(requests[-1], timeout_s)) as answers:
                    async for answer in answers:
                        yield answer
                return
            except TimeoutError:
                raise HostUnavailable(f"The speech host did not answer within {timeout_s:g} s.") from None
            except (OSError, asyncio.IncompleteReadError):
                # Pooled connections lead to the same dead host.
                self._drop_idle()
                if attempt == ATTEMPTS_MAX - 1:
                    raise HostUnavailable(f"The speech host broke the connection {ATTEMPTS_MAX} times.") from None

    async def _exchange(self, request: wire.Message, timeout_s: float) -> AsyncGenerator[wire.Message]:
        timeout_s = min(timeout_s, TIMEOUT_S_MAX)
        async with asyncio.timeout(timeout_s):
            await self._slots.acquire()
        connection: _Connection | None = None
        finished = False
        try:
            connection = reader, writer = await self._connection(timeout_s)
            async with asyncio.timeout(timeout_s):
                await wire.write(writer, wire.Message({**request.header, "timeout_s": timeout_s}, request.body))
            while not finished:
                async with asyncio.timeout(timeout_s):
                    answer = await wire.read(reader)
                finished = not answer.header.get("more", False)
                _raise_refusal(answer)
                yield answer
        finally:
            self._slots.release()
            if connection is not None:
                self._give_back(*connection, reusable=finished)

    async def _connection(self, timeout_s: float) -> _Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        path = await self.ensure()
        async with asyncio.timeout(timeout_s):
            return await asyncio.open_unix_connection(str(path))

    def _give_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reusable: bool) -> None:
        # An unfinished exchange leaves the rest of its answer in the pipe: no other call may find it there.
        if reusable and not self._closed:
            self._idle.append((reader, writer))
        else:
            writer.close()

    def _drop_idle(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def aclose(self) -> None:
        """Close the connections and let the host end when nobody else uses it. Calls under way still end."""
        self._closed = True
        self._drop_idle()
        if self._use is not None:
            self._use.release()


def _raise_refusal(answer: wire.Message) -> None:
    match answer.header.get("error"):
        case None:
            return
        case "busy":
            raise SpeechBusy("The speech host is busy.")
        case "late":
            raise HostUnavailable("The speech host could not begin in time.")
        case _:
            raise HostUnavailable("The speech host could not serve this request; its log names the error.")
