"""A conversation within its tokens, whatever happens; and what stays whole where it can."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory.context.budget import Message, count_tokens, estimate_tokens
from memory.context.truncation import SUMMARY_START, summarize_with, truncate_context
from memory.models import MemoryEntry

Messages = list[dict[str, Any]]


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def conversation(turns: int, words: int = 40) -> Messages:
    middle = [say(("user", "assistant")[i % 2], f"turn {i} " + "word " * words) for i in range(turns)]
    return [say("system", "You are kind."), *middle]


async def told(messages: Sequence[Message]) -> str:
    return f"{len(messages)} turns were about words"


async def never(messages: Sequence[Message]) -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def broken(messages: Sequence[Message]) -> str:
    raise ZeroDivisionError("user words in an error")


async def endless(messages: Sequence[Message]) -> str:
    return "so much\nto say " * 10_000


async def blank(messages: Sequence[Message]) -> str:
    return " \n"


SUMMARIZERS = st.sampled_from([None, told, broken, endless, blank])
CONTENT = st.one_of(st.text(max_size=300), st.integers(0, 3_000).map(lambda n: "word " * n), st.none())
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT})
LENGTHS = st.integers(-5, 3_000)


@given(st.lists(MESSAGE, max_size=9), LENGTHS, SUMMARIZERS)
@example([say("user", "word " * 3_000)], 100, None)
@example([say("system", "word " * 3_000), say("user", "hi")], 50, told)
@example([say("user", None)] * 5, 3, told)  # type: ignore[arg-type]
async def test_never_more_than_the_bound_and_never_a_change_of_the_input(
    messages: Messages, max_tokens: int, summarize: Any
) -> None:
    before = copy.deepcopy(messages)
    result = await truncate_context(messages, max_tokens, summarize=summarize)
    assert count_tokens(result) <= max(max_tokens, 0)
    assert messages == before
    for message in result:
        message["content"] = "changed"
    assert messages == before


@given(st.lists(MESSAGE, max_size=9), LENGTHS, SUMMARIZERS)
async def test_the_bound_holds_by_any_counter(messages: Messages, max_tokens: int, summarize: Any) -> None:
    def odd(text: str) -> int:  # neither monotone nor additive
        return (len(text) * 7) % 31 + len(text) // 3

    result = await truncate_context(messages, max_tokens, summarize=summarize, count=odd)
    assert count_tokens(result, odd) <= max(max_tokens, 0)


@given(st.integers(0, 12), st.integers(30, 2_000), SUMMARIZERS)
async def test_first_and_last_three_stay_whole_where_they_fit(turns: int, max_tokens: int, summarize: Any) -> None:
    messages = conversation(turns)
    result = await truncate_context(messages, max_tokens, summarize=summarize)
    protected = messages[:1] + messages[1:][-3:]
    if count_tokens(messages) <= max_tokens:
        assert result == messages
    elif count_tokens(protected) <= max_tokens:
        rest = [message for message in result if not str(message["content"]).startswith(SUMMARY_START)]
        assert rest == protected
        assert len(result) - len(rest) <= 1
        assert result[0] == messages[0]
        assert result[-3:] == messages[-3:] or turns < 3


@pytest.mark.parametrize("turns", range(6))
async def test_no_message_comes_twice_in_a_short_conversation(turns: int) -> None:
    messages = conversation(turns)
    result = await truncate_context(messages, count_tokens(messages) - 1, summarize=told)
    contents = [message["content"] for message in result]
    assert len(contents) == len(set(contents))


async def test_the_middle_becomes_one_summary_in_its_place() -> None:
    messages = conversation(20)
    result = await truncate_context(messages, 400, summarize=told)
    assert result == [
        messages[0],
        say("user", "[Previous conversation summary: 17 turns were about words]"),
        *messages[-3:],
    ]


async def test_a_long_summary_is_cut_to_what_is_left() -> None:
    result = await truncate_context(conversation(20), 400, summarize=endless)
    summary = result[1]["content"]
    assert summary.startswith("[Previous conversation summary: so much to say")
    assert summary.endswith("…]")
    assert "\n" not in summary
    assert 390 <= count_tokens(result) <= 400


@pytest.mark.parametrize("summarize", [None, broken, blank])
async def test_without_a_summary_the_middle_is_dropped(summarize: Any, caplog: pytest.LogCaptureFixture) -> None:
    messages = conversation(20)
    result = await truncate_context(messages, 400, summarize=summarize)
    assert result == messages[:1] + messages[-3:]
    assert "user words" not in caplog.text


@pytest.mark.promise("P-silent")
async def test_P_silent_a_slow_summary_is_not_waited_for() -> None:
    messages = conversation(20)
    async with asyncio.timeout(5):
        result = await truncate_context(messages, 400, summarize=never, timeout_s=0.001)
    assert result == messages[:1] + messages[-3:]


async def test_a_cancelled_caller_is_cancelled() -> None:
    task = asyncio.create_task(truncate_context(conversation(20), 400, summarize=never, timeout_s=60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_where_the_protected_do_not_fit_the_long_ones_are_cut_and_the_short_stay() -> None:
    question = "and what is 7 times 6?"
    messages = [say("system", "Be kind."), say("user", "x " * 5_000), say("assistant", "No."), say("user", question)]
    result = await truncate_context(messages, 200, summarize=told)
    assert [message["role"] for message in result] == ["system", "user", "assistant", "user"]
    assert (result[0], result[2], result[3]) == (messages[0], messages[2], messages[3])
    assert "…" in result[1]["content"]
    assert 180 <= count_tokens(result) <= 200


async def test_the_newest_message_is_the_last_to_go() -> None:
    messages = [
        say("system", "s " * 900),
        say("user", "a " * 900),
        say("assistant", "b " * 900),
        say("user", "c " * 900),
    ]
    kept = [[m["role"] for m in await truncate_context(messages, limit)] for limit in (60, 40, 25, 14, 5)]
    assert kept == [
        ["system", "user", "assistant", "user"],
        ["system", "assistant", "user"],
        ["system", "user"],
        ["user"],
        [],
    ]
    last = (await truncate_context(messages, 14))[0]["content"]
    assert last.startswith("c")


async def test_a_summarizer_of_entries_sees_roles_and_words() -> None:
    class Listing:
        async def summarize(self, entries: Sequence[MemoryEntry]) -> str:
            return " ".join(f"{entry.role}:{entry.content}" for entry in entries)

    summarize = summarize_with(Listing())
    odd: list[Message] = [say("tool", "x"), say("user", " "), {"role": "user", "content": [1]}, {"content": "y"}]
    assert await summarize([say("user", "a"), say("assistant", "b"), *odd]) == "user:a assistant:b"


async def test_a_huge_message_is_cut_without_looking_at_all_of_it_again_and_again() -> None:
    calls = 0

    def counting(text: str) -> int:
        nonlocal calls
        calls += len(text)
        return estimate_tokens(text)

    size = 1_000_000
    await truncate_context([say("user", "x" * size)], 100, count=counting)
    assert calls < 20 * size
