"""How full a worker is, by its own calls; which ends of a job are deaths; what a worker refuses to start without."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from livekit.agents import AssignmentTimeoutError, JobRequest
from livekit.agents.worker import AgentServer
from livekit.protocol import agent as protocol

from agent import worker as module
from agent.calls import HeldCall
from agent.cli import main
from agent.job import FAILED_CODE
from agent.rescue import LostCall
from agent.settings import load
from agent.worker import FULL_LOAD, Worker, default_max_calls
from memory.errors import SettingsError


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setenv("AGENT_MAX_CALLS", "8")
    made = Worker(load())
    made._proc_pool = SimpleNamespace(processes=[])  # type: ignore[assignment] # as much of it as is used
    made._devmode = False
    made._reserved_slots = 0
    return made


def busy(worker: Worker, calls: int) -> None:
    worker._proc_pool.processes[:] = [SimpleNamespace(running_job=object())] * calls


@pytest.mark.parametrize(("calls", "load"), [(0, 0.0), (2, FULL_LOAD / 4), (8, FULL_LOAD)])
def test_the_load_is_the_workers_own_calls(worker: Worker, calls: int, load: float) -> None:
    busy(worker, calls)
    assert worker.own_load() == pytest.approx(load)


def test_calls_that_come_at_once_are_taken_as_long_as_there_is_room(worker: Worker) -> None:
    taken = 0
    while worker._is_available():  # LiveKit's own question, for each of them
        worker._reserved_slots += 1
        taken += 1
        assert taken <= 8
    assert taken == 8
    worker._reserved_slots = 0
    busy(worker, 7)
    assert worker._is_available()
    busy(worker, 8)
    assert not worker._is_available()


def test_livekits_own_estimate_would_refuse_them(worker: Worker) -> None:
    """Fails once livekit-agents counts better: then the worker need not."""
    worker._worker_load = 0.0
    worker._reserved_slots = worker._num_idle_processes  # type: ignore[assignment] # a number in our worker
    assert AgentServer._get_effective_load(worker) >= FULL_LOAD


@pytest.mark.parametrize(
    ("cores", "environment", "calls"),
    [
        (2.0, {}, 8),
        (2.0, {"OPENAI_API_KEY": "k"}, 24),
        (0.5, {}, 2),
        (0.1, {}, 1),
        (2.0, {"OPENAI_API_KEY": "k", "AGENT_TTS": "local"}, 8),
    ],
)
def test_without_a_setting_the_cores_decide(
    cores: float, environment: dict[str, str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "get_cpu_monitor", lambda: SimpleNamespace(cpu_count=lambda: cores))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_max_calls(load().agent) == calls


# -- ends of jobs


@dataclass
class Seen:
    """What the worker tells of its calls."""

    held: list[HeldCall] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    lost: list[LostCall] = field(default_factory=list)
    stillborn: list[str] = field(default_factory=list)
    looks: int = 0

    def start(self) -> None:
        self.looks += 1

    def add(self, call: HeldCall) -> None:
        self.held.append(call)

    def remove(self, job_id: str) -> None:
        self.removed.append(job_id)

    def died(self, call: LostCall) -> None:
        self.lost.append(call)

    def not_launched(self, job: protocol.Job) -> None:
        self.stillborn.append(job.id)


@pytest.fixture
def seen(worker: Worker) -> Seen:
    seen = Seen()
    worker._registry = worker._rescuer = seen  # type: ignore[assignment] # as much of both as is used
    worker._closed = False
    worker._pending_assignments = {}
    return seen


def process(exitcode: int, *, closing: bool = False) -> Any:
    job = protocol.Job(id="AJ_1", dispatch_id="AD_1", agent_name="desk", metadata="m")
    job.room.sid, job.room.name = "RM_1", "room-1"
    return SimpleNamespace(running_job=SimpleNamespace(job=job), exitcode=exitcode, _closing=closing)


@pytest.mark.parametrize("exitcode", [-9, -15, 1, FAILED_CODE])
def test_a_process_that_ends_as_none_should_has_its_call_gone_on_with(
    worker: Worker, seen: Seen, exitcode: int
) -> None:
    worker._on_launched(process(exitcode))
    assert seen.held == [HeldCall("AJ_1", "RM_1", "AD_1")]
    worker._on_closed(process(exitcode))
    assert seen.lost == [LostCall("room-1", "AJ_1", "desk", "m", "", deaths=1)]
    assert seen.removed == []  # it is held until an agent is back


def test_a_call_that_is_over_is_over(worker: Worker, seen: Seen) -> None:
    worker._on_launched(process(0))
    worker._on_closed(process(0))
    assert (seen.lost, seen.removed) == ([], ["AJ_1"])


@pytest.mark.case("S08")
def test_S08_of_calls_that_have_ended_the_worker_keeps_nothing(worker: Worker, seen: Seen) -> None:
    for number in range(500):
        ended = process(0 if number % 2 else -9)
        ended.running_job.job.id = f"AJ_{number}"
        worker._on_launched(ended)
        worker._on_closed(ended)
    assert worker._began == {}
    assert [call.job_id for call in seen.held[1::2]] == seen.removed
    assert [call.job_id for call in seen.held[::2]] == [call.job_id for call in seen.lost]  # the rescuer's to let go


def test_what_was_told_to_end_did_not_die(worker: Worker, seen: Seen) -> None:
    worker._on_closed(process(-9, closing=True))
    worker._closed = True
    worker._on_closed(process(-9))
    assert (seen.lost, seen.removed) == ([], ["AJ_1", "AJ_1"])


def test_a_process_without_a_call_is_no_call(worker: Worker, seen: Seen) -> None:
    worker._on_closed(SimpleNamespace(running_job=None, exitcode=-9))
    assert (seen.lost, seen.removed) == ([], [])


def offered(worker: Worker, *, given: bool, error: Exception | None = None) -> JobRequest:
    """A call that LiveKit offers and then gives to this worker, or not; ``error``: what launching it comes to."""
    job = process(0).running_job.job

    async def accepted(_: Any) -> None:
        if given:
            worker._pending_assignments[job.id] = asyncio.get_running_loop().create_future()
            worker._handle_assignment(protocol.JobAssignment(job=job))
        if error is not None:
            raise error

    async def rejected(_: bool) -> None:
        raise AssertionError("nobody rejects a call")

    return JobRequest(job=job, on_reject=rejected, on_accept=accepted)


@pytest.mark.promise("P-durable")
async def test_P_durable_a_job_that_can_not_be_launched_has_died_before_it_lived(worker: Worker, seen: Seen) -> None:
    with pytest.raises(RuntimeError, match="no process"):
        await worker._on_request(offered(worker, given=True, error=RuntimeError("no process became available")))
    assert (seen.held, seen.removed) == ([HeldCall("AJ_1", "RM_1", "AD_1")], [])
    assert seen.stillborn == ["AJ_1"]
    assert worker._given == set()


async def test_a_job_that_is_launched_is_held_from_the_moment_it_is_given(worker: Worker, seen: Seen) -> None:
    await worker._on_request(offered(worker, given=True))
    assert (seen.held, seen.removed, seen.stillborn) == ([HeldCall("AJ_1", "RM_1", "AD_1")], [], [])
    assert worker._given == set()


async def test_a_job_that_was_given_to_another_worker_is_its_to_see_to(worker: Worker, seen: Seen) -> None:
    with pytest.raises(AssignmentTimeoutError):
        await worker._on_request(offered(worker, given=False, error=AssignmentTimeoutError()))
    worker._handle_assignment(protocol.JobAssignment(job=process(0).running_job.job))  # too late, or unasked
    assert (seen.held, seen.stillborn) == ([], [])


async def test_a_worker_that_ends_launches_nothing_and_sends_nobody(worker: Worker, seen: Seen) -> None:
    worker._closed = True
    with pytest.raises(RuntimeError):
        await worker._on_request(offered(worker, given=True, error=RuntimeError("closed")))
    assert (seen.removed, seen.stillborn) == (["AJ_1"], [])


def test_livekit_asks_this_worker_itself(worker: Worker) -> None:
    assert worker._request_fnc == worker._on_request


@pytest.mark.promise("P-durable")
def test_P_durable_calls_of_others_are_looked_for_from_the_registration_on(worker: Worker, seen: Seen) -> None:
    for _ in range(2):  # again when a lost connection is back
        worker._on_registered("AW_1", None)
    assert seen.looks == 1


def test_a_job_that_can_not_go_on_ends_with_a_code_that_tells(tmp_path: Any) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import multiprocessing\n"
        "from types import SimpleNamespace\n"
        "from livekit.agents import JobExecutorType\n"
        "from agent.job import Call\n"
        "def run():\n"
        "    ctx = SimpleNamespace(job=SimpleNamespace(attributes={}), shutdown=print,\n"
        "                          proc=SimpleNamespace(executor_type=JobExecutorType.PROCESS))\n"
        "    Call(ctx)._fail()\n"
        "    multiprocessing.util.Finalize(None, print, args=('everything else is done first',), exitpriority=10)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=run)\n"
        "    process.start(); process.join(); print(process.exitcode)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True, env=_environment()
    )
    assert done.stdout.split("\n")[-4:-1] == ["the call failed", "everything else is done first", str(FAILED_CODE)]


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), "PYTHONUNBUFFERED": "1"}


# -- starting


@pytest.mark.parametrize("command", ["start", "dev"])
def test_without_a_livekit_server_it_says_what_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--log-level", "ERROR", "--url", "ws://127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert "LIVEKIT_API_KEY" in told
    assert "LIVEKIT_API_SECRET" in told
    assert "LIVEKIT_URL:" not in told


def test_console_says_who_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console"]) == 2
    assert "--connect-addr" in capsys.readouterr().err


async def test_a_health_port_that_is_taken_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("AGENT_HEALTH_HOST", "127.0.0.1")
        monkeypatch.setenv("AGENT_HEALTH_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("MEMORY_ENABLED", "false")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        worker = Worker(load())
        with pytest.raises(SettingsError, match="AGENT_HEALTH_PORT"):
            await worker.run()
        assert isinstance(worker.failure, SettingsError)
        async with asyncio.timeout(5):  # what LiveKit's command does then
            await worker.drain()
            await worker.aclose()
