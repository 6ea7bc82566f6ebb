"""The test server itself, asked by OpenAI's own client: what else is tested on it can be no better than it is."""

from __future__ import annotations

import io
import wave
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import openai
import pytest

from agent.local.models import PACKAGES, TALK_RATE
from tests.support.openai_chat import Answer, ChatRequest
from tests.support.openai_faults import RATE_LIMITED
from tests.support.openai_server import MODELS, OpenAIServer
from tests.support.scripted_llm import ToolCall

SAID = "My dog is called Biscuit."
MODEL, EARS, MOUTH = "gpt-4.1-mini", "gpt-4o-mini-transcribe", "gpt-4o-mini-tts"
CALLS = (ToolCall("find", {"what": "a dog"}), ToolCall("tell", {}))


@pytest.fixture
async def server(require: Callable[..., None]) -> AsyncIterator[OpenAIServer]:
    require("aiohttp", extra="server")
    require(*PACKAGES, extra="local")
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def client(server: OpenAIServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_it_lists_its_models(client: openai.AsyncOpenAI) -> None:
    assert tuple([model.id async for model in client.models.list()]) == MODELS


async def test_an_answer_is_the_same_at_once_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=user(SAID))
    stream = await client.chat.completions.create(
        model=MODEL, messages=user(SAID), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == f'Noted: "{SAID}"'
    words = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(words) == whole.choices[0].message.content
    assert len(words) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * len(words)
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage
    assert whole.usage.prompt_tokens == 7


async def test_usage_that_was_not_asked_for_is_not_streamed(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=user(SAID), stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_tools_are_called_at_once_and_streamed(server: OpenAIServer, client: openai.AsyncOpenAI) -> None:
    def answer(_: ChatRequest) -> Answer:
        return CALLS

    server.answer = answer
    whole = await client.chat.completions.create(model=MODEL, messages=user(SAID))
    found = [call.function for call in cast("Any", whole.choices[0].message.tool_calls)]
    assert whole.choices[0].finish_reason == "tool_calls"
    streamed = {0: ["", ""], 1: ["", ""]}
    async for chunk in await client.chat.completions.create(model=MODEL, messages=user(SAID), stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            streamed[call.index][0] += call.function.name or ""
            streamed[call.index][1] += call.function.arguments or ""
    expected = [["find", '{"what": "a dog"}'], ["tell", "{}"]]
    assert [[call.name, call.arguments] for call in found] == list(streamed.values()) == expected


async def _recording(client: openai.AsyncOpenAI) -> bytes:
    spoken = await client.audio.speech.create(model=MOUTH, voice="ash", input=SAID, response_format="pcm")
    recording = io.BytesIO()
    with wave.open(recording, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(TALK_RATE)
        out.writeframes(spoken.content)
    return recording.getvalue()


async def test_it_hears_what_it_says(server: OpenAIServer, client: openai.AsyncOpenAI) -> None:
    file = ("call.wav", await _recording(client), "audio/wav")
    heard = await client.audio.transcriptions.create(model=EARS, file=file)
    told = await client.audio.transcriptions.create(model="whisper-1", file=file, response_format="verbose_json")
    plain = await client.audio.transcriptions.create(model="whisper-1", file=file, response_format="text")
    assert heard.text == told.text == plain.strip()
    assert heard.text.casefold() == SAID.casefold()
    assert told.language == "english"
    assert 1 < float(told.duration) < 5
    assert [len(asked.file) for asked in server.asked("transcriptions")] == [len(file[1])] * 3


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "too short"),
        ([{"role": "robot", "content": "Hi."}], "Invalid value: 'robot'"),
        ([{"role": "user", "content": None}], "expected a string"),
        ([{"role": "tool", "tool_call_id": "call_1", "content": "42"}], "must be a response to a preceding message"),
        (
            [
                {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "user", "content": "And?"},
            ],
            "must be followed by tool messages",
        ),
    ],
)
async def test_what_openai_would_refuse_is_refused(client: openai.AsyncOpenAI, messages: Any, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        await client.chat.completions.create(model=MODEL, messages=messages)


async def test_models_sounds_and_formats_it_has_not_are_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="gpt-none", messages=user(SAID))
    with pytest.raises(openai.BadRequestError):
        await client.audio.transcriptions.create(model=EARS, file=("call.wav", b"no sound", "audio/wav"))
    with pytest.raises(openai.BadRequestError, match="'pcm' only"):
        await client.audio.speech.create(model=MOUTH, voice="ash", input=SAID)
    with pytest.raises(openai.BadRequestError, match="1 to 4096 characters"):
        await client.audio.speech.create(model=MOUTH, voice="ash", input="", response_format="pcm")


async def test_one_key_and_no_other_where_there_is_one(require: Callable[..., None]) -> None:
    require("aiohttp", extra="server")
    async with OpenAIServer(key="sk-right") as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-right", max_retries=0) as client:
            assert (await client.models.list()).data
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
    assert [asked.key for asked in server.requests] == ["sk-right", "sk-wrong"]


async def test_a_rate_limit_says_when_to_come_back(server: OpenAIServer, client: openai.AsyncOpenAI) -> None:
    server.fail("chat", RATE_LIMITED)
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(model=MODEL, messages=user(SAID))
    assert refused.value.response.headers["Retry-After"] == "20"
    assert (await client.chat.completions.create(model=MODEL, messages=user(SAID))).choices
