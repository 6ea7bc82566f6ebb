"""Users of a host as processes of their own. Above: tests of hosting and of the embedded server."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Users:
    """``command``: of a user, who prints a line about the host that it has found, and stays until its stdin ends."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.processes: list[Process] = []

    async def start(self) -> str:
        """Start one; returns what it prints."""
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
        self.processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            return (await process.stdout.readline()).decode().strip()

    async def end(self) -> None:
        """Kill those that are left."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
