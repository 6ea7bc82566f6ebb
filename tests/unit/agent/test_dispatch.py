"""What a dispatch says of its call: what is right is taken, what is wrong is left out and told, without its content."""

from __future__ import annotations

import json
import logging

import pytest
from livekit.protocol import agent as protocol

from agent.dispatch import Rescue, configured
from agent.settings import Configuration, load


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Configuration:
    monkeypatch.setenv("AGENT_NAME", "Ines")
    monkeypatch.setenv("AGENT_GREETING", "Hi.")
    return load()


def test_without_metadata_the_settings_hold(settings: Configuration) -> None:
    assert configured(settings, "") == settings
    assert configured(settings, "  ") == settings


def test_a_call_may_have_its_own(settings: Configuration) -> None:
    wanted = {
        "name": "Otto",
        "instructions": "Speak of the weather.",
        "greeting": "off",
        "voice": "alto",
        "language": "es",
    }
    found = configured(settings, json.dumps(wanted)).agent
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert not found.greets


def test_what_is_not_said_stays(settings: Configuration) -> None:
    found = configured(settings, '{"language": "es"}').agent
    assert (found.name, found.greeting, found.language) == ("Ines", "Hi.", "es")


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ('{"name": 7}', "name"),
        ('{"name": ""}', "name"),
        ('{"greeting": "%s"}' % ("secret" * 1_000), "greeting"),
        ('{"voice": ["secret"]}', "voice"),
        ('{"memory": "secret"}', "memory"),
    ],
)
def test_what_is_wrong_is_left_out_and_told(
    settings: Configuration, metadata: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert configured(settings, metadata) == settings
    assert f"{key} of the job's metadata is left out" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("metadata", ["secret", "[1]", '"secret"', "7", "[" * 100_000, "{"])
def test_metadata_that_are_no_object_are_somebody_elses(
    settings: Configuration, metadata: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert configured(settings, metadata) == settings
    assert "no JSON object" in caplog.text
    assert "secret" not in caplog.text


def test_keys_of_others_are_told_by_name(settings: Configuration, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert configured(settings, '{"greting": "secret", "user_id": "ana", "phone": "+15105550123"}') == settings
    assert "greting" in caplog.text
    for private in ("secret", "ana", "5105550123", "user_id"):
        assert private not in caplog.text


@pytest.mark.parametrize(
    ("enabled", "wanted", "remembers"),
    [("true", "false", False), ("true", "true", True), ("false", "true", False), ("false", "false", False)],
)
def test_memory_can_be_switched_off_for_a_call_and_not_on(
    enabled: str, wanted: str, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_ENABLED", enabled)
    assert configured(load(), f'{{"memory": {wanted}}}').memory.enabled is remembers


def test_a_rescue_travels_with_its_dispatch() -> None:
    rescue = Rescue("AJ_dead", 2)
    assert Rescue.of(protocol.Job(attributes=rescue.attributes())) == rescue


@pytest.mark.parametrize("attributes", [{}, {"agent.rescue.job": "AJ_1"}, {"agent.rescue.count": "2"}])
@pytest.mark.parametrize("more", [{}, {"agent.rescue.count": "-1"}, {"agent.rescue.count": "many"}])
def test_what_is_no_rescue_is_none(attributes: dict[str, str], more: dict[str, str]) -> None:
    assert Rescue.of(protocol.Job(attributes={**attributes, **more})) is None
