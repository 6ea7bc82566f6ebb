"""Workers that die over bringing an agent back: the next one goes on where they were, and the call's deaths add up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from livekit import api
from livekit.protocol import agent as protocol

from agent.calls import HeldCall, LeftBehind
from agent.dispatch import Rescue
from agent.rescue import ARRIVAL_S, DEATHS_MAX, LAUNCH_S, PAUSES_S, SCAN_S, LostCall
from tests.support.rescuing import CALL, USER, Desk, Server, agent, open_desk, sent

HELD = HeldCall("AJ_dead", "RM_room-1", "AD_1")
NEXT = HeldCall("AJ_next", "RM_room-1", "AD_2")

pytestmark = pytest.mark.promise("P-durable")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_desk() as made:
        made.server.people["room-1"] = [USER]
        made.server.made = [api.AgentDispatch(id="AD_1", metadata="mine")]
        yield made


def left_by(*calls: HeldCall, worker: str = "w2", certain: bool = True) -> LeftBehind:
    return LeftBehind(worker, list(calls), certain)


def counted(desk: Desk) -> list[int]:
    """How many deaths each dispatch that was made speaks of."""
    rescues = [Rescue.of(protocol.Job(attributes=dict(made.attributes))) for made in desk.server.dispatched]
    return [rescue.count for rescue in rescues if rescue is not None]


# -- what is held


async def test_a_call_is_held_until_an_agent_is_back(desk: Desk) -> None:
    desk.registry.held = {"AJ_dead"}
    desk.server.arrives, desk.server.takes = False, True
    desk.rescuer.died(CALL)
    await desk.pass_time(LAUNCH_S - 5)
    assert desk.registry.held == {"AJ_dead"}
    desk.server.people["room-1"].append(agent("AJ_1"))
    await desk.pass_time(1)
    assert desk.registry.held == set()


async def test_a_call_whose_jobs_have_died_too_often_is_held_no_more(desk: Desk) -> None:
    desk.registry.held = {"AJ_dead"}
    desk.rescuer.died(LostCall("room-1", "AJ_dead", "", "", "", deaths=DEATHS_MAX + 1))
    assert desk.registry.held == set()


async def test_a_rescuers_job_that_was_never_launched_is_held_no_more(desk: Desk) -> None:
    desk.registry.held = {"AJ_1"}
    desk.rescuer.not_launched(protocol.Job(id="AJ_1", attributes=Rescue("AJ_dead", 1).attributes()))
    assert desk.registry.held == set()


@pytest.mark.parametrize("draining", [False, True])
async def test_a_call_that_no_worker_takes_is_given_up_unless_the_next_worker_is_still_to_come(
    desk: Desk, draining: bool
) -> None:
    desk.registry.held, desk.draining = {"AJ_dead"}, draining
    desk.server.arrives = False
    desk.rescuer.died(CALL)
    await desk.pass_time(60)
    assert len(desk.server.dispatched) == len(PAUSES_S)
    assert (desk.registry.held, desk.registry.unfinished) == (({"AJ_dead"},) * 2 if draining else (set(), set()))


async def test_closing_leaves_what_is_under_way_to_others(desk: Desk) -> None:
    desk.registry.held = {"AJ_dead"}
    desk.server.arrives = False
    desk.rescuer.died(CALL)
    await desk.pass_time(0.5)
    await desk.rescuer.aclose()
    assert (desk.registry.held, desk.registry.unfinished) == ({"AJ_dead"}, {"AJ_dead"})


async def test_what_nobody_foresaw_ends_neither_the_looking_nor_holds_a_call_for_good(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise ValueError("ana said: 4111 1111 1111 1111")

    with monkeypatch.context() as patched:
        patched.setattr(desk.server, "list_participants", broken)
        desk.registry.held = {"AJ_other"}
        desk.rescuer.died(LostCall("room-2", "AJ_other", "", "", "", deaths=1))
        desk.registry.left = [left_by(HELD)]
        desk.rescuer.start()
        await desk.pass_time(1)
    assert desk.registry.held == set()
    assert "ValueError" in caplog.text
    assert "4111" not in caplog.text
    await desk.pass_time(SCAN_S + 1)
    assert len(desk.server.dispatched) == 1


# -- whom the dead one has sent


async def test_whom_a_dead_worker_has_sent_and_who_is_on_the_way_is_waited_for(desk: Desk) -> None:
    desk.server.made += [sent("AD_2", "AJ_dead", job_id="AJ_new"), sent("AD_3", "AJ_of_another_call", job_id="AJ_x")]
    desk.registry.left = [left_by(HELD)]
    desk.rescuer.start()
    await desk.pass_time(ARRIVAL_S + 1)
    assert (desk.server.called_off, desk.server.dispatched) == ([], [])
    desk.server.people["room-1"].append(agent("AJ_new"))
    await desk.pass_time(60)
    assert (desk.server.called_off, desk.server.dispatched, desk.registry.held) == ([], [], set())


async def test_whom_a_dead_worker_has_sent_and_who_never_comes_is_called_off_before_another_is_sent(desk: Desk) -> None:
    desk.server.made += [sent("AD_2", "AJ_dead", job_id="AJ_new"), sent("AD_3", "AJ_of_another_call", job_id="AJ_x")]
    desk.registry.left = [left_by(HELD)]
    desk.rescuer.start()
    await desk.pass_time(LAUNCH_S + PAUSES_S[1] + 1)
    assert desk.server.called_off == ["AD_2"]
    assert counted(desk) == [2]


async def test_whom_a_dead_worker_has_sent_to_itself_is_not_waited_for(desk: Desk) -> None:
    desk.server.made.append(sent("AD_2", "AJ_dead", job_id="AJ_next"))  # LiveKit has yet to notice
    desk.registry.left = [left_by(HELD, NEXT)]
    desk.rescuer.start()
    await desk.pass_time(1)
    assert desk.server.called_off == ["AD_2"]
    assert counted(desk) == [2]


async def test_whom_a_dead_worker_has_sent_in_place_of_whom_it_had_sent_is_found_as_well(desk: Desk) -> None:
    """The dispatch in between was called off, so that nothing tells of the second job but the dead worker's list."""
    desk.server.made.append(sent("AD_3", "AJ_next", count=2))
    desk.registry.left = [left_by(HELD, NEXT)]
    desk.rescuer.start()
    await desk.pass_time(1)
    assert desk.server.called_off == ["AD_3"]
    assert counted(desk) == [3]


async def test_a_dispatch_that_livekit_made_without_saying_so_is_not_made_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = desk.server.create_dispatch

    async def created(request: api.CreateAgentDispatchRequest) -> api.AgentDispatch:
        await create(request)
        raise TimeoutError

    desk.server.arrives, desk.server.takes = False, True
    desk.rescuer.died(CALL)
    monkeypatch.setattr(desk.server, "create_dispatch", created)
    await desk.pass_time(LAUNCH_S - 5)
    assert (len(desk.server.dispatched), desk.server.called_off) == (1, [])


async def test_the_ghost_of_a_job_that_has_died_as_well_is_no_answer(desk: Desk) -> None:
    """Two workers are gone together: one had sent the other's job, and had not yet let the call go."""
    desk.server.people["room-1"] = [USER, agent("AJ_next")]
    desk.server.made.append(sent("AD_2", "AJ_dead", job_id="AJ_next"))
    desk.registry.left = [left_by(NEXT, worker="w1"), left_by(HELD, worker="w2")]
    desk.rescuer.start()
    await desk.pass_time(5)
    assert desk.server.removed == ["agent-AJ_next"]
    assert desk.server.people["room-1"] == [USER, agent("AJ_1")]
    assert counted(desk) == [2]


async def test_the_ghost_of_whom_a_dead_worker_had_called_off_is_no_answer(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, agent("AJ_next")]
    desk.registry.left = [left_by(HELD, NEXT)]
    desk.rescuer.start()
    await desk.pass_time(5)
    assert sorted(desk.server.removed) == ["agent-AJ_dead", "agent-AJ_next"]
    assert desk.server.people["room-1"] == [USER, agent("AJ_1")]


# -- how often


async def test_the_deaths_of_a_call_that_kills_its_workers_add_up() -> None:
    server, counts = Server({"room-1": [USER]}, arrives=False, takes=True), []
    server.made = [api.AgentDispatch(id="AD_1")]
    for _ in range(DEATHS_MAX + 3):
        async with open_desk(server) as desk:  # each worker sends an agent, and dies
            desk.registry.left = [left_by(HELD, *(HeldCall(f"AJ_{n + 1}", "RM_room-1", "AD_x") for n in range(9)))]
            desk.rescuer.start()
            await desk.pass_time(1)
        counts = counted(desk)
    assert counts == list(range(1, DEATHS_MAX + 1))


async def test_a_call_that_can_not_be_looked_at_keeps_no_other_one_waiting_and_begun_anew(desk: Desk) -> None:
    """Such as in a room whose node is gone."""
    desk.server.arrives = False
    desk.server.people |= {"room-2": [USER], "room-3": [USER]}
    desk.server.unreachable = {"room-2"}
    desk.server.made.append(api.AgentDispatch(id="AD_3"))
    lost, other = HeldCall("AJ_lost", "RM_room-2", "AD_1"), HeldCall("AJ_other", "RM_room-3", "AD_3")
    desk.registry.left = [left_by(lost, HELD, worker="w1"), left_by(other, worker="w2")]
    desk.rescuer.start()
    await desk.pass_time(300)
    assert sorted(made.room for made in desk.server.dispatched) == sorted(["room-1", "room-3"] * len(PAUSES_S))
    assert [each.calls for each in desk.registry.left] == [[lost]]
    desk.server.unreachable = set()
    await desk.pass_time(SCAN_S + 1)
    assert desk.server.dispatched[-1].room == "room-2"


async def test_a_worker_that_may_live_is_left_its_jobs_that_are_in_the_room(desk: Desk) -> None:
    desk.server.people["room-1"] = [USER, agent("AJ_next")]
    desk.server.made.append(sent("AD_2", "AJ_dead", job_id="AJ_next"))
    desk.registry.left = [left_by(HELD, NEXT, certain=False)]
    desk.rescuer.start()
    await desk.pass_time(5)
    assert (desk.server.removed, desk.server.dispatched) == ([], [])
    assert [each.calls for each in desk.registry.left] == [[NEXT]]
