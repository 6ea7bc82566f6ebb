"""A server of OpenAI's API for tests: the same local models behind it as the agent's own, and faults on demand.

In process on the test's loop (``async with OpenAIServer() as server``), on a thread of its own for tests that block
(``serving``), or as a program: ``python -m tests.support.openai_server --port 0`` prints its URL.
Above: tests. Below: openai_chat, openai_voice, openai_faults.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from aiohttp import web

from tests.support.openai_chat import Answerer, BadRequest, ChatRequest, checked, chunks, completion, extractive, tokens
from tests.support.openai_faults import NAMED, Fault
from tests.support.openai_voice import LocalVoice, NoAudio, local_voice
from tests.support.threads import on_a_thread

Endpoint = Literal["models", "chat", "transcriptions", "speech", "other"]

MODELS = ("gpt-4.1-mini", "gpt-4o-mini-transcribe", "whisper-1", "gpt-4o-mini-tts", "tts-1")
ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("GET", "/v1/models"): "models",
    ("POST", "/v1/chat/completions"): "chat",
    ("POST", "/v1/audio/transcriptions"): "transcriptions",
    ("POST", "/v1/audio/speech"): "speech",
}
SPEECH_CHARS_MAX = 4_096
_BODY_BYTES_MAX = 32 * 2**20
_STOP_S = 0.5

_REASONS = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: {key}."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    500: ("server_error", None, "The server had an error while processing your request."),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came. ``body``: its JSON, or its form without the file."""

    endpoint: Endpoint
    path: str
    body: dict[str, Any]
    key: str
    file: bytes = b""

    @property
    def chat(self) -> ChatRequest:
        return ChatRequest(self.body)


class OpenAIServer:
    """``answer`` thinks; ``key``: the only one that is let in, any or none where it is ``None``.

    ``speech_events=False`` is a server that knows no ``stream_format`` and sends plain sound, as most compatible ones.
    ``requests`` holds everything that was asked, in order.
    """

    def __init__(
        self,
        *,
        answer: Answerer = extractive,
        key: str | None = None,
        speech_events: bool = True,
        models: Sequence[str] = MODELS,
        voice: LocalVoice | None = None,
    ) -> None:
        self.answer = answer
        self.requests: list[Asked] = []
        self._key = key
        self._speech_events = speech_events
        self._models = models
        self._voice = voice or local_voice()
        self._faults: dict[Endpoint, collections.deque[Fault]] = collections.defaultdict(collections.deque)
        self._lasting: dict[Endpoint, Fault] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> OpenAIServer:
        await self.start(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self, port: int) -> None:
        """Listen on loopback; ``port`` 0 takes a free one."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Without the cancellation, a request that is never answered would outlive the client that gave it up.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_STOP_S, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def aclose(self) -> None:
        """Break every connection and stop listening. Idempotent."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def fail(self, endpoint: Endpoint, *faults: Fault) -> None:
        """The next requests of ``endpoint`` go wrong like this, one each."""
        self._faults[endpoint].extend(faults)

    def fail_always(self, endpoint: Endpoint, fault: Fault) -> None:
        """Every request of ``endpoint`` goes wrong until ``mend``."""
        self._lasting[endpoint] = fault

    def mend(self, endpoint: Endpoint) -> None:
        self._lasting.pop(endpoint, None)
        self._faults[endpoint].clear()

    def asked(self, endpoint: Endpoint) -> list[Asked]:
        return [each for each in self.requests if each.endpoint == endpoint]

    @property
    def chats(self) -> list[ChatRequest]:
        return [each.chat for each in self.asked("chat")]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = await _read(request)
        self.requests.append(asked)
        fault = self._next_fault(asked.endpoint)
        if fault.silent:
            await asyncio.Event().wait()
        if fault.status != 200:
            return _refusal(fault.status, asked, retry_after_s=fault.retry_after_s)
        if self._key is not None and asked.key != self._key:
            return _refusal(401, asked)
        reply = _Reply(request, fault)
        try:
            await self._answer(asked, reply)
        except (BadRequest, NoAudio) as error:
            return _refusal(400, asked, message=str(error))
        except _ModelNotFound:
            return _refusal(404, asked)
        except _Cut:
            assert request.transport is not None
            request.transport.abort()
        return reply.response

    def _next_fault(self, endpoint: Endpoint) -> Fault:
        if self._faults[endpoint]:
            return self._faults[endpoint].popleft()
        return self._lasting.get(endpoint, Fault())

    async def _answer(self, asked: Asked, reply: _Reply) -> None:
        match asked.endpoint:
            case "models":
                found = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in self._models]
                await reply.json({"object": "list", "data": found})
            case "chat":
                await self._chat(asked, reply)
            case "transcriptions":
                await self._transcribe(asked, reply)
            case "speech":
                await self._speak(asked, reply)
            case "other":
                raise BadRequest(f"Invalid URL ({asked.path})")

    def _check_model(self, asked: Asked) -> str:
        model = asked.body.get("model")
        if not isinstance(model, str):
            raise BadRequest("you must provide a model parameter")
        if model not in self._models:
            raise _ModelNotFound
        return model

    async def _chat(self, asked: Asked, reply: _Reply) -> None:
        self._check_model(asked)
        request = checked(asked.body)
        answer = await asyncio.to_thread(self.answer, request)
        if not request.streams:
            await reply.json(completion(request, answer))
            return
        for chunk in chunks(request, answer):
            await reply.event(json.dumps(chunk))
        await reply.event("[DONE]")

    async def _transcribe(self, asked: Asked, reply: _Reply) -> None:
        model, form = self._check_model(asked), asked.body.get("response_format", "json")
        text, duration_s = await self._voice.listen(asked.file)
        if form == "verbose_json" and model == "whisper-1":
            about = {"task": "transcribe", "language": "english", "duration": duration_s, "segments": []}
            await reply.json({**about, "text": text})
        elif form == "json":
            await reply.json({"text": text, "usage": {"type": "duration", "seconds": round(duration_s)}})
        elif form == "text":
            await reply.pieces("text/plain; charset=utf-8", [f"{text}\n".encode()])
        else:
            raise BadRequest(f"response_format '{form}' is not compatible with model '{model}'")

    async def _speak(self, asked: Asked, reply: _Reply) -> None:
        model, text = self._check_model(asked), asked.body.get("input")
        if not isinstance(text, str) or not text or len(text) > SPEECH_CHARS_MAX:
            raise BadRequest(f"String should have 1 to {SPEECH_CHARS_MAX} characters - 'input'")
        if asked.body.get("response_format") != "pcm":
            raise BadRequest("This server speaks 'pcm' only: set response_format.")
        if self._speech_events and asked.body.get("stream_format") == "sse":
            if model == "tts-1":
                raise BadRequest("stream_format 'sse' is not supported for tts-1")
            async for piece in self._voice.speak(text):
                sound = base64.b64encode(piece).decode()
                await reply.event(json.dumps({"type": "speech.audio.delta", "audio": sound}))
            usage = {"input_tokens": tokens(text), "output_tokens": 0, "total_tokens": tokens(text)}
            await reply.event(json.dumps({"type": "speech.audio.done", "usage": usage}))
            return
        async for piece in self._voice.speak(text):
            await reply.pieces("audio/pcm", [piece])


class _ModelNotFound(Exception):
    pass


class _Cut(Exception):
    """The connection is to break here."""


class _Reply:
    """An answer on its way, piece by piece, with what is to go wrong with it."""

    def __init__(self, request: web.Request, fault: Fault) -> None:
        self._request = request
        self._fault = fault
        self._sent = 0
        self.response = web.StreamResponse()

    async def json(self, value: object) -> None:
        data = json.dumps(value).encode()
        await self.pieces("application/json", [data[: len(data) // 2], data[len(data) // 2 :]])

    async def event(self, data: str) -> None:
        await self.pieces("text/event-stream; charset=utf-8", [f"data: {data}\n\n".encode()])

    async def pieces(self, content_type: str, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            await self._begin(content_type)
            await self._send(piece)

    async def _begin(self, content_type: str) -> None:
        if self.response.prepared:
            return
        self.response.headers["Content-Type"] = self._fault.content_type or content_type
        self.response.headers["X-Request-Id"] = "req_test"
        await self.response.prepare(self._request)
        if self._fault.delay_s:
            await asyncio.sleep(self._fault.delay_s)
        if self._fault.hold is not None:
            await self._fault.hold.wait()
        if self._fault.body is not None:
            await self.response.write(self._fault.body)

    async def _send(self, piece: bytes) -> None:
        if self._fault.body is not None:
            return
        if self._sent == self._fault.cut_after:
            raise _Cut
        self._sent += 1
        if self._fault.garbled:
            piece = piece[: len(piece) // 2] + b"\n\n"
        await self.response.write(piece)


async def _read(request: web.Request) -> Asked:
    endpoint = ENDPOINTS.get((request.method, request.path), "other")
    key = request.headers.get("Authorization", "").removeprefix("Bearer ")
    body: dict[str, Any] = {}
    file = b""
    if endpoint == "transcriptions":
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                file = await asyncio.to_thread(value.file.read)
            else:
                body[name] = value
    elif request.can_read_body:
        with contextlib.suppress(json.JSONDecodeError):  # what is no JSON lacks everything: 400
            body = await request.json()
    return Asked(endpoint, request.path, body, key, file)


def _refusal(
    status: int, asked: Asked, *, message: str | None = None, retry_after_s: int | None = None
) -> web.Response:
    kind, code, reason = _REASONS.get(status, ("invalid_request_error", None, ""))
    # As OpenAI does, which repeats the ends of a wrong key.
    text = message or reason.format(key=f"{asked.key[:3]}***{asked.key[-4:]}")
    headers = {"X-Request-Id": "req_test", **({"Retry-After": str(retry_after_s)} if retry_after_s else {})}
    error = {"message": text, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[OpenAIServer]:
    """An ``OpenAIServer`` on a thread of its own."""
    server = OpenAIServer(**options)
    with on_a_thread(server, "openai-server"):
        yield server


async def main(arguments: argparse.Namespace) -> None:
    """Serve until killed."""
    server = OpenAIServer(key=arguments.key)
    for endpoint, name in (fault.split(":") for fault in arguments.fault):
        server.fail_always(cast("Endpoint", endpoint), NAMED[name])
    await server.start(arguments.port)
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A server of OpenAI's API with the local models behind it, for tests.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", help="the only key that is let in")
    parser.add_argument("--fault", action="append", default=[], metavar="ENDPOINT:NAME", help=f"of {', '.join(NAMED)}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args()))
