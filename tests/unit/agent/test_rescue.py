"""Calls whose job has died: when an agent is brought back, when nobody wants one, and when it is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from livekit import api
from livekit.protocol import agent as protocol
from livekit.protocol import models

from agent.calls import HeldCall, LeftBehind
from agent.dispatch import Rescue
from agent.rescue import (
    ARRIVAL_S,
    DEATHS_MAX,
    LASTING_S,
    LAUNCH_S,
    PAUSES_S,
    SCAN_S,
    LostCall,
    Rescuer,
    is_user,
    lost,
)
from memory.errors import DataDirectoryUnusable, StoreUnavailable
from tests.support.recalls import ManualClock
from tests.support.rescuing import CALL, GHOST, USER, Desk, Kind, Server, agent, open_desk


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_desk() as made:
        yield made


async def test_the_same_dispatch_is_made_again_and_says_whose_place_it_takes(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, GHOST]
    desk.rescuer.died(CALL)
    await desk.pass_time(1)
    [request] = desk.server.dispatched
    assert (request.room, request.agent_name, request.metadata) == ("room-1", "", '{"user_id": "ana"}')
    assert Rescue.of(protocol.Job(attributes=dict(request.attributes))) == Rescue("AJ_dead", 1)
    assert desk.server.removed == ["agent-AJ_dead"]
    await desk.pass_time(60)
    assert len(desk.server.dispatched) == 1


@pytest.mark.parametrize("people", [None, [], [GHOST], [agent("AJ_other", "notetaker")]])
async def test_where_nobody_is_left_nobody_is_sent(desk: Desk, people: list[models.ParticipantInfo] | None) -> None:
    if people is not None:
        desk.server.people["room-1"] = people
    desk.rescuer.died(CALL)
    await desk.pass_time(60)
    assert desk.server.dispatched == []


async def test_where_another_answers_already_nobody_is_sent(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, GHOST, agent("AJ_new")]
    desk.rescuer.died(CALL)
    await desk.pass_time(60)
    assert (desk.server.dispatched, desk.server.removed) == ([], [])


async def test_an_agent_of_another_kind_is_no_answer(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, agent("AJ_other", "notetaker")]
    desk.rescuer.died(CALL)
    await desk.pass_time(1)
    assert len(desk.server.dispatched) == 1


async def test_who_does_not_arrive_is_sent_for_again_and_given_up_at_last(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.server.people["room-1"] = [USER]
    desk.server.arrives = False
    desk.rescuer.died(CALL)
    await desk.pass_time(120)
    assert len(desk.server.dispatched) == len(PAUSES_S)
    assert "given up (job AJ_dead)" in caplog.text


async def test_who_is_on_the_way_is_waited_for_and_nobody_sent_beside(desk: Desk) -> None:
    """A machine that begins many calls at once may need longer than ``ARRIVAL_S`` for one."""
    desk.server.people["room-1"] = [USER]
    desk.server.arrives, desk.server.takes = False, True
    desk.rescuer.died(CALL)
    await desk.pass_time(LAUNCH_S - 5)
    desk.server.people["room-1"].append(agent("AJ_1"))
    await desk.pass_time(60)
    assert (len(desk.server.dispatched), desk.server.called_off) == (1, [])


async def test_who_never_comes_is_called_off_before_another_is_sent(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER]
    desk.server.arrives, desk.server.takes = False, True
    desk.rescuer.died(CALL)
    await desk.pass_time(LAUNCH_S + 2)
    assert (len(desk.server.dispatched), desk.server.called_off) == (2, ["AD_AJ_1"])
    desk.server.made[0].state.jobs[0].state.status = protocol.JS_FAILED  # it came to nothing
    await desk.pass_time(ARRIVAL_S + PAUSES_S[2] + 1)
    assert (len(desk.server.dispatched), desk.server.called_off) == (3, ["AD_AJ_1", "AD_AJ_2"])


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ClientConnectionError("refused"),
        TimeoutError(),
        api.TwirpError(api.TwirpErrorCode.UNAVAILABLE, "+15105550123 is busy", status=503),
    ],
)
async def test_livekit_is_asked_again_when_it_does_not_answer(
    desk: Desk, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    desk.server.people["room-1"] = [USER]
    desk.server.errors = [error]
    desk.rescuer.died(CALL)
    await desk.pass_time(3)
    assert len(desk.server.dispatched) == 1
    assert "5105550123" not in caplog.text


def test_a_call_that_kills_its_jobs_is_counted_and_one_that_lasts_begins_anew() -> None:
    job = protocol.Job(id="AJ_2", attributes=Rescue("AJ_1", 3).attributes(), metadata="m", agent_name="a")
    job.room.name = "room-1"
    assert lost(job, lived_s=1) == LostCall("room-1", "AJ_2", "a", "m", "", deaths=4)
    assert lost(job, lived_s=LASTING_S).deaths == 1
    assert lost(protocol.Job(id="AJ_1"), lived_s=1).deaths == 1


async def test_a_call_that_kills_every_job_is_given_up(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.server.people["room-1"] = [USER]
    desk.rescuer.died(LostCall("room-1", "AJ_9", "", "", "", deaths=DEATHS_MAX + 1))
    await desk.pass_time(60)
    assert desk.server.dispatched == []
    assert "given up (job AJ_9)" in caplog.text


@pytest.mark.parametrize(
    ("kind", "user"), [(Kind.STANDARD, True), (Kind.SIP, True), (Kind.AGENT, False), (Kind.EGRESS, False)]
)
def test_users_are_people(kind: Any, user: bool) -> None:
    assert is_user(models.ParticipantInfo(kind=kind)) is user


# -- calls of other workers

HELD = HeldCall("AJ_dead", "RM_room-1", "AD_1")


def left_by(worker: str = "w2", *calls: HeldCall, certain: bool = True) -> list[LeftBehind]:
    return [LeftBehind(worker, list(calls) or [HELD], certain)]


def made(desk: Desk) -> None:
    desk.server.made = [
        api.AgentDispatch(id="AD_0", metadata="other"),
        api.AgentDispatch(id="AD_1", agent_name="", metadata="mine"),
    ]


async def test_the_call_of_a_dead_worker_is_gone_on_with_beside_its_ghost(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, GHOST]
    made(desk)
    desk.registry.left = left_by()
    desk.rescuer.start()
    await desk.pass_time(1)
    [request] = desk.server.dispatched
    assert request.metadata == "mine"
    assert desk.server.removed == ["agent-AJ_dead"]
    assert desk.registry.forgotten == [("w2", ["AJ_dead"], True)]


async def test_a_worker_that_may_live_is_left_alone_as_long_as_its_agent_is_in_the_room(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, GHOST]
    made(desk)
    desk.registry.left = left_by(certain=False)
    desk.rescuer.start()
    await desk.pass_time(1)
    assert desk.server.dispatched == []
    assert desk.registry.forgotten == [("w2", [], False)]

    desk.registry.left = left_by(certain=False)
    desk.server.people["room-1"] = [USER]  # LiveKit has noticed as well
    await desk.pass_time(SCAN_S + 1)
    assert len(desk.server.dispatched) == 1


async def test_of_two_workers_that_notice_one_goes_on(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER]
    made(desk)
    desk.registry.taken = {"AJ_dead"}
    desk.registry.left = left_by()
    desk.rescuer.start()
    await desk.pass_time(1)
    assert desk.server.dispatched == []
    assert desk.registry.forgotten == [("w2", [], False)]  # the other one says when it is settled


async def test_rooms_that_are_gone_or_empty_are_forgotten(desk: Desk) -> None:
    desk.server.people["room-2"] = []
    desk.registry.left = left_by("w2", HELD, HeldCall("AJ_2", "RM_room-2", "AD_2"))
    desk.rescuer.start()
    await desk.pass_time(1)
    assert desk.registry.forgotten == [("w2", ["AJ_dead", "AJ_2"], True)]
    assert desk.server.dispatched == []


async def test_looking_goes_on_when_redis_was_away(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.registry.error = StoreUnavailable("Redis is away.")
    desk.rescuer.start()
    await desk.pass_time(1)
    desk.registry.error = None
    desk.server.people["room-1"] = [USER]
    made(desk)
    desk.registry.left = left_by()
    with caplog.at_level(logging.WARNING):
        await desk.pass_time(SCAN_S + 1)
    assert len(desk.server.dispatched) == 1


async def test_looking_goes_on_when_the_locks_could_not_be_looked_at(desk: Desk) -> None:
    """Such as where a process had no file left to open."""
    desk.server.people["room-1"] = [USER]
    desk.registry.blind = DataDirectoryUnusable("too many open files")
    desk.rescuer.start()
    await desk.pass_time(2 * SCAN_S)
    desk.registry.blind = None
    made(desk)
    desk.registry.left = left_by()
    await desk.pass_time(2 * SCAN_S)
    assert len(desk.server.dispatched) == 1


async def test_closing_stops_what_is_under_way() -> None:
    server, clock = Server({"room-1": [USER]}, arrives=False), ManualClock()
    rescuer = Rescuer(server, None, clock)  # type: ignore[arg-type] # as much of it as is used
    rescuer.start()
    rescuer.died(CALL)
    await clock.advance(0.5)
    async with asyncio.timeout(5):
        await rescuer.aclose()
    assert server.closed
