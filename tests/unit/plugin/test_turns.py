"""What becomes of a session's turns: mode, language, times, order, and what makes no entry."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from livekit.agents import LanguageCode, UserInputTranscribedEvent, llm

from memory.errors import EntryTooLarge
from memory.heard import Ear, Speech
from memory.models import MemoryEntry, MemoryEvent
from memory.plugin.turns import Remembered, Turns
from tests.support.recalls import settle
from tests.support.sessions import HandClock, ScriptedRetriever, call, passage
from tests.support.voice import ManualOutput, eventually


async def _open() -> None:
    return None


def turns() -> Turns:
    return Turns(Ear(HandClock(), _open), prefix="s1/")


def user(text: str, **fields: Any) -> llm.ChatMessage:
    return llm.ChatMessage(role="user", content=[text], **fields)


def reply(text: str, **fields: Any) -> llm.ChatMessage:
    return llm.ChatMessage(role="assistant", content=[text], **fields)


def heard(text: str, *, language: str | None = "en", final: bool = True) -> UserInputTranscribedEvent:
    code = LanguageCode(language) if language else None
    return UserInputTranscribedEvent(transcript=text, is_final=final, language=code)


def entry_of(records: list[Any]) -> MemoryEntry:
    [entry] = [record for record in records if isinstance(record, MemoryEntry)]
    return entry


@pytest.mark.promise("P-both")
async def test_P_both_modes_languages_and_order_of_a_mixed_session() -> None:
    async with call(["Hi.", "Marhaba.", "Yes."]) as made:
        await made.say("hello there", language="en-US")
        await made.say("مرحبا يا صديقي", language="ar")
        await made.type("same address as last time?")
        entries = await made.entries()
        assert [(entry.role, entry.mode, entry.language) for entry in entries] == [
            ("user", "voice", "en-US"),
            ("assistant", "voice", "en-US"),
            ("user", "voice", "ar"),
            ("assistant", "voice", "ar"),
            ("user", "text", ""),
            ("assistant", "text", "ar"),
        ]
        assert [entry.language_switched for entry in entries] == [False, False, True, False, False, False]
        [switch] = await made.events("language_switch")
        assert (switch["from_language"], switch["to_language"]) == ("en-US", "ar")
        [mode] = await made.events("mode_switch")
        assert (mode["from_mode"], mode["to_mode"]) == ("voice", "text")


@pytest.mark.promise("P-both")
async def test_P_both_a_typed_turn_by_any_way_is_text() -> None:
    async with call() as made:
        await made.session.run(user_input="by run")
        await made.session.generate_reply(user_input="by generate_reply")
        await made.session.generate_reply(user_input=llm.ChatMessage(role="user", content=["by message"]))
        await made.session.generate_reply(user_input="spoken elsewhere", input_modality="audio")
        users = [(entry.content, entry.mode) for entry in await made.entries() if entry.role == "user"]
    assert users == [
        ("by run", "text"),
        ("by generate_reply", "text"),
        ("by message", "text"),
        ("spoken elsewhere", "voice"),
    ]


async def test_a_confidence_of_zero_is_still_a_voice() -> None:
    async with call() as made:
        await made.say("hello there", confidence=0.0)
        first = (await made.entries())[0]
        assert (first.mode, first.transcript_confidence) == ("voice", 0.0)


async def test_what_the_agent_says_by_itself_is_stored_in_the_mode_of_the_session() -> None:
    async with call() as made:
        await made.session.say("Welcome.")
        await made.session.generate_reply(instructions="Ask how they are.")
        assert [(entry.role, entry.mode) for entry in await made.entries()] == [("assistant", "voice")] * 2
    async with call(session_options={}) as made:
        made.session.output.set_audio_enabled(False)
        await made.session.say("Welcome.")
        assert [(entry.content, entry.mode) for entry in await made.entries()] == [("Welcome.", "text")]


async def test_a_reply_says_how_late_it_was_and_what_it_remembered() -> None:
    async with call(retriever=ScriptedRetriever([passage("My cat is Biscuit.", "old-7")])) as made:
        await made.say("what is my cat called")
        question, answer = await made.entries()
        assert question.latency_ms is None
        assert answer.latency_ms is not None
        assert answer.latency_ms >= 0
        assert answer.sources == ({"type": "memory", "id": "old-7"},)
        assert answer.retrieved_passages == ()
        assert answer.timestamp >= question.timestamp


async def test_a_blank_turn_makes_no_entry() -> None:
    async with call() as made:
        await made.session.generate_reply(user_input="  \n ")
        assert [entry.role for entry in await made.entries()] == ["assistant"]


async def test_a_turn_that_is_too_large_is_counted_and_the_session_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with call() as made:
        await made.type("x" * 1_100_000)
        await made.type("short")
        assert [text for role, text in await made.texts() if role == "user"] == ["short"]
        assert made.memory.counters["record.invalid"] == 1
    assert "split it" in caplog.text


async def test_turns_with_control_characters_and_surrogates_are_cleaned() -> None:
    async with call() as made:
        await made.type("a\x00b \ud800 c")
        assert (await made.texts())[0] == ("user", "ab \N{REPLACEMENT CHARACTER} c")


@pytest.mark.promise("P-redacted")
async def test_P_redacted_a_card_number_is_masked_on_its_way() -> None:
    async with call(["Your card 4242 4242 4242 4242 is fine."]) as made:
        await made.type("my card is 4242-4242-4242-4242")
        entries = await made.entries()
        assert not any("4242" in entry.content for entry in entries)
        assert [entry.redactions for entry in entries] == [1, 1]


@pytest.mark.promise("P-durable")
async def test_P_durable_a_reply_is_not_heard_before_its_turn_is_stored() -> None:
    output = ManualOutput(instant=True)
    async with call(output=output) as made:
        before: list[list[str]] = []
        log = made.store._users
        output.on_first_frame = lambda _: before.append(
            [item.record.content for user in log.values() for item in user.log if isinstance(item.record, MemoryEntry)]
        )
        await made.type("typed")
        await made.say("spoken and guessed early")
    assert [texts[-1] for texts in before] == ["typed", "spoken and guessed early"]


@pytest.mark.promise("P-durable")
@pytest.mark.promise("P-silent")
async def test_P_durable_P_silent_a_store_that_hangs_holds_the_reply_up_for_a_moment_only() -> None:
    async with call() as made:
        await made.type("first")
        assert await made.memory.flush()
        never = _Never()
        made.store.append = never.append  # type: ignore[method-assign]
        made.session.generate_reply(user_input="second")
        await eventually(lambda: made.llm.requests[1:], "the LLM call")
        await eventually(lambda: never.calls, "the append")
        await made.clock.advance(0.2)
        await settle()
        assert len(made.output.played) == 1
        await made.clock.advance(0.06)
        await eventually(lambda: len(made.output.played) == 2, "the reply")
        assert made.memory.counters["record.late"] == 1
        await made.listening()
        closing = made.clock.advance(30)
        task = asyncio.create_task(made.memory.aclose())
        await closing
        await task
    assert made.memory.counters["record.lost"] == 2


class _Never:
    def __init__(self) -> None:
        self.calls = 0

    async def append(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        await asyncio.Event().wait()


# -- on their own ------------------------------------------------------------------------------------------------------


def test_interims_and_finals_add_up_to_what_was_said_so_far() -> None:
    made = turns()
    assert made.transcribed(heard("book", final=False)) == "book"
    assert made.transcribed(heard("book a table")) == "book a table"
    assert made.transcribed(heard("for six", final=False)) == "book a table for six"
    made.user(user("book a table for six", transcript_confidence=0.9), None)
    assert made.transcribed(heard("thanks", final=False)) == "thanks"


def test_spoken_words_that_are_handed_on_without_a_confidence_are_still_spoken() -> None:
    made = turns()
    made.transcribed(heard("I have been talking"))
    made.transcribed(heard("for far too long"))
    assert entry_of(made.user(user("I have been talking for far too long"), Speech("text"))).mode == "voice"
    assert entry_of(made.user(user("I have been talking for far too long"), Speech("text"))).mode == "text"


@pytest.mark.parametrize("speech", [None, Speech("text")])
def test_a_confidence_of_zero_alone_makes_a_voice(speech: Speech | None) -> None:
    assert entry_of(turns().user(user("hello", transcript_confidence=0.0), speech)).mode == "voice"


def test_when_somebody_began_to_speak_is_when_it_was_said() -> None:
    began = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
    item = user("hello", created_at=began + 4, metrics={"started_speaking_at": began, "stopped_speaking_at": began + 2})
    assert entry_of(turns().user(item, None)).timestamp == datetime.fromtimestamp(began, UTC)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"e2e_latency": 0.7}, 700.0),
        ({"started_speaking_at": 1_000_000_003.0}, 3_000.0),
        ({"e2e_latency": -1.0}, None),
        ({}, None),
    ],
)
def test_latency_is_from_the_end_of_the_question_to_the_first_sound(metrics: Any, expected: float | None) -> None:
    made, speech = turns(), Speech("text")
    made.user(user("hello", created_at=1_000_000_000.0), speech)
    about = Remembered()
    entry = entry_of(made.assistant(reply("hi", metrics=metrics), speech, spoken=True, realtime=False, about=about))
    assert entry.latency_ms == expected


def test_a_second_reply_to_one_turn_answers_nothing_anew() -> None:
    made, speech = turns(), Speech("text")
    made.user(user("hello", created_at=1_000_000_000.0), speech)
    about = Remembered()
    for expected in (3_000.0, None):
        item = reply("hi", metrics={"started_speaking_at": 1_000_000_003.0})
        entry = entry_of(made.assistant(item, speech, spoken=True, realtime=False, about=about))
        assert entry.latency_ms == expected


def test_a_language_tag_more_or_less_is_no_switch() -> None:
    made = turns()
    for code in ("en", "en-US", "en-GB", "fr"):
        made.transcribed(heard("hello", language=code))
        records = made.user(user("hello", transcript_confidence=0.5), None)
        switches = [record for record in records if isinstance(record, MemoryEvent)]
        assert len(switches) == (1 if code == "fr" else 0)
        assert entry_of(records).language == code


@pytest.mark.promise("P-both")
def test_P_both_what_is_typed_before_a_spoken_turn_has_ended_takes_nothing_of_it() -> None:
    made = turns()
    made.transcribed(heard("hello", language="en"))
    made.user(user("hello", transcript_confidence=0.9), None)
    made.transcribed(heard("quiero pagar", language="es"))
    typed = entry_of(made.user(user("order 1042"), Speech("text")))
    assert made.transcribed(heard("hoy", language=None, final=False)) == "quiero pagar hoy"
    spoken = entry_of(made.user(user("quiero pagar hoy", transcript_confidence=0.9), None))
    assert (typed.mode, typed.language) == ("text", "")
    assert (spoken.mode, spoken.language, spoken.language_switched) == ("voice", "es", True)


def test_a_turn_whose_language_nobody_tells_keeps_the_last_one_for_comparing() -> None:
    made = turns()
    for code, switched in (("en", False), (None, False), ("fr", True)):
        made.transcribed(heard("hello", language=code))
        entry = entry_of(made.user(user("hello", transcript_confidence=0.5), None))
        assert (entry.language, entry.language_switched) == (code or "", switched)


@pytest.mark.parametrize(("confidence", "kept"), [(0.3, 0.3), (1.7, None), (-2.0, None)])
def test_a_confidence_that_is_none_is_left_out(confidence: float, kept: float | None) -> None:
    entry = entry_of(turns().user(user("hello", transcript_confidence=confidence), None))
    assert (entry.mode, entry.transcript_confidence) == ("voice", kept)


def test_an_id_is_unique_over_sessions() -> None:
    item = user("hello")
    assert entry_of(turns().user(item, None)).id == f"s1/{item.id}"


def test_a_turn_too_large_raises_what_to_do() -> None:
    with pytest.raises(EntryTooLarge, match="split it"):
        turns().user(user("x" * 1_100_000), None)
