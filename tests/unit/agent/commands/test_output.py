"""What is printed arrives whole and in order, never holds anything up, and ends quietly with its reader."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from agent.commands.output import Output, milliseconds, table

READY_S = 10.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


def test_lines_and_events_keep_their_order(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    output.text("half ")
    output.line("a line")
    output.event("turn", text="ünï\n", at=1.5)
    output.close(timeout_s=READY_S)
    first, second = os.read(pipe[0], 4096).decode().splitlines()
    assert first == "half a line"
    assert json.loads(second) == {"event": "turn", "text": "ünï\n", "at": 1.5}


def test_a_terminal_is_not_commanded_by_what_was_said(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    output.line("\x1b[2Jgone\x07 \ud800")
    output.event("turn", text="\ud800")
    output.close(timeout_s=READY_S)
    data = os.read(pipe[0], 4096)
    assert b"\x1b" not in data
    assert b"\x07" not in data


async def test_a_paused_reader_holds_nothing_up(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    output.text("x" * 1_000_000)
    drained = asyncio.create_task(output.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    size = 0
    async with asyncio.timeout(READY_S):
        while size < 1_000_000:
            size += len(await asyncio.to_thread(os.read, pipe[0], 1 << 16))
        await drained


async def test_a_reader_that_went_away_is_told_of_once(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    broken = asyncio.Event()
    told: list[int] = []

    def on_broken() -> None:
        told.append(1)
        broken.set()

    output.watch(on_broken)
    os.close(pipe[0])
    for _ in range(3):
        output.line("anybody?")
    async with asyncio.timeout(READY_S):
        await broken.wait()
        await output.drained()
    assert isinstance(output.failure, BrokenPipeError)
    assert told == [1]


def test_columns_are_in_line() -> None:
    assert table([["what", "ms"], ["x", "1000"]]) == ["what    ms", "x     1000"]


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.04, "0.0 ms"), (7.26, "7.3 ms"), (430.4, "430 ms")])
def test_times_are_short(value: float | None, shown: str) -> None:
    assert milliseconds(value) == shown
