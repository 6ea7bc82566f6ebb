"""A session in short: by the LLM, else by quoting; bounded, and without noise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from memory.errors import ProviderUnavailable
from memory.ingestion.digests import (
    EXTRACTIVE,
    MOMENT_CHARS_MAX,
    SUMMARY_CHARS_MAX,
    Digest,
    DigestAnswer,
    digest,
)
from memory.limits import KEY_MOMENTS_MAX
from memory.models import MemoryEntry
from memory.providers.language import OpenAiLanguageModel
from memory.providers.summarizer import ExtractiveSummarizer
from tests.support.graph_llm import GraphLLM
from tests.support.heard import NOW
from tests.support.scripted_answers import Scripted

EXTRACT = ExtractiveSummarizer()


def said(*lines: str, **fields: Any) -> list[MemoryEntry]:
    roles = {"u": "user", "a": "assistant"}
    return [
        MemoryEntry(
            role=roles[line[0]],
            content=line[3:],
            mode="voice",
            timestamp=NOW + timedelta(minutes=place),
            **fields,
        )
        for place, line in enumerate(lines)
    ]


CALL = said("a: Hello!", "u: I moved to Leeds. My order 4471 is late.", "a: I am sorry, I will look into it.")


async def test_the_llm_tells_it_in_one_call() -> None:
    async with GraphLLM() as server:
        llm = OpenAiLanguageModel("gpt-4o-mini", api_key=None, base_url=server.url)
        made = await digest(CALL, llm, extractive=EXTRACT)
        await llm.aclose()
        assert server.stats.calls == {"DigestAnswer": 1}
    assert made == Digest(
        "User moved to Leeds. User's order 4471 is late.",
        ("User moved to Leeds.", "User's order 4471 is late."),
        "gpt-4o-mini",
    )


async def test_without_an_llm_it_quotes() -> None:
    made = await digest(CALL, None, extractive=EXTRACT)
    assert made.made_by == EXTRACTIVE
    assert "order 4471 is late" in made.summary
    assert any("4471" in moment for moment in made.key_moments)
    assert all("look into it" not in moment for moment in made.key_moments)


@pytest.mark.parametrize("lines", [(), ("u: um", "u: [noise]"), ("a: Hello?", "a: Anybody there?")])
async def test_a_session_in_which_the_user_said_nothing_costs_no_call(lines: tuple[str, ...]) -> None:
    llm = Scripted()
    made = await digest(said(*lines), llm, extractive=EXTRACT)
    assert made.made_by == EXTRACTIVE
    assert not made.key_moments
    assert not llm.data


async def test_whatever_an_llm_says_is_bounded() -> None:
    answer = DigestAnswer(summary="s " * SUMMARY_CHARS_MAX, key_moments=["m" * 999, "", "  ", *"abcdefgh", "a"])
    made = await digest(CALL, Scripted(answer), extractive=EXTRACT)
    assert len(made.summary) <= SUMMARY_CHARS_MAX
    assert len(made.key_moments) == KEY_MOMENTS_MAX
    assert max(map(len, made.key_moments)) <= MOMENT_CHARS_MAX


async def test_a_long_session_is_told_by_its_newest_turns() -> None:
    llm = Scripted(DigestAnswer(summary="x", key_moments=[]))
    long = said(*[f"u: {number} {'word ' * 2_000}" for number in range(20)])
    await digest(long, llm, extractive=EXTRACT)
    assert "] user: 19 word" in llm.data[0]
    assert "] user: 0 word" not in llm.data[0]
    assert len(llm.data[0]) < 60_000


async def test_an_llm_that_is_away_is_the_callers_to_wait_for() -> None:
    with pytest.raises(ProviderUnavailable):
        await digest(CALL, Scripted(ProviderUnavailable("away")), extractive=EXTRACT)
