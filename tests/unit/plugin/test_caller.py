"""Whose call it is: only what the server vouches for counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from livekit import rtc
from livekit.agents.ipc.mock_room import create_mock_room
from livekit.agents.testing import fake_job_context

from memory.identity import Assurance
from memory.models import Scope
from memory.plugin.caller import (
    CONSOLE_USER,
    SIP_ATTRIBUTES_S,
    Caller,
    CallerFinder,
    Given,
    from_dispatch,
    session_id_of,
)
from memory.settings import Settings, load_settings
from tests.support.sessions import HandClock

STANDARD = rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD
SIP = rtc.ParticipantKind.PARTICIPANT_KIND_SIP


@dataclass
class Participant:
    identity: str
    kind: Any = STANDARD
    attributes: dict[str, str] = field(default_factory=dict)
    metadata: str = ""
    name: str = ""
    sid: str = "PA_1"


class Room(rtc.Room):
    """A room that isn't a mock, and isn't connected to anything."""

    def __init__(self) -> None: ...

    def __del__(self) -> None: ...


class Session:
    """As much of a session as the finder looks at: its room, if it is in one, and whom it listens to."""

    def __init__(self, *, in_room: bool = True, linked: Participant | None = None) -> None:
        self.in_room = in_room
        self.linked_participant = linked

    @property
    def room_io(self) -> Session:
        if not self.in_room:
            raise RuntimeError("no room")
        return self


def job(metadata: str = "", *, sid: str = "RM_1", fake: bool = False, joins: Participant | None = None) -> Any:
    async def wait_for_participant() -> Participant | None:
        return joins

    return SimpleNamespace(
        job=SimpleNamespace(metadata=metadata, room=SimpleNamespace(sid=sid, name="call-_+15105550123")),
        room=Room(),
        is_fake_job=lambda: fake,
        wait_for_participant=wait_for_participant,
    )


def finder(
    session: Any, ctx: Any = None, given: Given | None = None, settings: Settings | None = None
) -> tuple[CallerFinder, HandClock]:
    clock = HandClock()
    found = CallerFinder(session, ctx, settings or load_settings(), clock, given or Given())
    found.started.set()
    return found, clock


async def caller(session: Any, ctx: Any = None, given: Given | None = None, settings: Settings | None = None) -> Caller:
    async with asyncio.timeout(5):
        return await finder(session, ctx, given, settings)[0].find("s1")


async def test_the_participant_the_session_listens_to_is_the_user() -> None:
    found = await caller(Session(linked=Participant("ana")))
    assert found.scope == Scope(org_id="default", agent_id="assistant", user_id="ana")
    assert found.identity.assurance is Assurance.SIGNED


@pytest.mark.case("L06")
async def test_L06_what_a_client_may_edit_names_nobody() -> None:
    guest = Participant(
        "guest-7",
        attributes={"user_id": "victim", "sip.phoneNumber": "+15105550123"},
        metadata='{"user_id": "victim"}',
        name="victim",
    )
    assert (await caller(Session(linked=guest))).scope.user_id == "guest-7"


@pytest.mark.case("L06")
async def test_L06_the_signed_dispatch_may_name_the_user() -> None:
    ctx = job('{"user_id": "ana", "org_id": "acme", "agent_id": "desk", "assurance": "verified"}')
    found = await caller(Session(linked=Participant("web-1")), ctx)
    assert found.scope == Scope(org_id="acme", agent_id="desk", user_id="ana")
    assert found.identity.assurance is Assurance.SIGNED


@pytest.mark.parametrize(
    "metadata", ["", "not json", "[]", '"ana"', '{"user_id": 7}', '{"user_id": ""}', "[" * 100_000]
)
def test_metadata_of_another_kind_says_nothing(metadata: str) -> None:
    assert from_dispatch(job(metadata)) == Given()


async def test_what_the_program_says_comes_first() -> None:
    ctx = job('{"user_id": "other", "org_id": "acme"}')
    given = Given(user_id="ana", agent_id="desk", assurance=Assurance.VERIFIED)
    found = await caller(Session(in_room=False), ctx, given)
    assert found.scope == Scope(org_id="acme", agent_id="desk", user_id="ana")
    assert found.identity.assurance is Assurance.VERIFIED


async def test_a_program_may_be_surer_of_a_participant_than_its_token() -> None:
    found = await caller(Session(linked=Participant("ana")), given=Given(assurance=Assurance.VERIFIED))
    assert (found.scope.user_id, found.identity.assurance) == ("ana", Assurance.VERIFIED)


async def test_a_phone_caller_is_its_number() -> None:
    phone = Participant("sip_+15105550123", SIP, {"sip.phoneNumber": "+1 (510) 555-0123"})
    found = await caller(Session(linked=phone))
    assert (found.scope.user_id, found.identity.assurance) == ("+15105550123", Assurance.CALLER_ID)


async def test_a_number_may_come_a_little_later_than_its_caller() -> None:
    phone = Participant("sip_+15105550123", SIP)
    found, clock = finder(Session(linked=phone))
    task = asyncio.create_task(found.find("s1"))
    await clock.advance(0.8)
    assert not task.done()
    phone.attributes["sip.phoneNumber"] = "+15105550123"
    await clock.advance(0.1)
    assert (await task).scope.user_id == "+15105550123"


async def test_a_signed_phone_claim_is_the_number_in_whatever_spelling() -> None:
    for metadata in ('{"phone": "+1 (510) 555-0123"}', '{"phone": "5105550123"}'):
        found = await caller(
            Session(linked=Participant("web-1")), job(metadata), settings=load_settings(phone_region="US")
        )
        assert (found.scope.user_id, found.identity.assurance) == ("+15105550123", Assurance.SIGNED)
    assert from_dispatch(job('{"phone": "anonymous"}')) == Given()
    assert from_dispatch(job('{"phone": "+15105550123", "user_id": "ana"}')).user_id == "ana"


async def test_without_a_number_the_caller_is_nobody_and_nothing_outlives_the_session() -> None:
    found, clock = finder(Session(linked=Participant("sip_anonymous", SIP)))
    task = asyncio.create_task(found.find("s1"))
    await clock.advance(SIP_ATTRIBUTES_S + 0.1)
    result = await task
    assert result.scope == Scope(org_id="default", agent_id="assistant", user_id="s1/PA_1", kind="session")
    assert result.identity.assurance is Assurance.ANONYMOUS


@pytest.mark.promise("P-isolated")
async def test_P_isolated_two_withheld_numbers_in_one_room_are_two() -> None:
    attributes = {"sip.phoneNumber": "anonymous"}
    first, second = (Participant("sip_anonymous", SIP, attributes, sid=sid) for sid in ("PA_1", "PA_2"))
    scopes = [(await caller(Session(linked=each))).scope for each in (first, second)]
    assert scopes[0] != scopes[1]


async def test_a_participant_without_an_identity_is_nobody() -> None:
    assert (await caller(Session(linked=Participant("")))).scope.kind == "session"


async def test_the_participant_is_waited_for() -> None:
    session = Session()
    found, clock = finder(session)
    task = asyncio.create_task(found.find("s1"))
    await clock.advance(60)
    assert not task.done()
    session.linked_participant = Participant("ana")
    await clock.advance(0.1)
    assert (await task).scope.user_id == "ana"


async def test_nobody_is_looked_for_before_the_session_has_begun() -> None:
    found, _ = finder(Session(linked=Participant("ana")))
    found.started.clear()
    task = asyncio.create_task(found.find("s1"))
    await asyncio.sleep(0)
    assert not task.done()
    found.started.set()
    assert (await task).scope.user_id == "ana"


async def test_a_session_that_is_not_in_the_jobs_room_takes_who_joins() -> None:
    assert (await caller(Session(in_room=False), job(joins=Participant("ana")))).scope.user_id == "ana"
    assert (await caller(Session(in_room=False))).scope.kind == "session"


async def test_at_a_terminal_the_room_is_a_mock_and_is_not_asked() -> None:
    with fake_job_context(room=create_mock_room()) as ctx:
        found = await caller(Session(in_room=False), ctx)
        assert (found.scope.user_id, found.identity.assurance) == (CONSOLE_USER, Assurance.SIGNED)
        assert session_id_of(ctx) is None
    with fake_job_context(room=create_mock_room(), job_metadata='{"user_id": "ana"}') as ctx:
        assert (await caller(Session(in_room=False), ctx)).scope.user_id == "ana"


def test_a_session_is_named_by_the_rooms_id_never_by_its_name() -> None:
    assert session_id_of(job(sid="RM_7")) == "RM_7"
    assert session_id_of(job(sid="")) is None
    assert session_id_of(None) is None


@pytest.mark.parametrize(("region", "user_id"), [("US", "+15105550123"), (None, "tel:5105550123")])
async def test_a_region_completes_a_number(region: str | None, user_id: str) -> None:
    phone = Participant("sip_5105550123", SIP, {"sip.phoneNumber": "5105550123"})
    settings = load_settings(phone_region=region)
    assert (await caller(Session(linked=phone), settings=settings)).scope.user_id == user_id


def test_the_signed_dispatch_may_name_the_session() -> None:
    assert session_id_of(job('{"session_id": "chat-7"}')) == "chat-7"


@pytest.mark.parametrize("name", ["user_id", "org_id", "agent_id", "session_id"])
@pytest.mark.parametrize("text", ["", "  ", "a\nb", "x" * 513, 7, None])
def test_an_id_that_can_be_no_key_is_left_out(name: str, text: object) -> None:
    ctx = job(json.dumps({name: text}), sid="RM_7")
    assert from_dispatch(ctx) == Given()
    assert session_id_of(ctx) == "RM_7"
