"""A typed conversation: a real session and a real memory (in this process), with the input and output of a pipe."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from livekit.agents import APIConnectionError, llm

from agent.commands.chat import chat
from agent.commands.conversation import NOT_STORED, ON_DISK
from agent.commands.lines import LineReader
from agent.commands.output import Output
from agent.local.thinker import ExtractiveLLM
from agent.settings import load
from memory import wiring
from memory.errors import EmbeddedServerUnavailable, StoreUnavailable
from memory.limits import ENTRY_CONTENT_BYTES_MAX
from memory.models import MemoryEntry, Scope
from memory.settings import Settings
from memory.wiring import Backend, in_memory_backend

END_S = 60
ME = Scope(org_id="default", agent_id="assistant", user_id="me")


class Typed:
    """Lines typed one after the other; the last one is followed by the end of the input."""

    def __init__(self, *lines: str | Exception) -> None:
        self._lines = list(lines)

    def __call__(self) -> str | None:
        if not self._lines:
            return None
        line = self._lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return line


Talk = Callable[..., Any]


@pytest.fixture
async def backend(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    """The stores of a process that outlives the chats of a test."""
    opened = in_memory_backend()

    async def open_backend(_: Settings) -> Backend:
        return Backend(opened.sessions, opened.retriever, opened.open_archive)

    monkeypatch.setattr(wiring, "open_backend", open_backend)
    yield opened
    await opened.aclose()


async def talk(
    *lines: str | Exception, as_json: bool = False, typed: bool = False, user: str = "me"
) -> tuple[int, str]:
    reading, writing = os.pipe()
    output = Output(writing)
    arguments = argparse.Namespace(json=as_json, user=user, org=None, agent=None)
    try:
        async with asyncio.timeout(END_S):
            code = await chat(arguments, load(), output, LineReader(Typed(*lines)), typed=typed)
    finally:
        output.close(timeout_s=END_S)
        os.close(writing)
        with open(reading, encoding="utf-8") as stream:
            text = stream.read()
    return code, text


async def events(*lines: str | Exception, user: str = "me") -> list[dict[str, Any]]:
    _, text = await talk(*lines, as_json=True, user=user)
    return [json.loads(line) for line in text.splitlines()]


async def stored(backend: Backend, scope: Scope = ME) -> list[MemoryEntry]:
    slice_ = await backend.sessions.read(scope, after="", limit=100)
    return [each.record for each in slice_.records if isinstance(each.record, MemoryEntry)]


async def test_one_line_is_one_turn_and_one_reply_is_one_line(backend: Backend) -> None:
    code, text = await talk("My dog is called Biscuit.", "", "   ", "What is my dog called?")
    assert code == 0
    first, second = text.splitlines()
    assert "Biscuit" in first
    assert "Biscuit" in second
    assert [entry.mode for entry in await stored(backend)] == ["text"] * 4


@pytest.mark.promise("P-fresh")
async def test_P_fresh_the_next_chat_of_the_same_user_remembers(backend: Backend) -> None:
    await talk("My dog is called Biscuit.")
    told = await events("What is my dog called?")
    reply = told[-1]
    assert reply["role"] == "assistant"
    assert "Biscuit" in reply["text"]
    assert "Biscuit" in reply["block"]
    assert reply["memory_ms"] >= 0


@pytest.mark.promise("P-isolated")
async def test_P_isolated_another_user_does_not(backend: Backend) -> None:
    await talk("My dog is called Biscuit.")
    told = await events("What is my dog called?", "/memory", user="you")
    assert "Biscuit" not in json.dumps(told)


async def test_scripts_get_an_object_a_line(backend: Backend) -> None:
    told = await events("Hello.")
    assert [each["event"] for each in told] == ["ready", "turn", "turn"]
    assert told[0]["models"] == {"llm": "local extractive"}
    assert (told[1]["role"], told[1]["mode"], told[1]["text"]) == ("user", "text", "Hello.")
    assert told[2]["interrupted"] is False


async def test_memory_shows_the_block_and_the_turns(backend: Backend) -> None:
    await talk("My dog is called Biscuit.")
    _, text = await talk("What is my dog called?", "/memory")
    assert "<memory>" in text
    assert "user (text): My dog is called Biscuit." in text
    shown = (await events("/memory"))[-1]
    assert shown["event"] == "memory"
    assert shown["block"] is None
    assert [turn["role"] for turn in shown["turns"]] == ["user", "assistant"] * 2


async def test_quit_ends_it(backend: Backend) -> None:
    code, text = await talk("/quit", "Not said.")
    assert (code, text) == (0, "")


async def test_help_and_unknown_commands_are_not_said(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = await talk("/help", "/memorise")
    assert text == ""
    shown = capsys.readouterr().err
    assert "/quit" in shown
    assert "There is no /memorise" in shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("//help me", "/help me"),
        ("/etc/hosts is wrong", "/etc/hosts is wrong"),
        ("a\x00b\x1b[2J\ud800c", "ab[2J\ufffdc"),
    ],
)
async def test_what_only_looks_like_a_command_is_said_and_controls_are_not(
    backend: Backend, line: str, said: str
) -> None:
    await talk(line)
    assert (await stored(backend))[0].content == said


async def test_a_large_turn_is_one_turn(backend: Backend) -> None:
    text = "word " * 40_000
    code, _ = await talk(text)
    assert code == 0
    assert (await stored(backend))[0].content == text.strip()


async def test_a_line_that_is_too_long_is_told_and_the_next_one_taken(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent.commands.lines import LineTooLong

    code, text = await talk(LineTooLong(f"longer than {ENTRY_CONTENT_BYTES_MAX}"), "I live in Oslo.")
    assert code == 1
    assert "Oslo" in text
    assert "longer than" in capsys.readouterr().err


async def test_somebody_at_a_terminal_is_greeted(backend: Backend) -> None:
    _, text = await talk("I live in Oslo.", typed=True)
    assert text.splitlines()[0] == "assistant> Hello! How can I help you today?"
    assert text.splitlines()[1].startswith("assistant> ")


async def test_a_model_that_fails_costs_the_answer_and_not_the_turn(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> llm.LLMStream:
        raise APIConnectionError("refused", retryable=False)

    monkeypatch.setattr(ExtractiveLLM, "chat", refuse)
    code, _ = await talk("I live in Oslo.")
    assert code == 1
    assert "No answer" in capsys.readouterr().err
    assert [entry.content for entry in await stored(backend)] == ["I live in Oslo."]


async def test_a_memory_that_is_off_is_no_reason_not_to_talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMORY_ENABLED", "false")
    code, text = await talk("I live in Oslo.", "/memory")
    assert code == 0
    assert "Oslo" in text
    assert text.endswith("\nNothing is remembered of me.\n")
    assert "nothing is remembered" in capsys.readouterr().err


async def test_stores_that_can_never_be_opened_end_it_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Settings) -> Backend:
        raise EmbeddedServerUnavailable("Install it.")

    monkeypatch.setattr(wiring, "open_backend", refuse)
    with pytest.raises(EmbeddedServerUnavailable):
        await talk("I live in Oslo.")


@pytest.mark.promise("P-silent")
async def test_P_silent_stores_that_are_away_do_not_silence_the_agent_and_the_loss_is_told(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(backend.sessions, "append", away)
    monkeypatch.setattr("agent.commands.conversation.SHUTDOWN_FLUSH_S", 0.2)
    with pytest.raises(StoreUnavailable, match=NOT_STORED[:30]):
        await talk("I live in Oslo.")


async def test_what_waits_on_disk_is_not_called_lost(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    async def open_backend(settings: Settings) -> Backend:
        spool = wiring.open_spool(settings)
        return Backend(backend.sessions, backend.retriever, backend.open_archive, spool=spool)

    monkeypatch.setattr(wiring, "open_backend", open_backend)
    monkeypatch.setattr(backend.sessions, "append", away)
    monkeypatch.setattr("agent.commands.conversation.SHUTDOWN_FLUSH_S", 1.0)
    with pytest.raises(StoreUnavailable, match=ON_DISK[:30]):
        await talk("I live in Oslo.")
