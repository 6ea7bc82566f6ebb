"""Whether a call's user is there: who comes back is waited for, who hangs up a phone is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from livekit import rtc

from agent.presence import Presence
from tests.support.recalls import ManualClock

STANDARD = rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD
SIP = rtc.ParticipantKind.PARTICIPANT_KIND_SIP
AGENT = rtc.ParticipantKind.PARTICIPANT_KIND_AGENT
RECONNECT_S = 60.0


@dataclass
class Person:
    identity: str
    kind: Any = STANDARD
    disconnect_reason: Any = rtc.DisconnectReason.CLIENT_INITIATED
    attributes: dict[str, str] = field(default_factory=dict)


class Room(rtc.EventEmitter[Any]):
    """A room's people, and who comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.remote_participants: dict[str, Person] = {}

    def comes(self, person: Person) -> None:
        self.remote_participants[person.identity] = person
        self.emit("participant_connected", person)

    def goes(self, person: Person) -> None:
        del self.remote_participants[person.identity]
        self.emit("participant_disconnected", person)


@dataclass
class Session:
    """As much of a session as is used: whom it listens to, and whether it was silenced."""

    linked_participant: Person | None = None
    interrupted: int = 0
    error: Exception | None = None

    @property
    def room_io(self) -> Session:
        return self

    def interrupt(self) -> None:
        self.interrupted += 1
        if self.error is not None:
            raise self.error


@dataclass
class Scene:
    room: Room
    session: Session
    clock: ManualClock
    presence: Presence
    ended: list[str] = field(default_factory=list)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    room, session, clock = Room(), Session(), ManualClock()
    ended: list[str] = []
    presence = Presence(room, session, RECONNECT_S, ended.append, clock)  # type: ignore[arg-type] # as much as is used
    yield Scene(room, session, clock, presence, ended)
    await presence.aclose()


async def joined(scene: Scene, person: Person) -> Person:
    """``person`` is in the room, and the session listens to it."""
    scene.room.comes(person)
    scene.session.linked_participant = person
    await scene.clock.advance(0.1)
    return person


async def test_who_does_not_come_back_has_left(scene: Scene) -> None:
    ana = await joined(scene, Person("ana"))
    scene.room.goes(ana)
    assert scene.session.interrupted == 1  # nobody hears what is being said
    await scene.clock.advance(RECONNECT_S - 1)
    assert scene.ended == []
    await scene.clock.advance(2)
    assert scene.ended == ["the user has left"]


async def test_who_comes_back_in_time_has_not_left_and_may_do_so_again(scene: Scene) -> None:
    ana = await joined(scene, Person("ana"))
    for _ in range(3):
        scene.room.goes(ana)
        await scene.clock.advance(RECONNECT_S - 1)
        scene.room.comes(ana)
        await scene.clock.advance(2 * RECONNECT_S)
    assert scene.ended == []


async def test_what_is_said_to_a_user_who_has_come_again_is_not_cut_off(scene: Scene) -> None:
    ana = await joined(scene, Person("ana", disconnect_reason=rtc.DisconnectReason.DUPLICATE_IDENTITY))
    scene.room.goes(ana)  # LiveKit tells that the first connection is gone after the second one has asked something
    scene.room.comes(Person("ana"))
    await scene.clock.advance(2 * RECONNECT_S)
    assert (scene.ended, scene.session.interrupted) == ([], 0)


async def test_who_hangs_up_is_not_waited_for(scene: Scene) -> None:
    phone = await joined(scene, Person("sip_1", SIP))
    scene.room.goes(phone)
    await scene.clock.advance(0.1)
    assert scene.ended == ["the user has left"]


@pytest.mark.parametrize("status", ["hangup", "failed"])
async def test_a_phone_call_that_is_over_is_not_waited_for_until_the_phone_leaves(scene: Scene, status: str) -> None:
    phone = await joined(scene, Person("sip_1", SIP, attributes={"sip.callStatus": "ringing"}))
    phone.attributes["sip.callStatus"] = status
    scene.room.emit("participant_attributes_changed", {"sip.callStatus": status}, phone)
    await scene.clock.advance(0.1)
    assert (scene.ended, scene.session.interrupted) == (["the user has left"], 1)
    scene.room.goes(phone)
    await scene.clock.advance(1)
    assert scene.ended == ["the user has left"]


async def test_a_phone_call_that_was_over_before_the_session_knew_it_has_ended_too(scene: Scene) -> None:
    await joined(scene, Person("sip_1", SIP, attributes={"sip.callStatus": "hangup"}))
    assert scene.ended == ["the user has left"]


async def test_what_only_a_phones_server_may_say_is_not_taken_from_others(scene: Scene) -> None:
    ana = await joined(scene, Person("ana", attributes={"sip.callStatus": "hangup"}))
    scene.room.emit("participant_attributes_changed", {"sip.callStatus": "hangup"}, ana)
    await scene.clock.advance(1)
    assert scene.ended == []


async def test_others_may_come_and_go(scene: Scene) -> None:
    await joined(scene, Person("ana"))
    for other in (Person("ben"), Person("agent-1", AGENT), Person("sip_1", SIP)):
        scene.room.comes(other)
        scene.room.goes(other)
    await scene.clock.advance(2 * RECONNECT_S)
    assert (scene.ended, scene.session.interrupted) == ([], 0)


async def test_another_user_is_not_the_one_who_left(scene: Scene) -> None:
    ana = await joined(scene, Person("ana"))
    scene.room.goes(ana)
    scene.room.comes(Person("ben"))
    await scene.clock.advance(RECONNECT_S + 1)
    assert scene.ended == ["the user has left"]
    assert scene.presence.users_left


async def test_who_leaves_before_the_session_knew_them_has_left_too(scene: Scene) -> None:
    ana = Person("ana")
    scene.room.comes(ana)
    scene.room.goes(ana)
    await scene.clock.advance(RECONNECT_S + 1)
    assert scene.ended == ["the user has left"]


async def test_an_agent_is_no_user(scene: Scene) -> None:
    scene.room.comes(Person("agent-1", AGENT))
    assert not scene.presence.users_left
    scene.room.comes(Person("sip_1", SIP))
    assert scene.presence.users_left


async def test_a_speech_that_cannot_be_interrupted_goes_on(scene: Scene) -> None:
    scene.session.error = RuntimeError("uninterruptible")
    ana = await joined(scene, Person("ana"))
    scene.room.goes(ana)
    await scene.clock.advance(RECONNECT_S + 1)
    assert scene.ended == ["the user has left"]


async def test_closed_it_ends_nothing(scene: Scene) -> None:
    ana = await joined(scene, Person("ana"))
    scene.room.goes(ana)
    await scene.presence.aclose()
    await scene.presence.aclose()
    await scene.clock.advance(2 * RECONNECT_S)
    assert scene.ended == []
