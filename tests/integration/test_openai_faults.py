"""What goes wrong behind OpenAI's API costs an answer at most: nothing said is lost, and nothing is stored twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from livekit.agents import CloseReason

from agent.local.models import PACKAGES
from memory.stores.inmemory import InMemorySessionStore
from tests.support.openai_faults import BROKEN, GARBLED, LOGIN, RATE_LIMITED, SILENT, UNAUTHORIZED, Fault, cut, label
from tests.support.openai_server import Endpoint, OpenAIServer
from tests.support.openai_talk import Talk, hurry, speech, talk, use, user_blocks
from tests.support.sessions import HandClock, ScriptedRetriever, backend_of, passage
from tests.support.voice import eventually

SAID, ANSWER = "My dog is called Biscuit.", 'Noted: "My dog is called Biscuit."'
NEXT, NEXT_ANSWER = "I live in Oslo.", 'Noted: "I live in Oslo."'
BOUND_S = 20.0
ATTEMPTS = 4  # livekit's own: what can be tried again is, three times

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def set_up(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("aiohttp", extra="server")
    require(*PACKAGES, extra="local")
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "5000")  # as long as a busy machine takes
    hurry(monkeypatch)


@pytest.fixture
async def server(set_up: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        use(server, monkeypatch)
        yield server


@pytest.fixture
def retriever() -> ScriptedRetriever:
    """Recalls the same in every turn."""
    return ScriptedRetriever([passage("I am allergic to peanuts.")])


@pytest.fixture
async def call(server: OpenAIServer, retriever: ScriptedRetriever) -> AsyncIterator[Talk]:
    async with talk(server, backend_of(InMemorySessionStore(HandClock()), retriever)) as call:
        yield call


async def goes_on(call: Talk, *before: tuple[str, str]) -> None:
    """The next turn is as if nothing had happened."""
    assert await call.type(NEXT) == NEXT_ANSWER
    assert await call.stored() == [*before, ("user", NEXT), ("assistant", NEXT_ANSWER)]
    heard = [text for role, text in before if role == "user"]
    assert call.server.chats[-1].texts("user")[:-1] == heard
    for request in call.server.chats:
        assert user_blocks(request)[-1] == sum(user_blocks(request)) == 1
    assert not call.closed


@pytest.mark.case("L14")
@pytest.mark.parametrize("fault", [RATE_LIMITED, BROKEN, GARBLED, cut(0), cut(1)], ids=label)
async def test_L14_a_thinker_that_answers_at_the_third_attempt_is_asked_the_same_and_stored_once(
    call: Talk, retriever: ScriptedRetriever, fault: Fault
) -> None:
    call.server.fail("chat", fault, fault)
    assert await call.type(SAID) == ANSWER
    assert len({request.last_user for request in call.server.chats}) == 1
    assert len(call.server.chats) == 3
    assert retriever.asked == [SAID]
    assert len(call.server.asked("speech")) == 1
    await goes_on(call, ("user", SAID), ("assistant", ANSWER))


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [(UNAUTHORIZED, 1), (LOGIN, 1), *((fault, ATTEMPTS) for fault in (RATE_LIMITED, BROKEN, GARBLED, cut(1)))],
    ids=label,
)
async def test_a_thinker_that_fails_for_good_costs_the_answer_and_not_what_was_said(
    call: Talk, retriever: ScriptedRetriever, fault: Fault, attempts: int
) -> None:
    call.server.fail_always("chat", fault)
    assert await call.type(SAID) == ""
    assert len(call.server.chats) == attempts
    assert await call.stored() == [("user", SAID)]
    call.server.mend("chat")
    await goes_on(call, ("user", SAID))
    assert retriever.asked == [SAID, NEXT]


async def test_a_thinker_that_never_answers_is_given_up_and_asked_again_in_the_next_turn(
    server: OpenAIServer, retriever: ScriptedRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, timeout_s=1.0)
    async with talk(server, backend_of(InMemorySessionStore(HandClock()), retriever)) as call:
        server.fail("chat", *[SILENT] * ATTEMPTS)
        assert await call.type(SAID) == ""
        assert [event.error.recoverable for event in call.errors] == [True, True, True, False]
        await goes_on(call, ("user", SAID))


@pytest.mark.promise("P-durable")
async def test_P_durable_while_the_first_token_is_awaited_what_was_said_is_stored(call: Talk) -> None:
    hold = asyncio.Event()
    call.server.fail("chat", Fault(hold=hold))
    turn = asyncio.create_task(call.type(SAID))
    await eventually(lambda: call.server.chats, "a request")
    assert await call.stored() == [("user", SAID)]
    hold.set()
    assert await turn == ANSWER
    await goes_on(call, ("user", SAID), ("assistant", ANSWER))


@pytest.mark.promise("P-heard")
@pytest.mark.case("L07")
async def test_P_heard_L07_an_answer_that_breaks_off_is_stored_as_far_as_it_was_heard(call: Talk) -> None:
    call.server.answer = lambda _: "It is open until nine today. And tomorrow it is closed the whole day."
    call.server.fail("chat", cut(7))  # the first piece holds no words
    heard = await call.type(SAID)
    assert heard.split() == ["It", "is", "open", "until", "nine", "today."]
    assert len(call.server.chats) == 1  # what was heard is not said again
    stored = await call.stored()
    assert [(role, text.split()) for role, text in stored[1:]] == [("assistant", heard.split())]
    call.server.answer = lambda _: NEXT_ANSWER
    await goes_on(call, *stored)


async def test_a_session_that_livekit_gives_up_has_stored_every_turn(call: Talk) -> None:
    call.server.fail_always("chat", UNAUTHORIZED)
    said = [f"This is what I say in turn {turn}." for turn in range(ATTEMPTS)]
    for text in said:
        assert await call.type(text) == ""
    await eventually(lambda: call.closed, "the end of the session")
    assert call.closed[0].reason == CloseReason.ERROR
    assert await call.stored() == [("user", text) for text in said]


@pytest.mark.parametrize("endpoint", ["chat", "speech"])
async def test_what_was_said_to_an_agent_that_hangs_is_stored_when_the_caller_hangs_up(
    server: OpenAIServer, retriever: ScriptedRetriever, endpoint: Endpoint
) -> None:
    backend = backend_of(InMemorySessionStore(HandClock()), retriever)
    async with asyncio.timeout(BOUND_S):
        async with talk(server, backend) as call:
            server.fail_always(endpoint, SILENT)
            call.session.generate_reply(user_input=SAID)
            await eventually(lambda: server.asked(endpoint), "a request")
    assert await call.stored() == [("user", SAID)]


@pytest.mark.case("L14")
@pytest.mark.parametrize("fault", [RATE_LIMITED, BROKEN, GARBLED, cut(0), cut(2)], ids=label)
async def test_L14_a_talker_that_speaks_at_the_third_attempt_costs_no_second_answer(call: Talk, fault: Fault) -> None:
    call.server.fail("speech", fault, fault)
    assert await call.type(SAID) == ANSWER
    assert len(call.server.asked("speech")) == 3
    assert len(call.server.chats) == 1
    await goes_on(call, ("user", SAID), ("assistant", ANSWER))


@pytest.mark.promise("P-heard")
@pytest.mark.parametrize(
    ("fault", "attempts"),
    [(UNAUTHORIZED, 1), (RATE_LIMITED, ATTEMPTS), (BROKEN, ATTEMPTS), (GARBLED, ATTEMPTS), (cut(0), ATTEMPTS)],
    ids=label,
)
async def test_P_heard_an_answer_that_no_talker_speaks_is_not_stored(call: Talk, fault: Fault, attempts: int) -> None:
    call.server.fail_always("speech", fault)
    await call.type(SAID)
    assert len(call.server.asked("speech")) == attempts
    assert not call.output.played
    assert await call.stored() == [("user", SAID)]
    call.server.mend("speech")
    await goes_on(call, ("user", SAID))


@pytest.mark.case("L14")
@pytest.mark.parametrize("fault", [RATE_LIMITED, GARBLED, cut(1)], ids=label)
async def test_L14_a_listener_that_hears_at_the_third_attempt_hears_one_turn(call: Talk, fault: Fault) -> None:
    call.server.fail("transcriptions", fault, fault)
    await call.say(SAID)
    attempts = call.server.asked("transcriptions")
    assert len(attempts) == 3
    assert len({asked.file for asked in attempts}) == 1
    assert len(call.server.chats) == 1
    (user, heard), (agent, _) = await call.stored()
    assert (user, agent) == ("user", "assistant")
    assert heard.casefold() == SAID.casefold()


@pytest.mark.parametrize(("fault", "attempts"), [(UNAUTHORIZED, 1), (BROKEN, ATTEMPTS), (LOGIN, ATTEMPTS)], ids=label)
async def test_a_listener_that_fails_for_good_hears_the_next_words(call: Talk, fault: Fault, attempts: int) -> None:
    call.server.fail_always("transcriptions", fault)
    call.microphone.play(await speech(SAID))
    await eventually(lambda: any(not event.error.recoverable for event in call.errors), "the listener's failure")
    assert len(call.server.asked("transcriptions")) == attempts
    assert await call.stored() == []
    call.server.mend("transcriptions")
    await call.say(NEXT)
    (_, heard), (_, answer) = await call.stored()
    assert heard.casefold() == NEXT.casefold()
    assert answer.casefold() == NEXT_ANSWER.casefold()
    assert not call.closed


async def test_a_listener_that_never_answers_does_not_hold_up_the_end_of_a_call(
    server: OpenAIServer, retriever: ScriptedRetriever
) -> None:
    backend = backend_of(InMemorySessionStore(HandClock()), retriever)
    async with asyncio.timeout(BOUND_S):
        async with talk(server, backend) as call:
            await call.type(NEXT)
            server.fail_always("transcriptions", SILENT)
            call.microphone.play(await speech(SAID))
            await eventually(lambda: server.asked("transcriptions"), "a request")
    assert await call.stored() == [("user", NEXT), ("assistant", NEXT_ANSWER)]
