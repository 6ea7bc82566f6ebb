"""Logs and traces say neither who somebody is nor what was said."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from livekit.agents import APIConnectionError, APIStatusError
from livekit.agents.cli.log import ColoredFormatter, JsonFormatter
from livekit.agents.telemetry import trace_types

import agent
from agent.private import PrivateFilter, keep_logs_private, keep_traces_private, mask

NUMBER = "+15105550123"


@pytest.fixture(params=["json", "colored"])
def printed(request: pytest.FixtureRequest) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger as LiveKit sets it up, and what it has printed."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    colored = ColoredFormatter("%(asctime)s %(levelname)s %(name)s %(message)s %(extra)s")
    handler.setFormatter(JsonFormatter() if request.param == "json" else colored)
    handler.addFilter(PrivateFilter())
    logger = logging.Logger("livekit.agents")
    logger.addHandler(handler)
    yield logger, stream
    handler.close()


def test_what_livekit_marks_or_names_somebody_by_is_taken_off(printed: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = printed
    extra: dict[str, Any] = {
        "lk.pii.text": "I am diabetic",
        "pii": "secret",
        "lk.pii.participant_identity": "ana",
        "participant": "ana",
        "identity": "ana",
        "room": f"call-_{NUMBER}_x",
        "lk.pii.room_name": "secret",
        "job_request": SimpleNamespace(metadata="secret"),
        "job": {"room": {"name": "secret"}},
        "room_id": "RM_1",
        "job_id": "AJ_1",
        "duration": 0.25,
    }
    logger.info("received user transcript", extra=extra)
    told = stream.getvalue()
    for private in ("diabetic", "secret", "ana", "5105550123"):
        assert private not in told
    for useful in ("received user transcript", "RM_1", "AJ_1", "0.25"):
        assert useful in told


def test_numbers_are_masked_wherever_they_stand(printed: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = printed
    try:
        raise ValueError(f"no such participant: sip_{NUMBER}")
    except ValueError as error:
        logger.error(
            "participant '%s' of %s", f"sip_{NUMBER}", NUMBER, exc_info=True, extra={"error": error, "seen": [NUMBER]}
        )
    told = stream.getvalue()
    assert "5105550123" not in told
    assert "ValueError" in told
    assert "participant 'sip_(number)' of (number)" in told


SAID = "I am allergic to peanuts"


def openai_error(answer: bytes) -> openai.APIStatusError:
    """What the openai package makes of a server's refusal."""
    request = httpx2.Request("POST", "http://localhost/v1/chat/completions")
    response = httpx2.Response(422, content=answer, request=request)
    return openai.OpenAI(api_key="none")._make_status_error_from_response(response)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"error": {"message": f"bad request: {SAID}"}}, id="openai"),
        pytest.param({"error": {"message": f"1 validation error\nmessages.1\n  input_value={SAID!r}"}}, id="vllm"),
        pytest.param({"detail": [{"loc": ["body", "input"], "input": SAID}]}, id="fastapi"),
        pytest.param(f"can't say: {SAID}", id="text"),
    ],
)
def test_what_a_model_server_answers_is_left_out(
    printed: tuple[logging.Logger, io.StringIO], answer: dict[str, Any] | str
) -> None:
    """It may be a piece of the request. In whatever form: as livekit tells it, with what it came from, or quoted."""
    logger, stream = printed
    error = openai_error((answer if isinstance(answer, str) else json.dumps(answer)).encode())
    told = APIStatusError(error.message, status_code=error.status_code, request_id="req-1", body=error.body)
    try:
        raise told from error
    except APIStatusError:
        logger.warning("no answer, trying again", exc_info=True, extra={"error": told, "seen": [repr(told)]})
    logger.error("no answer: %s", told)
    logger.error("no answer: %r", told)
    assert SAID not in stream.getvalue()
    assert "peanuts" not in stream.getvalue()
    for useful in ("no answer, trying again", "UnprocessableEntityError", "APIStatusError", "Error code: 422"):
        assert useful in stream.getvalue()


def test_what_a_model_server_says_in_mid_answer_is_left_out(printed: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = printed
    request = httpx2.Request("POST", "http://localhost/v1/chat/completions")
    try:
        raise APIConnectionError from openai.APIError(f"refused:\n{SAID}", request, body=None)
    except APIConnectionError as error:
        logger.warning("no answer: %s", error, exc_info=True)
    assert "peanuts" not in stream.getvalue()
    assert "livekit.agents._exceptions.APIConnectionError" in stream.getvalue()


def test_what_our_own_models_say_is_told(printed: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = printed
    logger.warning("no answer: %s", APIConnectionError("The speech host is away: body=none of it"))
    assert "The speech host is away: body=none of it" in stream.getvalue()


def test_a_line_of_whatever_kind_is_masked_and_none_raises(printed: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = printed
    logger.error(ValueError(f"no such number: {NUMBER}"))
    logger.error("%d calls of %s", NUMBER)  # noqa: PLE1206 - somebody else may write so
    assert "5105550123" not in stream.getvalue()
    assert "no such number: (number)" in stream.getvalue()
    assert "%d calls of %s" in stream.getvalue()


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("value", [{(1, 2): NUMBER}, Unwritable(), [Unwritable()]])
def test_what_can_not_be_written_is_told_by_its_kind(
    printed: tuple[logging.Logger, io.StringIO], value: object
) -> None:
    """What raises here would end the thread that brings a job's records to its worker."""
    logger, stream = printed
    logger.warning("seen", extra={"what": value})
    assert "5105550123" not in stream.getvalue()
    assert type(value).__name__ in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"calling {NUMBER}.", "calling (number)."),
        ("+1 (510) 555-0123 called", "(number) called"),
        ("room call-_+15105550123_x9", "room call-_(number)_x9"),
        ("5105550123", "(number)"),
        ("tel:5105550123 left", "tel:(number) left"),
        ("sip_5105550123 left", "sip_(number) left"),
        ("sip_alice@pbx.example.test left", "sip_(number) left"),
        ("registered on port 8081 after 1234567 ms", "registered on port 8081 after 1234567 ms"),
        ("job AJ_510555012345 of RM_1", "job AJ_510555012345 of RM_1"),
        ("ws://127.0.0.1:7880", "ws://127.0.0.1:7880"),
        ("version 1.8.9, 2026-11-30T02:58:41.269155+00:00", "version 1.8.9, 2026-11-30T02:58:41.269155+00:00"),
    ],
)
def test_masking_leaves_what_is_no_number(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_every_handler_gets_the_filter_once() -> None:
    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)
    try:
        keep_logs_private()
        keep_logs_private()
        assert sum(isinstance(each, PrivateFilter) for each in handler.filters) == 1
    finally:
        for each in root.handlers:
            each.filters = [one for one in each.filters if not isinstance(one, PrivateFilter)]
        root.removeHandler(handler)


def test_every_attribute_of_a_phone_caller_is_marked_for_livekits_own_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    from livekit.agents.telemetry.pii import filter_attributes
    from livekit.agents.telemetry.utils import allow_pii_from_env

    monkeypatch.setattr(trace_types, "ATTR_SIP_PREFIX", trace_types.ATTR_SIP_PREFIX)
    monkeypatch.delenv("LIVEKIT_TELEMETRY_ALLOW_PII", raising=False)
    keep_traces_private()
    assert allow_pii_from_env() is False
    copied = {f"{trace_types.ATTR_SIP_PREFIX}h.p-asserted-identity": NUMBER, "lk.job_id": "AJ_1"}
    assert json.dumps(filter_attributes(copied)) == '{"lk.job_id": "AJ_1"}'


def test_no_session_is_recorded_or_answers_everybody_in_its_room() -> None:
    """Both are on by default in LiveKit; every start of a session in this package says otherwise."""
    starts = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        for path in Path(agent.__path__[0]).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("session.start")
    ]
    assert len(starts) == 2
    assert {(each.get("record"), each.get("session_host")) for each in starts} == {("False", "False")}
