"""Lines of a pipe: one a turn, whatever bytes they hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from agent.commands.lines import LineReader, LineTooLong, PipeLines
from memory.limits import ENTRY_CONTENT_BYTES_MAX


class Pipe:
    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.lines = LineReader(PipeLines(self.reading))

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)

    def end(self) -> None:
        os.close(self.writing)

    async def read(self) -> str | None:
        async with asyncio.timeout(10):
            return await self.lines.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    yield opened
    for descriptor in (opened.reading, opened.writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


async def test_lines_come_one_at_a_time(pipe: Pipe) -> None:
    pipe.write(b"one\r\n\ntwo\nthree")
    pipe.end()
    assert [await pipe.read() for _ in range(5)] == ["one", "", "two", "three", None]
    assert await pipe.read() is None


async def test_a_line_may_come_in_pieces(pipe: Pipe) -> None:
    reading = asyncio.create_task(pipe.read())
    pipe.write(b"hel")
    pipe.write(b"lo\n")
    assert await reading == "hello"


async def test_bytes_that_are_no_text_are_replaced(pipe: Pipe) -> None:
    pipe.write(b"caf\xe9 \xff\n")
    assert await pipe.read() == "caf\ufffd \ufffd"


async def test_a_line_that_is_too_long_is_skipped_and_the_next_one_read(pipe: Pipe) -> None:
    writing = asyncio.create_task(
        asyncio.to_thread(_write_all, pipe, b"x" * (ENTRY_CONTENT_BYTES_MAX + 70_000) + b"\nnext\n")
    )
    with pytest.raises(LineTooLong, match="split it"):
        await pipe.read()
    assert await pipe.read() == "next"
    await writing


def _write_all(pipe: Pipe, data: bytes) -> None:
    while data:
        data = data[os.write(pipe.writing, data) :]


async def test_the_largest_turn_is_read(pipe: Pipe) -> None:
    writing = asyncio.create_task(asyncio.to_thread(_write_all, pipe, b"x" * ENTRY_CONTENT_BYTES_MAX + b"\n"))
    line = await pipe.read()
    assert line is not None
    assert len(line) == ENTRY_CONTENT_BYTES_MAX
    await writing


async def test_a_closed_input_is_at_its_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    assert await LineReader(PipeLines(reading)).read() is None


async def test_a_reading_that_was_given_up_does_not_disturb_the_loop(pipe: Pipe) -> None:
    reading = asyncio.create_task(pipe.lines.read())
    await asyncio.sleep(0)
    reading.cancel()
    pipe.write(b"late\nnext\n")
    assert await pipe.read() == "next"
