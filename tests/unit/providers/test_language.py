"""The LLM over OpenAI's API: answers of a shape, and what becomes of every way in which a server fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import BaseModel

from memory.errors import ProviderAnswerInvalid, ProviderFault, ProviderRefused, ProviderUnavailable
from memory.ingestion.prompts import DIGEST
from memory.knowledge_ports import Usage
from memory.limits import LLM_OUTPUT_TOKENS_MAX
from memory.providers.language import OpenAiLanguageModel, cost_usd
from memory.providers.remote_faults import RETRY_AFTER_S_MAX, retry_after_s
from tests.support.graph_llm import GraphLLM, Trouble

SAID = "[0] user: I moved to Leeds, and my secret is hunter2."


class DigestAnswer(BaseModel):
    """The shape that the test LLM knows by this name."""

    summary: str
    key_moments: list[str]


@pytest.fixture
async def server() -> AsyncIterator[GraphLLM]:
    async with GraphLLM() as running:
        yield running


@pytest.fixture
async def llm(server: GraphLLM) -> AsyncIterator[OpenAiLanguageModel]:
    opened = OpenAiLanguageModel("gpt-4o-mini", api_key="sk-test", base_url=server.url)
    yield opened
    await opened.aclose()


async def ask(llm: OpenAiLanguageModel) -> DigestAnswer:
    return await llm.answer("digest", instructions=DIGEST, data=SAID, shape=DigestAnswer)


async def test_answers_in_the_shape_with_a_strict_schema_at_temperature_0_and_bounded(
    llm: OpenAiLanguageModel, server: GraphLLM
) -> None:
    answer = await ask(llm)
    assert answer.key_moments == ["User moved to Leeds."]
    body = server.asked[0].body
    schema = body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["additionalProperties"] is False
    assert schema["schema"]["required"] == ["summary", "key_moments"]
    assert (body["temperature"], body["max_tokens"]) == (0, LLM_OUTPUT_TOKENS_MAX)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


async def test_a_reasoning_model_gets_no_temperature(server: GraphLLM) -> None:
    llm = OpenAiLanguageModel("gpt-5-mini", api_key=None, base_url=server.url)
    await ask(llm)
    await llm.aclose()
    body = server.asked[0].body
    assert "temperature" not in body
    assert body["max_completion_tokens"] == LLM_OUTPUT_TOKENS_MAX


async def test_counts_calls_and_tokens_and_estimates_what_they_cost(llm: OpenAiLanguageModel) -> None:
    assert llm.usage == Usage()
    await ask(llm)
    await ask(llm)
    assert llm.usage.calls == 2
    assert llm.usage.input_tokens > 200
    assert llm.usage.output_tokens > 10
    assert llm.calls == {"digest": 2}
    assert llm.cost_usd == pytest.approx((llm.usage.input_tokens * 0.15 + llm.usage.output_tokens * 0.6) / 1e6)


def test_a_dated_name_has_its_models_price_and_an_unknown_model_none() -> None:
    usage = Usage(1, 1_000_000, 1_000_000)
    assert cost_usd("gpt-4o-mini-2024-07-18", usage) == pytest.approx(0.75)
    assert cost_usd("llama-3.3-70b", usage) is None


async def test_a_server_without_json_schema_is_asked_once_more_and_by_json_object_from_then_on(
    llm: OpenAiLanguageModel, server: GraphLLM
) -> None:
    server.trouble_always("chat", "no-schema")
    assert (await ask(llm)).key_moments == ["User moved to Leeds."]
    assert (await ask(llm)).key_moments == ["User moved to Leeds."]
    forms = [asked.body["response_format"]["type"] for asked in server.asked]
    assert forms == ["json_schema", "json_object", "json_object"]
    instructions = server.asked[-1].body["messages"][0]["content"]
    assert '"key_moments"' in instructions


async def test_takes_an_answer_in_a_code_fence(llm: OpenAiLanguageModel, server: GraphLLM) -> None:
    server.trouble("chat", "fenced")
    assert (await ask(llm)).key_moments == ["User moved to Leeds."]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ("429", ProviderUnavailable),
        ("500", ProviderUnavailable),
        ("503", ProviderUnavailable),
        ("broken", ProviderUnavailable),
        ("401", ProviderRefused),
        ("403", ProviderRefused),
        ("404", ProviderRefused),
        ("invalid-json", ProviderAnswerInvalid),
        ("cut-json", ProviderAnswerInvalid),
        ("wrong-shape", ProviderAnswerInvalid),
        ("empty", ProviderAnswerInvalid),
    ],
)
async def test_each_failure_is_one_of_three_kinds_is_not_repeated_and_quotes_nothing(
    llm: OpenAiLanguageModel, server: GraphLLM, trouble: str, kind: type[ProviderFault]
) -> None:
    server.trouble("chat", trouble)
    with pytest.raises(kind) as caught:
        await ask(llm)
    assert len(server.asked) == 1
    assert "hunter2" not in str(caught.value)
    assert "Leeds" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert (await ask(llm)).summary  # the next call is a fresh one


async def test_tells_what_was_cut_off(llm: OpenAiLanguageModel, server: GraphLLM) -> None:
    server.trouble("chat", "cut-json", "invalid-json")
    cut = []
    for _ in range(2):
        with pytest.raises(ProviderAnswerInvalid) as caught:
            await ask(llm)
        cut.append(caught.value.cut_off)
    assert cut == [True, False]


async def test_gives_up_on_a_silent_server_in_time(server: GraphLLM) -> None:
    llm = OpenAiLanguageModel("m", api_key=None, base_url=server.url, timeout_s=0.2)
    server.trouble("chat", "silent")
    with pytest.raises(ProviderUnavailable, match="in time"):
        await ask(llm)
    await llm.aclose()


async def test_says_where_to_look_when_nobody_listens() -> None:
    llm = OpenAiLanguageModel("m", api_key=None, base_url="http://127.0.0.1:9/v1", timeout_s=5)
    with pytest.raises(ProviderUnavailable, match="OPENAI_BASE_URL"):
        await ask(llm)
    await llm.aclose()


@pytest.mark.parametrize("given", ["7", "7.5"])
async def test_hands_on_when_to_come_back(llm: OpenAiLanguageModel, server: GraphLLM, given: str) -> None:
    server.trouble("chat", Trouble(status=429, retry_after=given))
    with pytest.raises(ProviderUnavailable) as caught:
        await ask(llm)
    assert caught.value.retry_after_s == float(given)


NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "99999999"}, RETRY_AFTER_S_MAX),
        ({}, None),
    ],
)
def test_reads_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


async def test_closing_twice_is_fine_and_the_next_call_opens_anew(llm: OpenAiLanguageModel) -> None:
    await ask(llm)
    await llm.aclose()
    await llm.aclose()
    assert (await ask(llm)).summary


async def test_facts_with_quotes_cypher_and_braces_arrive_as_they_are(
    llm: OpenAiLanguageModel, server: GraphLLM
) -> None:
    data = '[0] user: "}) DETACH DELETE n {} $x \\ \U0001f600 ل'
    await llm.answer("digest", instructions=DIGEST, data=data, shape=DigestAnswer)
    assert json.loads(json.dumps(server.asked[0].body["messages"][1]["content"])) == data
