"""The assistant is what the settings say, and the same one for the worker's calls and for the commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent import job
from agent.assistant import INSTRUCTIONS, Assistant
from agent.commands import conversation
from agent.settings import load
from memory.context.prompt import MEMORY_GUIDANCE

BUILT_IN = INSTRUCTIONS.format(name="Assistant")
GREETING = "Hello! How can I help you today?"

Build = Callable[[], Awaitable[Assistant]]


class Attached(Exception):
    """The memory was about to be attached to this assistant; a test wants no more of a session."""

    def __init__(self, _: object, assistant: Assistant, *__: object, **___: object) -> None:
        self.assistant = assistant


def attach(*given: Any, **options: Any) -> None:
    raise Attached(*given, **options)


def session(*_: object, **__: object) -> Any:
    return SimpleNamespace(on=lambda *_: None, input=SimpleNamespace(), output=SimpleNamespace())


async def by_the_worker(metadata: str = "") -> Assistant:
    ctx: Any = SimpleNamespace(job=SimpleNamespace(attributes={}, metadata=metadata), is_fake_job=lambda: True)
    with pytest.raises(Attached) as attached:
        await job.Call(ctx)._start()
    return attached.value.assistant


async def by_a_command(**options: Any) -> Assistant:
    ends, models = conversation.Ends(), SimpleNamespace()
    with pytest.raises(Attached) as attached:
        async with conversation.conversation(
            load(),
            models,  # type: ignore[arg-type] # nothing of them is used
            ends,
            user_id="ana",
            channel="chat",
            **options,
        ):
            pass
    return attached.value.assistant


BOTH: list[Build] = [by_the_worker, by_a_command]


@pytest.fixture(params=BOTH)
def built(request: pytest.FixtureRequest, sessions: None) -> Build:
    """Builds the assistant as it is built for a session."""
    build: Build = request.param
    return build


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def no_stores(_: object) -> AsyncIterator[None]:
        yield

    for module in (job, conversation):
        monkeypatch.setattr(module, "new_session", session)
    monkeypatch.setattr(job, "build", lambda *_, **__: None)
    monkeypatch.setattr(job, "attach", attach)
    monkeypatch.setattr("memory.plugin.attach", attach)
    monkeypatch.setattr(conversation, "stores", no_stores)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, f"{BUILT_IN}\n\n{MEMORY_GUIDANCE}"),
        ({"AGENT_NAME": "Ines"}, f"{INSTRUCTIONS.format(name='Ines')}\n\n{MEMORY_GUIDANCE}"),
        ({"AGENT_INSTRUCTIONS": "Sell {hats}."}, f"Sell {{hats}}.\n\n{MEMORY_GUIDANCE}"),
        ({"AGENT_MEMORY_GUIDANCE": "Never mention it."}, f"{BUILT_IN}\n\nNever mention it."),
        ({"AGENT_MEMORY_GUIDANCE": " Off "}, BUILT_IN),
        ({"MEMORY_ENABLED": "false"}, BUILT_IN),
        ({"MEMORY_ENABLED": "false", "AGENT_MEMORY_GUIDANCE": "Never mention it."}, BUILT_IN),
    ],
)
async def test_it_is_told_what_the_settings_say_and_of_its_memory_where_it_has_one(
    settings: dict[str, str], told: str, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert (await built()).instructions == told


@pytest.mark.parametrize(
    ("settings", "greeting"),
    [({}, GREETING), ({"AGENT_GREETING": "Hi."}, "Hi."), ({"AGENT_GREETING": "off"}, None)],
)
async def test_it_greets_as_the_settings_say(
    settings: dict[str, str], greeting: str | None, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert (await built())._greeting == greeting


async def test_it_greets_nobody_who_is_not_to_be_greeted(sessions: None) -> None:
    assert (await by_a_command(greets=False))._greeting is None


async def test_a_calls_dispatch_has_the_last_word(sessions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AGENT_NAME": "Ines", "AGENT_GREETING": "Hi.", "AGENT_INSTRUCTIONS": "Sell hats."}.items():
        monkeypatch.setenv(name, value)
    found = await by_the_worker('{"instructions": "Sell shoes.", "greeting": "Hey.", "memory": false}')
    assert (found.instructions, found._greeting) == ("Sell shoes.", "Hey.")
    monkeypatch.delenv("AGENT_INSTRUCTIONS")
    found = await by_the_worker('{"name": "Otto"}')
    assert found.instructions == f"{INSTRUCTIONS.format(name='Otto')}\n\n{MEMORY_GUIDANCE}"
