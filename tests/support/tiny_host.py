"""A host that answers each connection with its process id: for tests of ``hosting``. Also a user of it, as a process.

``python -m tests.support.tiny_host <data_dir> <idle_s> <mode>``, where mode is ``serve``, ``gate`` (serve once the file
``gate`` is in the data directory), ``fail``, ``hang``, ``deaf`` (hang, and ignore SIGTERM), ``leave`` (exit code 0) or
``use`` (be a user: print the host's id, and stay until stdin ends).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from memory.hosting import HostRole, HostSpec, HostUse, serving

NAME = "tiny"


def spec_of(data_dir: Path, *, idle_s: float = 0.0, mode: str = "serve") -> HostSpec:
    return HostSpec.module(NAME, data_dir, "tests.support.tiny_host", str(data_dir), str(idle_s), mode)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(data_dir: Path, what: str) -> None:
    with (data_dir / "notes").open("a") as notes:
        notes.write(f"{what} {os.getpid()}\n")


def notes(data_dir: Path, what: str) -> list[int]:
    """The ids of the processes that noted ``what``, in order."""
    path = data_dir / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == what]


async def pid_behind(socket: Path) -> int:
    """Which process serves ``socket``."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    return int(line)


async def _serve(data_dir: Path, role: HostRole, gate: Path | None) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{os.getpid()}\n".encode())
        await writer.drain()

    while gate is not None and not gate.exists():
        await asyncio.sleep(0.01)
    async with serving(role.spec, answer):
        note(data_dir, "serving")
        await role.unused()
    role.release()
    note(data_dir, "ended")


async def _use(data_dir: Path, idle_s: float) -> None:
    use = HostUse(spec_of(data_dir, idle_s=idle_s))
    say(str(await pid_behind(await use.ensure())))
    await asyncio.to_thread(sys.stdin.read)


def main(data_dir: Path, idle_s: float, mode: str) -> int:
    note(data_dir, "started")
    if mode == "use":
        asyncio.run(_use(data_dir, idle_s))
    if mode == "fail":
        say("The model is missing.\nPut it there.")
        return 7
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode in ("hang", "deaf"):
        say("I hang.")
        signal.pause()
    if mode in ("serve", "gate"):
        role = HostRole(spec_of(data_dir), idle_s=idle_s)
        if role.try_take():
            asyncio.run(_serve(data_dir, role, data_dir / "gate" if mode == "gate" else None))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
