"""Whose phone still rings isn't spoken to; who has no phone isn't held up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from livekit import rtc

from agent.answer import ANSWER_S_MAX, Answer
from tests.support.recalls import ManualClock

STANDARD = rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD
SIP = rtc.ParticipantKind.PARTICIPANT_KIND_SIP


@dataclass
class Person:
    attributes: dict[str, str] = field(default_factory=dict)
    kind: Any = SIP


class Scene(rtc.EventEmitter[Any]):
    """A room with one person, and as much of a session as is used."""

    def __init__(self, person: Person, *, linked: bool = True) -> None:
        super().__init__()
        self.person, self.clock = person, ManualClock()
        self.remote_participants = {"them": person}
        self.room_io = self
        self.linked_participant = person if linked else None
        self.answer = Answer(self, self, self.clock)  # type: ignore[arg-type] # as much of both as is used

    def becomes(self, status: str) -> None:
        self.person.attributes["sip.callStatus"] = status
        self.emit("participant_attributes_changed", {"sip.callStatus": status}, self.person)


def phone(status: str) -> Person:
    return Person({"sip.callStatus": status})


@pytest.mark.parametrize(
    "person",
    [phone("active"), Person(), Person({"sip.callStatus": "ringing"}, STANDARD)],
    ids=["answered", "without-the-attribute", "no-phone"],
)
async def test_who_can_hear_is_not_held_up(person: Person) -> None:
    async with asyncio.timeout(5):
        await Scene(person).answer.wait()


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("status", ["dialing", "ringing", "automation"])
async def test_a_phone_that_rings_is_waited_for(status: str, linked: bool) -> None:
    scene = Scene(phone(status), linked=linked)
    waiting = asyncio.create_task(scene.answer.wait())
    await scene.clock.advance(30)
    scene.becomes("ringing")
    await scene.clock.advance(30)
    assert not waiting.done()
    scene.becomes("active")
    async with asyncio.timeout(5):
        await waiting
    scene.becomes("ringing")  # such as by a transfer: the session has begun
    async with asyncio.timeout(5):
        await scene.answer.wait()


@pytest.mark.parametrize("status", ["hangup", "failed"])
async def test_a_call_that_is_over_is_not_answered(status: str) -> None:
    scene = Scene(phone("ringing"))
    waiting = asyncio.create_task(scene.answer.wait())
    await scene.clock.advance(1)
    scene.becomes(status)
    await scene.clock.advance(60)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_state_that_never_changes_does_not_silence_the_agent_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(phone("ringing"))
    waiting = asyncio.create_task(scene.answer.wait())
    await scene.clock.advance(ANSWER_S_MAX - 1)
    assert not waiting.done()
    await scene.clock.advance(2)
    async with asyncio.timeout(5):
        await waiting
    assert "was not said to be answered" in caplog.text
