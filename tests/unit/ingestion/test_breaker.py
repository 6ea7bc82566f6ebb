"""The breaker: when a provider is left alone, for how long, and who asks first when that is over."""

from __future__ import annotations

import asyncio
import logging

import pytest

from memory.errors import ProviderAnswerInvalid, ProviderFault, ProviderRefused, ProviderUnavailable
from memory.ingestion.breaker import Breaker
from memory.limits import BREAKER_FAILURES, BREAKER_OPEN_S, BREAKER_OPEN_S_MAX
from tests.support.ingestion import SteppingClock


class Provider:
    """Answers, or fails as it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return "answer"


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def breaker(clock: SteppingClock) -> Breaker:
    return Breaker("The LLM", clock, uniform=lambda low, _high: low)


def status(breaker: Breaker) -> str:
    return breaker.state.status


async def fail(breaker: Breaker, provider: Provider, error: Exception, times: int = 1) -> None:
    provider.error = error
    for _ in range(times):
        with pytest.raises(type(error)):
            await breaker.ask(provider)


async def test_answers_pass(breaker: Breaker, provider: Provider) -> None:
    assert await breaker.ask(provider) == "answer"
    assert status(breaker) == "closed"
    assert breaker.wait_s == 0


async def test_it_opens_after_so_many_failures_in_a_row(breaker: Breaker, provider: Provider) -> None:
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES - 1)
    assert status(breaker) == "closed"
    provider.error = None
    await breaker.ask(provider)
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES)
    assert status(breaker) == "open"
    assert breaker.wait_s == BREAKER_OPEN_S
    asked = provider.asked
    with pytest.raises(ProviderUnavailable) as turned_away:
        await breaker.ask(provider)
    assert provider.asked == asked
    assert turned_away.value.retry_after_s == BREAKER_OPEN_S


async def test_it_waits_longer_each_time_and_never_for_too_long(
    breaker: Breaker, provider: Provider, clock: SteppingClock
) -> None:
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES)
    waits = []
    for _ in range(12):
        waits.append(breaker.wait_s)
        clock.seconds += breaker.wait_s
        assert status(breaker) == "half_open"
        await fail(breaker, provider, ProviderUnavailable("away"))
    assert waits[:4] == [BREAKER_OPEN_S, 2 * BREAKER_OPEN_S, 4 * BREAKER_OPEN_S, 8 * BREAKER_OPEN_S]
    assert max(waits) == BREAKER_OPEN_S_MAX
    clock.seconds += breaker.wait_s
    provider.error = None
    assert await breaker.ask(provider) == "answer"
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES)
    assert breaker.wait_s == BREAKER_OPEN_S, "after an answer it begins anew"


async def test_half_open_one_asks_and_the_others_wait_for_the_answer(
    breaker: Breaker, provider: Provider, clock: SteppingClock
) -> None:
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES)
    clock.seconds += breaker.wait_s
    answering = asyncio.Event()

    async def slow() -> str:
        await answering.wait()
        return "answer"

    first = asyncio.create_task(breaker.ask(slow))
    await asyncio.sleep(0)
    with pytest.raises(ProviderUnavailable) as turned_away:
        await breaker.ask(provider)
    assert turned_away.value.retry_after_s
    answering.set()
    assert await first == "answer"
    provider.error = None
    assert await breaker.ask(provider) == "answer"


async def test_who_is_cancelled_while_the_answer_decides_leaves_it_to_the_next(
    breaker: Breaker, provider: Provider, clock: SteppingClock
) -> None:
    await fail(breaker, provider, ProviderUnavailable("away"), BREAKER_FAILURES)
    clock.seconds += breaker.wait_s
    first = asyncio.create_task(breaker.ask(asyncio.Event().wait))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    provider.error = None
    assert await breaker.ask(provider) == "answer"


async def test_questions_under_way_when_it_opens_count_once(breaker: Breaker, provider: Provider) -> None:
    failing = asyncio.Event()

    async def late() -> str:
        await failing.wait()
        raise ProviderUnavailable("away")

    questions = [asyncio.create_task(breaker.ask(late)) for _ in range(3 * BREAKER_FAILURES)]
    await asyncio.sleep(0)
    failing.set()
    await asyncio.gather(*questions, return_exceptions=True)
    assert breaker.wait_s == BREAKER_OPEN_S


@pytest.mark.case("L28")
async def test_L28_retry_after_counts_at_once(breaker: Breaker, provider: Provider, clock: SteppingClock) -> None:
    await fail(breaker, provider, ProviderUnavailable("limited", retry_after_s=20.0))
    assert breaker.wait_s == 20.0
    clock.seconds += 19.0
    with pytest.raises(ProviderUnavailable):
        await breaker.ask(provider)
    assert provider.asked == 1
    clock.seconds += 1.0
    provider.error = None
    assert await breaker.ask(provider) == "answer"


async def test_a_retry_after_of_a_year_is_not_believed(breaker: Breaker, provider: Provider) -> None:
    await fail(breaker, provider, ProviderUnavailable("limited", retry_after_s=3e7))
    assert breaker.wait_s == BREAKER_OPEN_S_MAX


@pytest.mark.case("L28")
async def test_L28_a_refused_key_is_the_operators_to_mend_and_no_storm(
    breaker: Breaker, provider: Provider, clock: SteppingClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await fail(breaker, provider, ProviderRefused("The endpoint refuses OPENAI_API_KEY (401)."))
        for _ in range(50):
            with pytest.raises(ProviderFault):
                await breaker.ask(provider)
    assert provider.asked == 1
    assert breaker.state.refused
    assert "OPENAI_API_KEY" in breaker.state.reason
    assert breaker.wait_s == BREAKER_OPEN_S_MAX
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    clock.seconds += BREAKER_OPEN_S_MAX
    provider.error = None
    await breaker.ask(provider)
    assert not breaker.state.refused


async def test_an_answer_that_makes_no_sense_is_an_answer(breaker: Breaker, provider: Provider) -> None:
    await fail(breaker, provider, ProviderAnswerInvalid("not JSON"), 2 * BREAKER_FAILURES)
    assert status(breaker) == "closed"


async def test_waits_differ_between_processes(clock: SteppingClock, provider: Provider) -> None:
    late = Breaker("The LLM", clock, uniform=lambda _low, high: high)
    await fail(late, provider, ProviderUnavailable("limited", retry_after_s=20.0))
    assert 20.0 < late.wait_s <= 30.0
