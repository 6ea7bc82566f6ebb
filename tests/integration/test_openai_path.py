"""The whole product behind OpenAI's API: the plugin that asks, the memory that listens in, local models that answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent.local.models import PACKAGES
from memory.models import MemoryEntry
from memory.stores.inmemory import InMemorySessionStore
from memory.wiring import Backend, in_memory_backend
from tests.support.openai_chat import Answer, ChatRequest, tokens
from tests.support.openai_faults import MISLABELLED
from tests.support.openai_server import OpenAIServer
from tests.support.openai_talk import BLOCK, talk, use, user_blocks
from tests.support.scripted_llm import ToolCall
from tests.support.sessions import HandClock, ScriptedRetriever, backend_of, passage

FACT, QUESTION = "My dog is called Biscuit.", "What is my dog called?"
OLD = "I am allergic to peanuts."

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def set_up(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("aiohttp", extra="server")
    require(*PACKAGES, extra="local")
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "5000")  # as long as a busy machine takes


@pytest.fixture
async def server(set_up: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        use(server, monkeypatch)
        yield server


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    """Stores and recall in this process, which outlive each session."""
    backend = in_memory_backend()
    yield backend
    await backend.aclose()


def remembering(*texts: str, store: InMemorySessionStore | None = None) -> tuple[Backend, ScriptedRetriever]:
    """Stores that recall ``texts`` in every turn."""
    retriever = ScriptedRetriever([passage(text, f"old-{number}") for number, text in enumerate(texts)])
    return backend_of(store or InMemorySessionStore(HandClock()), retriever), retriever


def shown(entries: list[MemoryEntry]) -> list[tuple[str, str]]:
    return [(entry.role, entry.mode) for entry in entries]


@pytest.mark.promise("P-both")
@pytest.mark.promise("P-fresh")
async def test_P_both_P_fresh_what_was_spoken_is_known_when_the_same_user_types(
    server: OpenAIServer, backend: Backend
) -> None:
    async with talk(server, backend) as call:
        await call.say(FACT)
        assert len(server.chats) == len(server.asked("transcriptions")) == 1
        entries = await call.entries()
    assert shown(entries) == [("user", "voice"), ("assistant", "voice")]
    assert "my dog is called" in entries[0].content.casefold()

    async with talk(server, backend) as chat:
        answer = await chat.type(QUESTION)
        assert "biscuit" in answer.casefold()
        assert shown(await chat.entries()) == [("user", "text"), ("assistant", "text")]
        assert await chat.stored() == [("user", QUESTION), ("assistant", answer)]
    assert len(server.chats) == 2
    asked = server.chats[-1].last_user
    assert asked.startswith(BLOCK)
    assert entries[0].content in asked
    assert asked.endswith(f"\n\n{QUESTION}")
    assert user_blocks(server.chats[-1]) == [1]


@pytest.mark.promise("P-both")
@pytest.mark.promise("P-isolated")
async def test_P_both_P_isolated_what_was_typed_is_known_when_that_user_speaks_and_nobody_else(
    server: OpenAIServer, backend: Backend
) -> None:
    async with talk(server, backend) as chat:
        await chat.type(FACT)
    async with talk(server, backend) as call:
        await call.say(QUESTION)
        entries = await call.entries()
    assert len(server.chats) == 2  # livekit replies early here, and need not reply anew
    assert user_blocks(server.chats[-1]) == [1]
    assert "Biscuit" in entries[-1].content
    async with talk(server, backend, user_id="ben") as other:
        assert "Biscuit" not in await other.type(QUESTION)
    assert "Biscuit" not in str(server.chats[-1].body)


@pytest.mark.parametrize(
    ("settings", "form", "language"),
    [
        ({}, "json", ""),  # detected by the model, which doesn't tell
        ({"AGENT_LANGUAGE": "en"}, "json", "en"),
        ({"AGENT_STT_MODEL": "whisper-1"}, "verbose_json", "en"),  # told as "english"
    ],
)
async def test_a_transcript_without_confidence_or_language_is_a_spoken_turn_all_the_same(
    server: OpenAIServer,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    form: str,
    language: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    async with talk(server, backend) as call:
        await call.say(FACT)
        user, reply = await call.entries()
    assert server.asked("transcriptions")[0].body.get("language") == settings.get("AGENT_LANGUAGE")
    assert server.asked("transcriptions")[0].body["response_format"] == form
    assert (user.mode, user.transcript_confidence, user.language) == ("voice", 0.0, language)
    assert (reply.mode, reply.transcript_confidence) == ("voice", None)


@pytest.mark.case("L15")
async def test_L15_the_block_is_in_the_last_message_only_and_never_stored(server: OpenAIServer) -> None:
    backend, retriever = remembering(OLD)
    said = ["Good morning.", "I live in Oslo.", "What is on the menu?"]
    async with talk(server, backend) as chat:
        answers = [await chat.type(text) for text in said]
        stored = await chat.stored()
    assert [user_blocks(request) for request in server.chats] == [[1], [0, 1], [0, 0, 1]]
    assert [request.texts("user")[:-1] for request in server.chats] == [said[:turn] for turn in range(3)]
    assert len({request.texts("system")[0] for request in server.chats}) == 1
    assert [text for role, text in stored if role == "user"] == said
    assert [text for role, text in stored if role == "assistant"] == answers
    assert retriever.asked == said


async def test_a_tool_that_looks_things_up_is_offered_and_called_with_one_block_over_all_steps(
    server: OpenAIServer,
) -> None:
    def look_up(request: ChatRequest) -> Answer:
        role, text = request.messages[-1]
        return f"It says: {OLD in text}" if role == "tool" else ToolCall("recall_memory", {"query": "allergies"})

    server.answer = look_up
    backend, retriever = remembering(OLD)
    async with talk(server, backend, recall_tool=True) as chat:
        assert await chat.type(QUESTION) == "It says: True"
        assert await chat.stored() == [("user", QUESTION), ("assistant", "It says: True")]
        used: Any = next(usage for usage in chat.session.usage.model_usage if usage.type == "llm_usage")
    first, second = server.chats
    assert first.tools == second.tools == ["recall_memory"]
    assert user_blocks(first) == user_blocks(second) == [1]
    assert first.last_user == second.last_user
    assert retriever.asked == [QUESTION, "allergies"]
    assert used.model == "gpt-4.1-mini"
    assert used.input_tokens == sum(tokens("".join(text for _, text in each.messages)) for each in server.chats)
    assert used.output_tokens > tokens("It says: True")


@pytest.mark.promise("P-silent")
async def test_P_silent_a_memory_that_never_answers_costs_the_block_only(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "20")
    backend, retriever = remembering(OLD)
    retriever.hold.clear()
    async with talk(server, backend) as chat:
        answer = await chat.type(FACT)
        assert answer == f'Noted: "{FACT}"'
        assert await chat.stored() == [("user", FACT), ("assistant", answer)]
        assert chat.memory.counters["recall.late"] == 1
    assert [user_blocks(request) for request in server.chats] == [[0]]


@pytest.mark.parametrize(
    ("events", "model", "wanted"),
    [(True, "gpt-4o-mini-tts", "sse"), (True, "tts-1", "audio"), (False, "gpt-4o-mini-tts", "sse")],
)
async def test_speech_is_heard_as_events_and_as_plain_sound(
    set_up: None, backend: Backend, monkeypatch: pytest.MonkeyPatch, events: bool, model: str, wanted: str
) -> None:
    async with OpenAIServer(speech_events=events) as server:
        use(server, monkeypatch, AGENT_TTS_MODEL=model, AGENT_VOICE="nova")
        async with talk(server, backend, greeting="Hello there.") as call:
            await call.heard(1)
            await call.type(FACT)
            greeting, reply = call.output.played
            assert [text for _, text in await call.stored()] == ["Hello there.", FACT, f'Noted: "{FACT}"']
    assert reply.pushed_s > greeting.pushed_s > 0.3
    assert {asked.body["stream_format"] for asked in server.asked("speech")} == {wanted}
    assert {asked.body["voice"] for asked in server.asked("speech")} == {"nova"}


async def test_a_compatible_server_that_needs_no_key_and_labels_its_answers_wrongly_will_do(
    set_up: None, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with OpenAIServer(speech_events=False) as server:
        use(server, monkeypatch)
        for endpoint in ("chat", "transcriptions", "speech"):
            server.fail_always(endpoint, MISLABELLED)
        async with talk(server, backend) as call:
            await call.say(FACT)
            assert shown(await call.entries()) == [("user", "voice"), ("assistant", "voice")]
            assert not call.errors
