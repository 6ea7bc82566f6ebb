"""Ending what runs: threads first, tasks that drop a cancellation too, and nothing that outlasts its time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from memory.retrieval import tasks
from memory.retrieval.tasks import end_all, to_the_end, within
from tests.support.recalls import settle


async def deaf(times: int) -> None:
    """Drops its first cancellations, as a library on the way may."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not times:
                raise
            times -= 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_END_S", 0.01)


async def test_a_task_that_drops_a_cancellation_is_told_again() -> None:
    running = [asyncio.create_task(deaf(times)) for times in (0, 1, 3)]
    await settle()
    await end_all([*running, None])
    assert all(task.cancelled() for task in running)


async def test_a_task_that_never_ends_is_left_behind_and_told(caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.create_task(deaf(tasks._ENDS_MAX))
    await settle()
    await end_all([running])
    assert not running.done()
    assert "do not end" in caplog.text
    running.cancel()
    await asyncio.wait([running])


async def test_a_task_that_has_failed_is_no_news() -> None:
    async def failing() -> None:
        raise ValueError

    task = asyncio.create_task(failing())
    await settle()
    await end_all([task])
    assert isinstance(task.exception(), ValueError)


async def test_work_has_its_time_and_its_errors() -> None:
    async def failing() -> None:
        raise ValueError("broken")

    with pytest.raises(TimeoutError):
        await within(0.01, deaf(1))
    with pytest.raises(ValueError, match="broken"):
        await within(10, failing())
    await within(10, asyncio.sleep(0))


async def test_a_cancelled_caller_waits_for_its_thread() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(10)
        ended.set()

    task = asyncio.create_task(to_the_end(work))
    await settle()
    task.cancel()
    await settle()
    assert not task.done()
    go_on.set()
    await asyncio.wait([task])
    assert ended.is_set()
    assert task.cancelled()
