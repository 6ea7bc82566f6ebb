"""What is typed reaches the session in order, once it knows its user; what others in the room type never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from agent.typed import CHARS_MAX, LINK_S, READ_S, WAITING_MAX, TypedInput
from tests.support.recalls import ManualClock, settle


class Stream:
    """A text stream in pieces; ``hold`` keeps it from ending."""

    def __init__(self, *pieces: str, hold: asyncio.Event | None = None) -> None:
        self.info = SimpleNamespace(topic="lk.chat")
        self._pieces, self._hold = pieces, hold

    async def __aiter__(self) -> AsyncIterator[str]:
        for piece in self._pieces:
            yield piece
        if self._hold is not None:
            await self._hold.wait()


@dataclass
class Room:
    """Where the handler of a topic is registered."""

    handlers: dict[str, Callable[[Any, str], None]] = field(default_factory=dict)

    def register_text_stream_handler(self, topic: str, handler: Callable[[Any, str], None]) -> None:
        self.handlers[topic] = handler


@dataclass
class Session:
    linked_participant: Any = None

    @property
    def room_io(self) -> Session:
        return self


@dataclass
class Scene:
    room: Room
    session: Session
    clock: ManualClock
    typed: TypedInput
    answered: list[str] = field(default_factory=list)

    def types(self, text: str, identity: str = "ana", **how: Any) -> None:
        self.room.handlers["lk.chat"](Stream(text, **how), identity)


ANA = SimpleNamespace(identity="ana")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    room, session, clock = Room(), Session(), ManualClock()
    typed = TypedInput(room, session, clock)  # type: ignore[arg-type] # as much of both as is used
    made = Scene(room, session, clock, typed)

    async def answer(_: Any, event: Any) -> None:
        if event.text == "fail":
            raise RuntimeError("uninterruptible")
        await asyncio.sleep(0)
        made.answered.append(event.text)

    typed._answer = answer
    yield made
    await typed.aclose()


async def test_what_is_typed_early_waits_for_session_and_user_and_keeps_its_order(scene: Scene) -> None:
    scene.types("one")
    scene.types("two")
    await settle()
    scene.typed.start()
    await scene.clock.advance(3)
    assert scene.answered == []
    scene.session.linked_participant = ANA
    scene.types("three")
    await scene.clock.advance(0.1)
    assert scene.answered == ["one", "two", "three"]


async def test_others_in_the_room_are_not_answered(scene: Scene) -> None:
    scene.session.linked_participant = ANA
    scene.typed.start()
    scene.types("I am ana", "intruder")
    scene.types("hello")
    await scene.clock.advance(0.1)
    assert scene.answered == ["hello"]


async def test_who_never_shows_up_holds_up_nobody_for_long(scene: Scene) -> None:
    scene.typed.start()
    scene.types("hello?")
    await scene.clock.advance(LINK_S + 1)
    scene.session.linked_participant = ANA
    scene.types("hello")
    await scene.clock.advance(0.1)
    assert scene.answered == ["hello"]


@pytest.mark.parametrize("text", ["fail", "x" * (CHARS_MAX + 1), "", "  \n"])
async def test_what_cannot_be_taken_does_not_keep_the_next_from_being(scene: Scene, text: str) -> None:
    scene.session.linked_participant = ANA
    scene.typed.start()
    scene.types(text)
    scene.types("hello")
    await scene.clock.advance(0.1)
    assert scene.answered == ["hello"]


async def test_a_flood_is_cut_off_and_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(WAITING_MAX + 5):
        scene.types(f"secret {number}")
    scene.session.linked_participant = ANA
    scene.typed.start()
    await scene.clock.advance(0.1)
    for _ in range(5):
        await settle()
    assert scene.answered == [f"secret {number}" for number in range(WAITING_MAX)]
    assert caplog.text.count("left out") == 5
    assert "secret" not in caplog.text


async def test_closing_leaves_nothing_behind(scene: Scene) -> None:
    scene.types("never ends", hold=asyncio.Event())
    scene.types("waits")
    async with asyncio.timeout(READ_S):
        await scene.typed.aclose()
        await scene.typed.aclose()
    assert scene.answered == []


async def test_who_is_not_the_user_keeps_nobody_waiting(scene: Scene) -> None:
    scene.session.linked_participant = ANA
    scene.typed.start()
    for _ in range(3):
        scene.types("I begin and", "eve", hold=asyncio.Event())
    scene.types("What do I owe?")
    await settle()
    assert scene.answered == ["What do I owe?"]
