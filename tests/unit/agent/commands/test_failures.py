"""Why a model gave no answer is told with what to do, and without what its server sent."""

from __future__ import annotations

import json

import pytest
from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError

from agent.commands.failures import why
from agent.settings import AgentSettings

SERVER = "http://127.0.0.1:8000/v1"
SECRET = "I am allergic to peanuts"


def settings(**fields: object) -> AgentSettings:
    # As a user may have it: with a password in the address, which is nobody's to see.
    found = {"openai_base_url": "http://me:pass@127.0.0.1:8000/v1", "openai_api_key": "sk-1", **fields}
    return AgentSettings.model_validate(found)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def refused(status: int) -> Exception:
    return APIStatusError(f"Error code: {status} - {SECRET}", status_code=status, body={"input": SECRET})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused(401), f"{SERVER} refuses the key (401). Set OPENAI_API_KEY to a valid key."),
        (refused(403), "refuses the key (403)"),
        (refused(404), "no model gpt-4.1-mini, or no such path (404). Set AGENT_LLM_MODEL. Check OPENAI_BASE_URL"),
        (refused(422), "refuses the request (422). Check AGENT_LLM_MODEL"),
        (caused(APIConnectionError("after 4 attempts"), refused(429)), "(429): a rate limit, or no credit left"),
        (caused(APIConnectionError("after 4 attempts"), refused(500)), "failed (500). Try again later"),
        (APITimeoutError(), "did not answer in time"),
        (caused(APIConnectionError("after 4 attempts"), APITimeoutError()), "did not answer in time"),
        (
            caused(APIConnectionError(), caused(ConnectionError(SECRET), ConnectionRefusedError(SECRET))),
            "can't be reached, or broke off (ConnectionRefusedError). Check OPENAI_BASE_URL",
        ),
        (caused(APIConnectionError(), json.JSONDecodeError("Expecting value", SECRET, 0)), "sent what is no answer"),
        (KeyError(SECRET), "can't be reached, or broke off (KeyError)"),
    ],
)
def test_each_failure_is_told_with_its_fix_and_no_content(error: Exception, expected: str) -> None:
    told = why(error, "llm", settings())
    assert told.startswith(SERVER)
    assert expected in told
    assert SECRET not in told


def test_a_server_that_wants_a_key_where_there_is_none() -> None:
    assert "Set OPENAI_API_KEY: this server needs one." in why(refused(401), "stt", settings(openai_api_key=None))


def test_what_belongs_to_livekit_is_told_as_that() -> None:
    chosen = settings(tts="livekit", livekit_api_key="k", livekit_api_secret="s")
    told = why(refused(401), "tts", chosen)
    assert told == "LiveKit Inference refuses the key (401). Set LIVEKIT_API_KEY and LIVEKIT_API_SECRET to valid ones."
    assert "OPENAI" not in why(APIConnectionError(), "tts", chosen)


def test_the_local_models_own_words_are_kept_and_nobody_elses() -> None:
    assert why(APIError("Local speech needs hibari. Run: pip"), "tts", settings(tts="local")).startswith("Local speech")
    assert why(KeyError(SECRET), "llm", settings(llm="local")).startswith("KeyError")


def test_causes_that_go_in_circles_end() -> None:
    first, second = APIConnectionError(), APIConnectionError()
    first.__cause__, second.__cause__ = second, first
    assert "can't be reached" in why(first, "llm", settings())
