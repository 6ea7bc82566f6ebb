"""The agent's settings: who does what, and wrong values all at once."""

from __future__ import annotations

import pytest

from agent.settings import PARTS, AgentSettings, Choice, Part, load
from memory.errors import SettingsError


def settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> AgentSettings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load().agent


def test_without_keys_everything_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch)
    assert [found.provider(part) for part in PARTS] == ["local"] * 3
    assert found.model("stt") == "whisper-tiny.en"


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "OPENAI_BASE_URL"])
def test_openai_is_taken_when_it_can_be_reached(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = settings(monkeypatch, **{name: "http://localhost:1234/v1"})
    assert [found.provider(part) for part in PARTS] == ["openai"] * 3
    assert found.model("llm") == "gpt-4.1-mini"


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("wss://mine.livekit.cloud", "livekit"),
        ("wss://mine.staging.livekit.cloud", "livekit"),
        ("ws://localhost:7880", "local"),
        ("wss://livekit.cloud.example.org", "local"),
        ("", "local"),
    ],
)
def test_livekit_is_taken_for_a_cloud_project_only(monkeypatch: pytest.MonkeyPatch, url: str, provider: str) -> None:
    found = settings(monkeypatch, LIVEKIT_URL=url, LIVEKIT_API_KEY="key", LIVEKIT_API_SECRET="secret")
    assert found.provider("llm") == provider


def test_openai_comes_before_livekit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(
        monkeypatch,
        OPENAI_API_KEY="k",
        LIVEKIT_URL="wss://mine.livekit.cloud",
        LIVEKIT_API_KEY="key",
        LIVEKIT_API_SECRET="secret",
    )
    assert found.provider("stt") == "openai"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("choice", ["openai", "livekit", "local"])
def test_a_choice_wins_over_auto(monkeypatch: pytest.MonkeyPatch, part: Part, choice: Choice) -> None:
    found = settings(
        monkeypatch,
        OPENAI_API_KEY="k",
        LIVEKIT_API_KEY="key",
        LIVEKIT_API_SECRET="secret",
        **{f"AGENT_{part.upper()}": choice},
    )
    assert found.provider(part) == choice


def test_a_model_is_chosen_by_name_but_not_for_local(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, OPENAI_API_KEY="k", AGENT_LLM_MODEL="gpt-9", AGENT_STT="local", AGENT_STT_MODEL="x")
    assert found.model("llm") == "gpt-9"
    assert found.model("stt") == "whisper-tiny.en"


def test_a_blank_value_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, OPENAI_API_KEY="", AGENT_LLM="", AGENT_GREETING="")
    assert found.provider("llm") == "local"
    assert found.greets


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_the_greeting_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert not settings(monkeypatch, AGENT_GREETING=value).greets


def test_wrong_values_of_agent_and_memory_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-not-to-be-shown"
    with pytest.raises(SettingsError) as caught:
        settings(
            monkeypatch, AGENT_STT="whisper", OPENAI_BASE_URL=secret, LIVEKIT_URL="mine", REDIS_PORT="x", AGENT_NAME=""
        )
    assert [line.split(":")[0] for line in caught.value.problems] == [
        "AGENT_STT",
        "OPENAI_BASE_URL",
        "LIVEKIT_URL",
        "REDIS_PORT",
    ]
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIVEKIT_URL", "ws://localhost:port"),
        ("LIVEKIT_URL", "ws://localhost:99999"),
        ("LIVEKIT_URL", "ws://local host"),
        ("OPENAI_BASE_URL", "http://localhost:port/v1"),
        ("OPENAI_BASE_URL", "http://localhost:0/v1"),
        ("OPENAI_BASE_URL", "http://[::1/v1"),
        ("OPENAI_BASE_URL", "localhost:1234/v1"),
    ],
)
def test_what_can_not_be_a_server_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(monkeypatch, **{name: value})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name}: must be a URL that starts with ")


@pytest.mark.parametrize(
    ("choice", "needed"), [("openai", "OPENAI_API_KEY"), ("livekit", "LIVEKIT_API_KEY and LIVEKIT_API_SECRET")]
)
def test_a_choice_without_its_keys_says_which(monkeypatch: pytest.MonkeyPatch, choice: str, needed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(monkeypatch, AGENT_LLM=choice, AGENT_TTS=choice)
    assert [line.split(":")[0] for line in caught.value.problems] == ["AGENT_LLM", "AGENT_TTS"]
    assert all(needed in line for line in caught.value.problems)


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, OPENAI_API_KEY="sk-1", LIVEKIT_API_SECRET="shh")
    assert "sk-1" not in repr(found)
    assert "shh" not in repr(found)


def test_memory_settings_can_be_given_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_ORG_ID", "theirs")
    assert load(org_id="ours").memory.org_id == "ours"


def test_every_setting_is_described() -> None:
    assert all(field.description for field in AgentSettings.model_fields.values())


@pytest.mark.parametrize("name", ["LANGUAGE", "NAME", "VOICE", "LLM", "STT", "GREETING", "INSTRUCTIONS"])
def test_a_variable_that_only_looks_like_a_field_is_not_the_agents(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = AgentSettings()
    monkeypatch.setenv(name, "local")
    assert AgentSettings() == plain
