"""The commands with a server of OpenAI's API behind ``OPENAI_BASE_URL``: it is asked what a provider would be."""

from __future__ import annotations

import json
import math
import struct
import threading
import wave
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
KEY = "sk-of-the-test"
ANSWER = "Peanuts, I am afraid."
HEARD = "I am allergic to peanuts."

pytestmark = pytest.mark.timeout(600)


class Provider(ThreadingHTTPServer):
    """Answers like the API does, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(body) for asked, _, body in self.asked if asked == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"data": [{"id": "gpt-4.1-mini"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        match self.path:
            case "/v1/chat/completions":
                self._send("text/event-stream", _completion())
            case "/v1/audio/transcriptions":
                self._send("application/json", json.dumps({"text": HEARD}).encode())
            case "/v1/audio/speech":
                self._send("audio/pcm", _tone(24_000))

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _completion() -> bytes:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": word + " "}, "finish_reason": None}]}
        for word in ANSWER.split()
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    frame: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1-mini"}
    return (
        b"".join(b"data: " + json.dumps({**frame, **chunk}).encode() + b"\n\n" for chunk in chunks)
        + b"data: [DONE]\n\n"
    )


def _tone(rate: int, seconds: float = 0.5) -> bytes:
    return b"".join(struct.pack("<h", int(9_000 * math.sin(n / 8))) for n in range(int(rate * seconds)))


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_chat_asks_once_a_turn_with_the_memory_in_the_last_message(start: Start, provider: Provider) -> None:
    environment = {"OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": KEY, "MEMORY_EMBEDDER": "none"}
    code, out, err = start("chat", "--user", "ana", environment=environment).end(HEARD)
    assert (code, out.strip()) == (0, ANSWER), err
    assert "thinking: openai gpt-4.1-mini" in err
    assert KEY not in err
    code, out, err = start("chat", "--user", "ana", environment=environment).end("Which nuts am I allergic to?")
    assert (code, out.strip()) == (0, ANSWER), err
    requests = provider.bodies("/v1/chat/completions")
    assert len(requests) == 2
    assert {asked[1] for asked in provider.asked} == {f"Bearer {KEY}"}
    system, *_, last = requests[1]["messages"]
    assert system["role"] == "system"
    assert "## Memory Usage" in system["content"]
    assert requests[0]["messages"][0] == system
    assert last["role"] == "user"
    assert last["content"].startswith("<memory>")
    assert HEARD in last["content"]
    assert last["content"].endswith("Which nuts am I allergic to?")


def test_a_call_listens_thinks_and_talks_by_the_endpoint(start: Start, provider: Provider, speech: Path) -> None:
    environment = {"OPENAI_BASE_URL": provider.url, "MEMORY_EMBEDDER": "none", "AGENT_VOICE": "nova"}
    code, out, err = start("call", str(speech), "--json", environment=environment).end()
    assert code == 0, err
    turns = [event for line in out.splitlines() if (event := json.loads(line))["event"] == "turn"]
    assert [turn["text"] for turn in turns[1:3]] == [HEARD, ANSWER]
    assert provider.bodies("/v1/audio/speech")[0]["voice"] == "nova"
    assert provider.bodies("/v1/audio/speech")[0]["response_format"] == "pcm"
    assert {asked[0] for asked in provider.asked} == {
        "/v1/audio/transcriptions",
        "/v1/chat/completions",
        "/v1/audio/speech",
    }


def test_an_endpoint_that_is_away_costs_the_answer_and_is_told(start: Start) -> None:
    environment = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "MEMORY_EMBEDDER": "none"}
    code, out, err = start("chat", "--json", environment=environment).end("Hello?")
    assert code == 1
    assert [event["event"] for event in map(json.loads, out.splitlines())] == ["ready", "turn", "problem"]
    assert "No answer" in err
    assert "Traceback" not in err


@pytest.fixture
def speech(tmp_path: Path, require: Callable[..., None]) -> Path:
    """Somebody says something; stereo, 24 kHz."""
    require("hibari", extra="local")
    import numpy as np

    from agent.local.models import TALK_RATE, TextToSpeech
    from agent.local.wav import write_two_channel_wav

    said = TextToSpeech().speak(HEARD)
    samples = np.frombuffer(said.pcm, np.int16).astype(np.float32) / np.float32(32768)
    path = tmp_path / "caller.wav"
    write_two_channel_wav(path, samples, samples, TALK_RATE)
    with wave.open(str(path)) as written:
        assert written.getnchannels() == 2
    return path
