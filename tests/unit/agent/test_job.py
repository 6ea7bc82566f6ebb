"""How a call begins where another job has left it, and how it ends: over, given away, or failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import CloseEvent, CloseReason, JobExecutorType

from agent import job as module
from agent.dispatch import Rescue
from agent.job import VOICE_BITS_PER_S, Call, room_options
from agent.settings import load
from memory.errors import StoreUnavailable
from memory.models import MemoryEntry

RESUMED = "Sorry, I was gone for a moment. Please go on."


@dataclass
class Happened:
    """What was done, in order."""

    done: list[str] = field(default_factory=list)

    def note(self, what: str) -> Any:
        return lambda *words, **_: self.done.append(" ".join([what, *map(str, words)]))


@pytest.fixture
def happened() -> Happened:
    return Happened()


def call(happened: Happened, *, rescue: bool = False) -> Call:
    attributes = Rescue("AJ_dead", 1).attributes() if rescue else {}

    async def deleted() -> None:
        happened.done.append("room deleted")

    ctx = SimpleNamespace(
        job=SimpleNamespace(attributes=attributes, metadata="", agent_name=""),
        proc=SimpleNamespace(executor_type=JobExecutorType.THREAD, userdata={}),
        shutdown=happened.note("shutdown:"),
        delete_room=lambda: asyncio.ensure_future(deleted()),
        is_fake_job=lambda: False,
        room=SimpleNamespace(remote_participants={}),
    )
    made = Call(ctx)  # type: ignore[arg-type] # as much of it as is used
    made._exit_as_failed = happened.note("exit as failed")  # type: ignore[method-assign]
    return made


def session(happened: Happened) -> Any:
    return SimpleNamespace(
        say=happened.note("say:"),
        generate_reply=happened.note("reply"),
        output=SimpleNamespace(set_audio_enabled=happened.note("audio")),
    )


def assistant(happened: Happened) -> Any:
    return SimpleNamespace(greet=happened.note("greet"), forgo_greeting=happened.note("forgo greeting"))


def memory(before: list[MemoryEntry] | Exception) -> Any:
    async def resume() -> list[MemoryEntry]:
        if isinstance(before, Exception):
            raise before
        return before

    return SimpleNamespace(resume=resume)


def said(role: Any, ago_s: float = 1.0) -> MemoryEntry:
    moment = datetime.now(UTC) - timedelta(seconds=ago_s)
    return MemoryEntry(role=role, content="hm", mode="voice", timestamp=moment)


@pytest.mark.parametrize(
    ("before", "done"),
    [
        ([], ["greet"]),  # it died before it had said anything
        ([said("assistant"), said("user")], ["reply"]),
        ([said("user"), said("assistant")], [f"say: {RESUMED}"]),
        (StoreUnavailable("away"), [f"say: {RESUMED}"]),
    ],
)
async def test_a_rescued_call_goes_on_as_it_stood(
    before: list[MemoryEntry] | Exception, done: list[str], happened: Happened
) -> None:
    made = call(happened, rescue=True)
    await made._resume(session(happened), memory(before), assistant(happened), load().agent)
    assert happened.done == done


@pytest.mark.parametrize("rescue", [True, False])
@pytest.mark.parametrize("before", [[said("user"), said("assistant")], StoreUnavailable("away")])
async def test_what_is_typed_to_a_rescued_call_is_answered_by_who_knows_what_was_said(
    before: list[MemoryEntry] | Exception, rescue: bool, happened: Happened
) -> None:
    made = call(happened, rescue=rescue)
    typed: Any = SimpleNamespace(start=happened.note("typed"))
    await made._take_up(session(happened), memory(before), assistant(happened), load().agent, typed)
    assert happened.done.index("typed") == (1 if rescue else 0)


async def test_a_rescue_waits_for_memory_no_longer_than_it_may(
    happened: Happened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESUME_S", 0.01)
    monkeypatch.setenv("AGENT_RESUMED", "I am back.")
    never = SimpleNamespace(resume=asyncio.Event().wait)
    made = call(happened, rescue=True)
    await made._resume(session(happened), never, assistant(happened), load().agent)  # type: ignore[arg-type]
    assert happened.done == ["say: I am back."]


async def test_what_is_said_when_it_is_back_can_be_switched_off(
    happened: Happened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RESUMED", "off")
    before = [said("user"), said("assistant")]
    await call(happened, rescue=True)._resume(session(happened), memory(before), assistant(happened), load().agent)
    assert happened.done == []


@pytest.mark.parametrize(
    ("before", "done"),
    [
        ([], []),
        ([said("assistant", ago_s=10)], ["forgo greeting"]),
        ([said("assistant", ago_s=10_000)], []),
        (StoreUnavailable("away"), []),
    ],
)
async def test_who_talked_a_moment_ago_is_not_greeted_anew(
    before: list[MemoryEntry] | Exception, done: list[str], happened: Happened
) -> None:
    made = call(happened)
    await made._resume(session(happened), memory(before), assistant(happened), load().agent)
    assert happened.done == done


async def test_a_session_that_gives_up_ends_as_failed(happened: Happened) -> None:
    call(happened)._on_close(CloseEvent(reason=CloseReason.ERROR))
    assert happened.done == ["exit as failed", "shutdown: the call failed"]


@pytest.mark.parametrize(
    ("reason", "failed"),
    [
        (rtc.DisconnectReason.CONNECTION_TIMEOUT, True),
        (rtc.DisconnectReason.SIGNAL_CLOSE, True),
        (rtc.DisconnectReason.PARTICIPANT_REMOVED, False),
        (rtc.DisconnectReason.ROOM_DELETED, False),
        (rtc.DisconnectReason.CLIENT_INITIATED, False),
    ],
)
async def test_a_connection_that_is_lost_is_no_end_of_the_call(reason: Any, failed: bool, happened: Happened) -> None:
    call(happened)._on_disconnected(reason)
    assert (happened.done == ["exit as failed"]) is failed


async def test_what_can_not_be_held_ends_as_failed_and_says_why_without_what_was_said(
    happened: Happened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("diabetic")

    monkeypatch.setattr(module, "build", broken)
    await call(happened).hold()
    assert happened.done == ["exit as failed", "shutdown: the call failed"]
    assert "RuntimeError" in caplog.text
    assert "diabetic" not in caplog.text


@pytest.mark.parametrize(("users_left", "done"), [(True, []), (False, ["room deleted"])])
async def test_the_room_goes_with_its_last_user(users_left: bool, done: list[str], happened: Happened) -> None:
    made = call(happened)
    made._presence = SimpleNamespace(users_left=users_left)  # type: ignore[assignment] # as much of it as is used
    made._end("the user has left")
    made._end("the user has left")
    await asyncio.gather(*made._tasks)
    assert happened.done == [*done, "shutdown: the user has left"]


async def test_one_of_two_agents_falls_silent_and_leaves(happened: Happened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    silent = asyncio.Event()
    memory = SimpleNamespace(silenced=silent.wait)
    made = call(happened)
    giving_way = asyncio.create_task(made._give_way(session(happened), memory))  # type: ignore[arg-type]
    silent.set()
    people: dict[str, Any] = made._ctx.room.remote_participants  # type: ignore[assignment]
    people["ana"] = SimpleNamespace(kind=rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD, attributes={})
    people["notes"] = SimpleNamespace(
        kind=rtc.ParticipantKind.PARTICIPANT_KIND_AGENT, attributes={"lk.agent.name": "notetaker"}
    )
    await asyncio.sleep(0.01)
    assert happened.done == []  # who recorded the session is not in the room any more
    people["twin"] = SimpleNamespace(kind=rtc.ParticipantKind.PARTICIPANT_KIND_AGENT, attributes={"lk.agent.name": ""})
    await giving_way
    assert happened.done == ["audio False", "shutdown: another agent holds this call"]


def test_a_phones_sound_is_taken_as_it_comes() -> None:
    options = room_options()
    audio = options.get_audio_input_options()
    assert audio is not None
    assert audio.auto_gain_control is False
    assert options.close_on_disconnect is False


def test_the_voice_is_sent_as_the_encoder_can_do_cheaply() -> None:
    audio = room_options().get_audio_output_options()
    assert audio is not None
    assert audio.track_publish_options.audio_encoding.max_bitrate == VOICE_BITS_PER_S
    assert audio.track_publish_options.source == rtc.TrackSource.SOURCE_MICROPHONE
