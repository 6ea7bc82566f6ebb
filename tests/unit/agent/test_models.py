"""What listens, thinks and talks is what the settings say, and is announced as what it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from livekit.agents import utils

from agent.endings import FINISHED_S, UNFINISHED_S
from agent.local.models import PACKAGES
from agent.local.stt import MORE_S, LocalSTT
from agent.models import NO_LLM, PAUSE_S, Models, ModelUnavailable, announcement, build, describe, new_session
from agent.settings import load

OPENAI = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
LIVEKIT = {
    "LIVEKIT_URL": "wss://mine.livekit.cloud",
    "LIVEKIT_API_KEY": "key",
    "LIVEKIT_API_SECRET": "secret-of-32-characters-or-more--",
}
Build = Callable[..., Models]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Build:
    def make(environment: dict[str, str], *, voice: bool = True) -> Models:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return build(load().agent, data_dir, voice=voice)

    return make


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (OPENAI, ["gpt-4o-mini-transcribe", "gpt-4.1-mini", "gpt-4o-mini-tts"]),
        ({"OPENAI_API_KEY": "sk-1", "AGENT_LLM_MODEL": "mine"}, ["gpt-4o-mini-transcribe", "mine", "gpt-4o-mini-tts"]),
        (LIVEKIT, ["deepgram/nova-3", "openai/gpt-4.1-mini", "cartesia/sonic-3"]),
        ({}, ["whisper-tiny.en", "extractive", "hibari-heart"]),
        ({**OPENAI, "AGENT_LLM": "local"}, ["gpt-4o-mini-transcribe", "extractive", "gpt-4o-mini-tts"]),
    ],
)
async def test_the_settings_choose(
    made: Build, require: Callable[..., None], environment: dict[str, str], expected: list[str]
) -> None:
    require(*PACKAGES, extra="local")
    async with utils.http_context.open():
        models = made(environment)
        assert models.stt is not None
        assert models.tts is not None
        assert [models.stt.model, models.llm.model, models.tts.model] == expected
        await models.aclose()


async def test_a_chat_needs_no_speech(made: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", lambda: ["faster_whisper"])
    models = made({}, voice=False)
    assert models.stt is None
    assert models.tts is None
    await models.aclose()


async def test_missing_speech_packages_are_named_with_the_way_to_install_them(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", lambda: ["faster_whisper"])
    with pytest.raises(ModelUnavailable, match=r"faster_whisper.*pip install .*\[local\].*OPENAI_API_KEY"):
        made({})


async def test_a_missing_plugin_is_named_with_the_way_to_install_it(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.__import__

    def without_plugin(name: str, *rest: Any, **named: Any) -> Any:
        if name == "livekit.plugins":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr("builtins.__import__", without_plugin)
    with pytest.raises(ModelUnavailable, match="pip install livekit-plugins-openai"):
        made(OPENAI)


async def test_one_that_fails_to_close_does_not_keep_the_others_open(made: Build) -> None:
    closed: list[str] = []
    models = made({}, voice=False)

    async def close() -> None:
        closed.append("first")

    async def fail() -> None:
        raise RuntimeError

    models.closers = [close, fail]
    await models.aclose()
    await models.aclose()
    assert closed == ["first"]


async def test_a_session_takes_no_deprecated_option(
    made: Build, require: Callable[..., None], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    require(*PACKAGES, extra="local")
    models = made({})
    session = new_session(models)
    assert session.stt is models.stt
    assert not [record for record in caplog.records if "deprecated" in record.getMessage()]
    assert not [warning for warning in recwarn if "livekit" in str(warning.filename)]
    await models.aclose()


async def test_a_turn_of_the_local_listener_outlasts_the_pauses_of_a_sentence(
    made: Build, require: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    require(*PACKAGES, extra="local")
    models = made({})
    assert isinstance(models.stt, LocalSTT)
    endings = new_session(models, room=True).options.turn_handling["endpointing"]
    assert (endings["min_delay"], endings["max_delay"]) == (FINISHED_S, UNFINISHED_S)
    assert models.stt.more_s == MORE_S
    assert new_session(models).options.turn_handling["endpointing"]["min_delay"] == PAUSE_S
    assert models.stt.more_s == 0  # the turn would end before the words are there
    assert PAUSE_S > 0.4 < UNFINISHED_S
    assert not caplog.records
    await models.aclose()


def test_a_thinker_that_is_no_llm_is_called_what_it_is() -> None:
    assert NO_LLM in announcement(load().agent, voice=True)
    assert describe(load().agent, voice=False) == {"llm": "local extractive"}


def test_a_model_is_announced_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    said = announcement(load().agent, voice=True)
    assert "thinking: openai gpt-4.1-mini" in said
    assert "sk-1" not in said
