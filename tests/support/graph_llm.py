"""An LLM and embeddings with OpenAI's API, for tests of ingestion: answers by a grammar, the same each time, and goes
wrong on demand.

In process on the test's loop (``async with GraphLLM() as llm``), on a thread of its own (``serving``), or as a program:
``python -m tests.support.graph_llm --port 0`` prints its URL; ``POST /trouble`` and ``GET /stats`` steer and ask that.
Takes ``/chat/completions`` with ``json_schema`` or ``json_object``, and ``/embeddings`` as floats or base64.
Above: tests. Below: graph_answers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import contextlib
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from memory.retrieval.text import stems
from tests.support.graph_answers import TOO_LONG_CHARS, Twist, answer
from tests.support.threads import on_a_thread

Endpoint = Literal["chat", "embeddings"]

DIMENSION = 384
_ASKED_MAX = 10_000
_BODY_BYTES_MAX = 32 * 2**20
_STOP_S = 0.5
_TITLE = re.compile(r'"title": ?"(\w+)"')
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong with one request; the defaults change nothing.

    ``twist`` is about what is answered: see ``graph_answers.Twist``, and "wrong-length" or "wrong-count" of vectors.
    """

    status: int = 200
    retry_after: str = ""  # seconds, or a date
    silent: bool = False  # takes the request and never answers
    delay_s: float = 0.0
    broken: bool = False  # the connection breaks
    no_schema: bool = False  # a server that doesn't know json_schema: 400 to it
    twist: Twist | Literal["wrong-length", "wrong-count"] = ""


NAMED: dict[str, Trouble] = {
    "429": Trouble(status=429, retry_after="20"),
    "500": Trouble(status=500),
    "503": Trouble(status=503),
    "401": Trouble(status=401),
    "403": Trouble(status=403),
    "404": Trouble(status=404),
    "silent": Trouble(silent=True),
    "broken": Trouble(broken=True),
    "no-schema": Trouble(no_schema=True),
    **{
        twist: Trouble(twist=twist)
        for twist in (
            *(
                "invents",
                "omits",
                "misattributes",
                "duplicates",
                "year-9999",
                "invalid-json",
                "cut-json",
                "wrong-shape",
            ),
            *("empty", "fenced", "too-long", "wrong-length", "wrong-count"),
        )
    },
}

_REASONS = {
    400: (
        "invalid_request_error",
        None,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported.",
    ),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You are not allowed to use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests."),
}


class Calls(dict[str, int]):
    """0 for what was never asked; unlike a Counter, ``asdict`` copies it."""

    def __missing__(self, shape: str) -> int:
        return 0


@dataclass(slots=True)
class Stats:
    """What was asked so far. ``calls`` by shape, "embeddings" among them; refused ones count as well."""

    calls: Calls = field(default_factory=Calls)
    answered: int = 0
    texts: int = 0  # embedded
    input_tokens: int = 0
    output_tokens: int = 0

    def count(self, shape: str) -> None:
        self.calls[shape] += 1

    @property
    def llm_calls(self) -> int:
        return sum(count for shape, count in self.calls.items() if shape != "embeddings")


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request: the shape it wants, its messages' text, and its body."""

    shape: str
    text: str
    body: dict[str, Any]


class GraphLLM:
    """``dimension``: of its vectors. ``key``: the only one that is let in, any where ``None``.

    ``asked`` holds the newest chat requests, ``stats`` counts all.
    """

    def __init__(self, *, dimension: int = DIMENSION, key: str | None = None) -> None:
        self.dimension = dimension
        self.stats = Stats()
        self.asked: collections.deque[Asked] = collections.deque(maxlen=_ASKED_MAX)
        self.url = ""
        self._key = key
        self._next: dict[str, collections.deque[Trouble]] = collections.defaultdict(collections.deque)
        self._lasting: dict[str, Trouble] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> GraphLLM:
        await self.start(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self, port: int) -> None:
        """Listen on loopback; ``port`` 0 takes a free one."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/trouble", self._steer)
        app.router.add_get("/stats", self._tell)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_STOP_S, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def aclose(self) -> None:
        """Break every connection and stop listening. Idempotent."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def trouble(self, endpoint: Endpoint, *troubles: Trouble | str) -> None:
        """The next requests of ``endpoint`` go wrong like this, one each; by name or as they are."""
        self._next[endpoint].extend(NAMED[each] if isinstance(each, str) else each for each in troubles)

    def trouble_always(self, endpoint: Endpoint, trouble: Trouble | str) -> None:
        """Every request of ``endpoint`` goes wrong until ``mend``."""
        self._lasting[endpoint] = NAMED[trouble] if isinstance(trouble, str) else trouble

    def mend(self) -> None:
        """Nothing goes wrong any more."""
        self._lasting.clear()
        self._next.clear()

    def _due(self, endpoint: Endpoint) -> Trouble:
        queue = self._next[endpoint]
        return queue.popleft() if queue else self._lasting.get(endpoint, Trouble())

    async def _steer(self, request: web.Request) -> web.Response:
        """``{"endpoint": "chat", "next": ["429"], "always": "500", "mend": true}``, each as wanted."""
        wanted = await request.json()
        if wanted.get("mend"):
            self.mend()
        endpoint: Endpoint = wanted.get("endpoint", "chat")
        self.trouble(endpoint, *wanted.get("next", ()))
        if wanted.get("always"):
            self.trouble_always(endpoint, wanted["always"])
        return web.json_response({"ok": True})

    async def _tell(self, _: web.Request) -> web.Response:
        return web.json_response({**asdict(self.stats), "llm_calls": self.stats.llm_calls})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = _asked(body)
        self.asked.append(asked)
        self.stats.count(asked.shape)
        trouble = self._due("chat")
        refused = await self._trip(request, trouble)
        if refused is not None:
            return refused
        if trouble.no_schema and body.get("response_format", {}).get("type") == "json_schema":
            return _refusal(400)
        content, finish = _content(asked, trouble.twist)
        usage = _usage("".join(str(message.get("content") or "") for message in body["messages"]), content)
        self.stats.answered += 1
        self.stats.input_tokens += usage["prompt_tokens"]
        self.stats.output_tokens += usage["completion_tokens"]
        message = {"role": "assistant", "content": content, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        head = {"id": f"chatcmpl-{next(_ids)}", "object": "chat.completion", "created": 1_700_000_000}
        return web.json_response({**head, "model": body.get("model"), "choices": [choice], "usage": usage})

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.stats.count("embeddings")
        trouble = self._due("embeddings")
        refused = await self._trip(request, trouble)
        if refused is not None:
            return refused
        texts: Sequence[str] = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.stats.texts += len(texts)
        dimension = int(body.get("dimensions") or self.dimension) + (trouble.twist == "wrong-length")
        vectors = [vector(text, dimension) for text in texts]
        if trouble.twist == "wrong-count":
            vectors = vectors[:-1]
        as_base64 = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": place, "embedding": _base64(each) if as_base64 else each.tolist()}
            for place, each in enumerate(vectors)
        ]
        tokens = sum(-(-len(text) // 4) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return web.json_response({"object": "list", "data": data, "model": body.get("model"), "usage": usage})

    async def _trip(self, request: web.Request, trouble: Trouble) -> web.Response | None:
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return _refusal(401)
        if trouble.silent:
            await asyncio.Event().wait()
        if trouble.delay_s:
            await asyncio.sleep(trouble.delay_s)
        if trouble.broken and request.transport is not None:
            request.transport.abort()
        return _refusal(trouble.status, trouble.retry_after) if trouble.status != 200 else None


def vector(text: str, dimension: int) -> NDArray[np.float32]:
    """Hashed stems, at length 1: texts with words in common are near each other, and equal ones equal."""
    sums = np.zeros(dimension, np.float32)
    for stem in stems(text) or [text]:
        digest = int.from_bytes(hashlib.blake2b(stem.encode(errors="replace"), digest_size=8).digest())
        sums[digest % dimension] += 1.0 if digest >> 63 else -1.0
    length = float(np.linalg.norm(sums))
    return sums / np.float32(length) if length else np.eye(1, dimension, dtype=np.float32)[0]


def _base64(values: NDArray[np.float32]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _asked(body: dict[str, Any]) -> Asked:
    """The shape is the schema's name; in json_object mode the title of the schema that the messages hold."""
    texts = [str(message.get("content") or "") for message in body.get("messages", ())]
    shape = body.get("response_format", {}).get("json_schema", {}).get("name", "")
    if not shape:
        titles = [title for text in texts for title in _TITLE.findall(text) if not title[0].islower()]
        shape = titles[-1] if titles else ""
    return Asked(shape, "\n".join(texts[1:] or texts), body)


def _content(asked: Asked, twist: str) -> tuple[str, str]:
    if twist == "empty":
        return "", "stop"
    if twist == "wrong-shape":
        return json.dumps({"answer": 42}), "stop"
    text = json.dumps(answer(asked.shape, asked.text, twist), ensure_ascii=False)  # type: ignore[arg-type]
    if twist == "cut-json" or (twist == "too-long" and len(asked.text) > TOO_LONG_CHARS):
        return text[: len(text) // 2], "length"
    if twist == "invalid-json":
        return text[:-1] + ",}]", "stop"
    return (f"```json\n{text}\n```" if twist == "fenced" else text), "stop"


def _usage(prompt: str, said: str) -> dict[str, int]:
    own, theirs = -(-len(prompt) // 4), -(-len(said) // 4)
    return {"prompt_tokens": own, "completion_tokens": theirs, "total_tokens": own + theirs}


def _refusal(status: int, retry_after: str = "") -> web.Response:
    kind, code, message = _REASONS.get(status, ("server_error", None, "The server had an error."))
    headers = {"Retry-After": retry_after} if retry_after else {}
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[GraphLLM]:
    """A ``GraphLLM`` on a thread of its own."""
    llm = GraphLLM(**options)
    with on_a_thread(llm, "graph-llm"):
        yield llm


async def main(arguments: argparse.Namespace) -> None:
    """Serve until killed."""
    llm = GraphLLM(dimension=arguments.dimension, key=arguments.key)
    for endpoint, name in (trouble.split(":") for trouble in arguments.trouble):
        llm.trouble_always(endpoint, name)
    await llm.start(arguments.port)
    sys.stdout.write(f"{llm.url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An LLM and embeddings with OpenAI's API, by a grammar, for tests.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dimension", type=int, default=DIMENSION)
    parser.add_argument("--key", help="the only key that is let in")
    parser.add_argument(
        "--trouble", action="append", default=[], metavar="ENDPOINT:NAME", help=f"of {', '.join(NAMED)}"
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args()))
