"""``python -m memory import`` into real stores: once, in order, whatever interrupts it, and found by recall."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory import UnifiedMemoryService
from memory.errors import StoreUnavailable
from memory.ingestion import importing
from memory.ingestion.import_lines import Target
from memory.ingestion.importing import Importer, Progress
from memory.models import MemoryEntry, Scope
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.settings import load_settings
from memory.wiring import open_archive
from tests.support.ingestion import SteppingClock

CAT = "My cat is called Biscuit."
SAID_AT = datetime(2025, 1, 1, tzinfo=UTC)


def line(number: int, **fields: Any) -> str:
    given = {
        "session_id": f"s{number // 10}",
        "user_id": f"u{number // 10 % 3}",
        "timestamp": (SAID_AT + timedelta(seconds=number)).isoformat(),
        "role": "user" if number % 2 == 0 else "assistant",
        "content": f"Turn {number}.",
    }
    return json.dumps({**given, **fields})


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def bring_in(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memory", "import", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


async def archived(user: str, **scope: str) -> list[str]:
    settings = load_settings()
    closers: list[Any] = []
    archive = await open_archive(settings, closers)
    whose = Scope(**{"org_id": settings.org_id, "agent_id": settings.agent_id, "user_id": user, **scope})
    found = [item.record for item in await archive.read(whose, after=0, limit=10_000)]
    while closers:
        await closers.pop()()
    return [record.content for record in found if isinstance(record, MemoryEntry)]


async def test_a_file_is_brought_in_once_in_its_order_and_can_be_recalled(data_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [*(line(number) for number in range(59)), line(59, content=CAT)])
    done = await asyncio.to_thread(bring_in, path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "file": str(path),
        "lines": 60,
        "turns": 60,
        "bad_lines": 0,
        "resumed_after_line": 0,
    }
    expected = [f"Turn {number}." for number in range(60) if number // 10 % 3 == 0]
    assert await archived("u0") == expected

    again = await asyncio.to_thread(bring_in, path, "--json")
    assert json.loads(again.stdout)["resumed_after_line"] == 60
    anew = await asyncio.to_thread(bring_in, path, "--restart")
    assert "60 turns of 60 lines are in the archive." in anew.stdout
    assert await archived("u0") == expected

    async with UnifiedMemoryService() as memory:
        await memory.warm(user_id="u2")
        found = await memory.recall("What is my cat called?", user_id="u2", budget_ms=20_000)
        assert [passage.text for passage in found.passages][:1] == [CAT]


def test_who_watches_an_import_is_shown_how_far_it_is(data_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(number) for number in range(60)])
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    command = [sys.executable, "-m", "memory", "import", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=100, check=False)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "import: 100%" in shown
    assert "turns=60" in shown
    assert done.stdout == "60 turns of 60 lines are in the archive.\n"


async def test_a_file_that_has_grown_is_read_on_and_another_one_from_its_start(data_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(number) for number in range(10)])
    assert bring_in(path).returncode == 0
    write(path, [line(number) for number in range(15)])
    grown = bring_in(path, "--json")
    assert json.loads(grown.stdout) | {"file": ""} == {
        "file": "",
        "lines": 15,
        "turns": 15,
        "bad_lines": 0,
        "resumed_after_line": 10,
    }
    write(path, [line(number, content=f"Other {number}.") for number in range(20)])
    other = bring_in(path, "--json")
    assert json.loads(other.stdout)["resumed_after_line"] == 0
    assert "Other 3." in await archived("u0")


async def test_lines_that_can_not_be_used_are_named_and_the_others_come_in(data_dir: Path, tmp_path: Path) -> None:
    bad = ["{", line(1, role="robot"), "", line(2, content="My card is 4242 4242 4242 4242."), line(3, user_id=None)]
    path = write(tmp_path / "t.jsonl", [line(0), *bad, line(4)])
    done = bring_in(path)
    assert done.returncode == 1
    assert [each.split(", ", 1)[1] for each in done.stderr.strip().splitlines()] == [
        "line 2: is not JSON",
        "line 3: role: must be 'user', 'assistant' or 'system'",
        "line 6: user_id: is missing; name the user of such lines with --user",
    ]
    assert "3 lines could not be used" in done.stdout
    assert await archived("u0") == ["Turn 0.", "My card is [card number].", "Turn 4."]
    files = b"".join(each.read_bytes() for each in data_dir.rglob("*") if each.is_file())
    assert b"4242 4242" not in files


async def test_lines_without_a_user_belong_to_the_one_that_is_named(data_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(number, user_id=None, id=f"t{number}") for number in range(4)])
    assert bring_in(path, "--user", "ana", "--org", "acme", "--agent", "desk").returncode == 0
    assert await archived("ana", org_id="acme", agent_id="desk") == [f"Turn {number}." for number in range(4)]


def test_a_file_that_is_not_there(data_dir: Path, tmp_path: Path) -> None:
    done = bring_in(tmp_path / "missing.jsonl")
    assert done.returncode == 1
    assert "can't be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("P-durable")
async def test_P_durable_an_import_that_is_killed_again_and_again_brings_in_each_turn_once(
    data_dir: Path, tmp_path: Path
) -> None:
    count = 3_000
    path = write(tmp_path / "t.jsonl", [line(number) for number in range(count)])
    for delay_s in (1.2, 1.5, 1.8):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "memory", "import", str(path)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ},
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), delay_s)
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
            await child.wait()
    done = await asyncio.to_thread(bring_in, path)
    assert done.returncode == 0, done.stderr
    for user in range(3):
        expected = [f"Turn {number}." for number in range(count) if number // 10 % 3 == user]
        found = await archived(f"u{user}")
        assert sorted(found) == sorted(expected)
        assert found == expected, "in the file's order"


# -- in this process, with logs of its own


class ListLog:
    """``ImportLog`` in memory, that can be away."""

    def __init__(self) -> None:
        self.turns: dict[Scope, list[MemoryEntry]] = {}
        self.left = 1_000_000
        self.most_waiting = self.waiting = 0

    async def extend(self, scope: Scope, entries: Sequence[MemoryEntry]) -> None:
        await asyncio.sleep(0)
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("Redis is away.")
        self.turns.setdefault(scope, []).extend(entries)
        self.waiting += len(entries)
        self.most_waiting = max(self.most_waiting, self.waiting)

    async def drain(self) -> None:
        self.waiting = 0


@pytest.fixture
def log() -> ListLog:
    return ListLog()


def importer(log: ListLog, data_dir: Path) -> Importer:
    intake = Intake(CardRedactor(), SteppingClock())
    return Importer(log, log.drain, intake, Target("acme", "desk", None, "voice"), data_dir / "imports")


async def test_what_waits_for_the_archive_is_bounded(
    log: ListLog, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "IMPORT_LOG_MAX", 200)
    monkeypatch.setattr("memory.ingestion.importing.IMPORT_BATCH", 50)
    path = write(tmp_path / "t.jsonl", [line(number) for number in range(1_000)])
    seen: list[Progress] = []
    report = await importer(log, data_dir).run(path, restart=False, on_progress=seen.append)
    assert report.progress.turns == 1_000
    assert log.most_waiting <= 250
    assert [each.line for each in seen] == list(range(50, 1_001, 50))
    assert seen[-1].offset == path.stat().st_size


async def test_an_import_whose_store_went_away_goes_on_where_it_was(
    log: ListLog, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "IMPORT_LOG_MAX", 100)
    monkeypatch.setattr("memory.ingestion.importing.IMPORT_BATCH", 50)
    path = write(tmp_path / "t.jsonl", [line(number) for number in range(500)])
    log.left = 20
    with pytest.raises(StoreUnavailable):
        await importer(log, data_dir).run(path, restart=False, on_progress=lambda _: None)
    log.left = 1_000_000
    report = await importer(log, data_dir).run(path, restart=False, on_progress=lambda _: None)
    assert report.resumed_after >= 200
    for scope, turns in log.turns.items():
        ids = [turn.id for turn in turns]
        contents = list({turn.id: turn.content for turn in turns}.values())
        assert len(ids) - len(set(ids)) <= 100, "no more than what had not settled is repeated"
        assert contents == [f"Turn {n}." for n in range(500) if f"u{n // 10 % 3}" == scope.user_id]
