"""Jobs that die, or are never launched, while their call is being seen to: no crowd of agents, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from livekit import api
from livekit.protocol import agent as protocol

from agent.dispatch import Rescue
from agent.rescue import ARRIVAL_S, DEATHS_MAX, PAUSES_S, lost
from tests.support.rescuing import CALL, USER, Desk, agent, open_desk

ROOM = "room-1"


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_desk() as made:
        made.server.people[ROOM] = [USER]
        yield made


def job_of(desk: Desk, number: int) -> protocol.Job:
    """The job that the ``number``-th dispatch made."""
    request = desk.server.dispatched[number]
    made = protocol.Job(id=f"AJ_{number + 1}", dispatch_id=f"AD_AJ_{number + 1}", agent_name=request.agent_name)
    made.attributes.update(request.attributes)
    made.room.name = request.room
    return made


def happens_to_each(desk: Desk, what: Callable[[protocol.Job], None]) -> None:
    """``what`` happens to each job that is sent, right after."""
    create = desk.server.create_dispatch

    async def created(request: api.CreateAgentDispatchRequest) -> api.AgentDispatch:
        made = await create(request)
        number = len(desk.server.dispatched) - 1
        asyncio.get_running_loop().call_soon(lambda: what(job_of(desk, number)))
        return made

    desk.server.create_dispatch = created  # type: ignore[method-assign]


async def test_a_call_whose_jobs_all_die_before_they_arrive_is_given_up_after_so_many(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.server.arrives, desk.server.takes = False, True
    happens_to_each(desk, lambda job: desk.rescuer.died(lost(job, lived_s=0.3)))
    desk.rescuer.died(CALL)
    await desk.pass_time(300)
    assert len(desk.server.dispatched) == DEATHS_MAX
    assert caplog.text.count("given up") == 1


async def test_a_call_whose_jobs_all_die_in_the_room_is_given_up_after_so_many(desk: Desk) -> None:
    happens_to_each(desk, lambda job: desk.rescuer.died(lost(job, lived_s=0.3)))
    desk.rescuer.died(CALL)
    await desk.pass_time(300)
    assert len(desk.server.dispatched) == DEATHS_MAX
    assert len(desk.server.removed) == DEATHS_MAX  # each ghost goes before the next one comes


async def test_a_job_that_dies_on_its_way_is_followed_by_another_at_once(desk: Desk) -> None:
    desk.server.arrives, desk.server.takes = False, True
    desk.rescuer.died(CALL)
    await desk.pass_time(1)
    desk.server.arrives = True
    desk.rescuer.died(lost(job_of(desk, 0), lived_s=0.3))
    await desk.pass_time(0.5)
    assert [Rescue.of(job_of(desk, number)) for number in (0, 1)] == [Rescue("AJ_dead", 1), Rescue("AJ_1", 2)]
    assert desk.server.called_off == ["AD_AJ_1"]  # should it live after all
    await desk.pass_time(60)
    assert len(desk.server.dispatched) == 2


async def test_a_death_after_the_arrival_is_seen_to_as_any_other(desk: Desk) -> None:
    desk.rescuer.died(CALL)
    await desk.pass_time(5)
    desk.rescuer.died(lost(job_of(desk, 0), lived_s=3))
    await desk.pass_time(1)
    assert len(desk.server.dispatched) == 2
    assert desk.server.people[ROOM] == [USER, agent("AJ_2")]


async def test_calls_in_other_rooms_and_of_other_agents_do_not_wait_for_one_another(desk: Desk) -> None:
    desk.server.people["room-2"] = [USER]
    desk.server.arrives, desk.server.takes = False, True
    for room, name in ((ROOM, ""), (ROOM, "notetaker"), ("room-2", "")):
        died = protocol.Job(id=f"AJ_{room}{name}", agent_name=name)
        died.room.name = room
        desk.rescuer.died(lost(died, lived_s=1))
    await desk.pass_time(0.5)
    assert [(made.room, made.agent_name) for made in desk.server.dispatched] == [
        (ROOM, ""),
        (ROOM, "notetaker"),
        ("room-2", ""),
    ]


async def test_a_job_that_was_never_launched_is_a_death(desk: Desk) -> None:
    given = protocol.Job(id="AJ_dead", dispatch_id="AD_dead", metadata="m")
    given.room.name = ROOM
    desk.rescuer.not_launched(given)
    await desk.pass_time(1)
    [request] = desk.server.dispatched
    assert (request.metadata, Rescue.of(job_of(desk, 0))) == ("m", Rescue("AJ_dead", 1))


async def test_jobs_that_are_sent_and_never_launched_are_waited_for_no_longer_and_sent_again_a_few_times(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """LiveKit says that such a job is running, however long."""
    desk.server.arrives, desk.server.takes = False, True
    happens_to_each(desk, desk.rescuer.not_launched)
    desk.rescuer.died(CALL)
    for number, pause_s in enumerate(PAUSES_S):
        await desk.pass_time(pause_s + 0.5)
        assert len(desk.server.dispatched) == number + 1
        await desk.pass_time(ARRIVAL_S)
    await desk.pass_time(300)
    assert len(desk.server.dispatched) == len(PAUSES_S)
    assert desk.server.made == []
    assert caplog.text.count("given up") == 1


async def test_livekit_away_when_a_job_is_given_back_costs_a_longer_wait_only(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(desk.server, "delete_dispatch", away)
    given = protocol.Job(id="AJ_1", dispatch_id="AD_AJ_1", attributes=Rescue("AJ_dead", 1).attributes())
    desk.rescuer.not_launched(given)
    await desk.pass_time(1)
    assert "waited for in vain (TimeoutError)" in caplog.text
    assert desk.server.dispatched == []
