"""``python -m memory import``: a team's existing conversations, brought in by the way that every turn takes.

Redacted, appended to the users' logs in the file's order, moved into the archive, and from there like all others.
Once, however often it is repeated: ids derive from the lines. How far the archive has them is kept in the data
directory, so that an import that was cut off goes on where it was, and a file that has grown is read from there.
Above: wiring_ingestion. Below: import_lines, archiver, privacy.intake.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from memory.errors import VoiceMemoryError
from memory.ingestion.import_lines import BadLine, Line, Target, Turn, lines, read
from memory.limits import ID_CHARS_MAX, IMPORT_BATCH, IMPORT_BATCH_BYTES_MAX, IMPORT_LOG_MAX
from memory.models import MemoryEntry, Scope
from memory.privacy.intake import Intake
from memory.retrieval.tasks import end_all

_TOLD_MAX = 20  # bad lines that are named; the others are counted
_USERS_AT_ONCE = 6  # whose turns are appended: they share one write to the disk
_CHECKED_BYTES = 65_536


class ImportFailed(VoiceMemoryError):
    """The file can't be read; the message says why."""


class ImportLog(Protocol):
    """The end of users' logs."""

    async def extend(self, scope: Scope, entries: Sequence[MemoryEntry]) -> None:
        """Append in order; durable when it returns.

        Raises:
            StoreUnavailable: not all of them are known to be there; a repetition does no harm.
        """
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the archive has a file. ``check`` is a digest of what the file begins with, and of what lies before
    ``offset``: another file under the same name begins anew."""

    offset: int = 0
    line: int = 0
    turns: int = 0
    bad: int = 0
    check: str = ""


@dataclass(slots=True)
class Report:
    """What an import did. ``turns`` and ``bad`` count the lines of the whole file, those of earlier runs included."""

    path: str
    resumed_after: int
    progress: Progress
    told: list[BadLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Batch:
    end: Line
    turns: tuple[Turn, ...]
    bad: tuple[BadLine, ...]


class Importer:
    """Brings in one file. ``drain`` moves the logs into the archive, and returns once they are there."""

    def __init__(
        self, log: ImportLog, drain: Callable[[], Awaitable[object]], intake: Intake, target: Target, kept: Path
    ) -> None:
        self._log, self._drain, self._intake, self._target, self._kept = log, drain, intake, target, kept

    async def run(self, path: Path, *, restart: bool, on_progress: Callable[[Progress], None]) -> Report:
        """Bring in what of the file isn't in yet.

        Raises:
            ImportFailed: the file can't be read.
            StoreUnavailable, StoreFault: a store is away; run it again, and it goes on from there.
        """
        with _opened(path) as file:
            begin = Progress() if restart else await asyncio.to_thread(self._load, path, file)
            report = Report(str(path), begin.line, begin)
            batches = _batches(lines(file, number=begin.line, offset=begin.offset), self._target, self._intake)
            moved = 0
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await self._append(batch.turns)
                moved += len(batch.turns)
                report.told += batch.bad[: _TOLD_MAX - len(report.told)]
                report.progress = _after(report.progress, batch)
                on_progress(report.progress)
                if moved >= IMPORT_LOG_MAX:
                    await self._settle(path, report.progress)
                    moved = 0
            await self._settle(path, report.progress)
        return report

    async def _append(self, turns: Sequence[Turn]) -> None:
        by_user: dict[Scope, list[MemoryEntry]] = {}
        for turn in turns:
            by_user.setdefault(turn.scope, []).append(turn.entry)
        some = asyncio.Semaphore(_USERS_AT_ONCE)

        async def extend(scope: Scope, entries: Sequence[MemoryEntry]) -> None:
            async with some:
                await self._log.extend(scope, entries)

        tasks = [asyncio.create_task(extend(scope, entries)) for scope, entries in by_user.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end_all(tasks)

    async def _settle(self, path: Path, progress: Progress) -> None:
        await self._drain()
        await asyncio.to_thread(self._save, path, progress)

    # -- how far it is

    def _place(self, path: Path) -> Path:
        whose = json.dumps([str(path.resolve()), *asdict(self._target).values()])
        return self._kept / f"{hashlib.sha256(whose.encode(errors='replace')).hexdigest()[:32]}.json"

    def _load(self, path: Path, file: BinaryIO) -> Progress:
        try:
            progress = Progress(**json.loads(self._place(path).read_text()))
        except (OSError, ValueError, TypeError):
            return Progress()
        return progress if _check(file, progress.offset) == progress.check else Progress()

    def _save(self, path: Path, progress: Progress) -> None:
        with _opened(path) as file:
            progress = replace(progress, check=_check(file, progress.offset))
        self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._kept)
        with os.fdopen(descriptor, "w") as kept:
            json.dump(asdict(progress), kept)
        Path(name).replace(self._place(path))


def _check(file: BinaryIO, offset: int) -> str:
    digest = hashlib.sha256()
    for start in (0, max(0, offset - _CHECKED_BYTES)):
        file.seek(start)
        digest.update(file.read(min(_CHECKED_BYTES, offset - start)))
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ImportFailed(f"{path} can't be read: {error.strerror or error}.") from None


def _batches(found: Iterator[Line], target: Target, intake: Intake) -> Iterator[_Batch]:
    while gathered := _gathered(found):
        turns, bad = list[Turn](), list[BadLine]()
        for line in gathered:
            match read(line, target, intake):
                case Turn() as turn:
                    turns.append(turn)
                case BadLine() as unusable:
                    bad.append(unusable)
        yield _Batch(gathered[-1], tuple(turns), tuple(bad))


def _gathered(found: Iterator[Line]) -> list[Line]:
    together, size = list[Line](), 0
    for line in found:
        together.append(line)
        size += len(line.raw or b"")
        if len(together) >= IMPORT_BATCH or size >= IMPORT_BATCH_BYTES_MAX:
            break
    return together


def _after(progress: Progress, batch: _Batch) -> Progress:
    return Progress(
        offset=batch.end.end,
        line=batch.end.number,
        turns=progress.turns + len(batch.turns),
        bad=progress.bad + len(batch.bad),
    )


# -- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``run`` reads."""
    parser.add_argument("file", type=Path, metavar="T.jsonl", help="turns, a JSON object a line")
    parser.add_argument("--user", type=_id, metavar="U", help="the user of lines without a user_id")
    parser.add_argument("--org", type=_id, metavar="O", help="the organisation (default: MEMORY_ORG_ID)")
    parser.add_argument("--agent", type=_id, metavar="A", help="the agent (default: MEMORY_AGENT_ID)")
    parser.add_argument("--mode", choices=("text", "voice"), default="text", help="of lines without one (%(default)s)")
    parser.add_argument("--restart", action="store_true", help="begin anew; what is there already stays once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


async def run(arguments: argparse.Namespace, importer: Importer) -> int:
    """Bring the file in and print what was done; 1 if lines could not be used.

    Raises:
        ImportFailed, StoreUnavailable, StoreFault: with what to do.
    """
    path: Path = arguments.file
    with _bar(path) as on_progress:
        report = await importer.run(path, restart=arguments.restart, on_progress=on_progress)
    for bad in report.told:
        sys.stderr.write(f"{path}, line {bad.number}: {bad.reason}\n")
    sys.stdout.write((json.dumps(_fields(report)) if arguments.json else _text(report)) + "\n")
    return 1 if report.progress.bad else 0


def _fields(report: Report) -> dict[str, Any]:
    done = report.progress
    return {
        "file": report.path,
        "lines": done.line,
        "turns": done.turns,
        "bad_lines": done.bad,
        "resumed_after_line": report.resumed_after,
    }


def _text(report: Report) -> str:
    done = report.progress
    parts = [f"{done.turns} turns of {done.line} lines are in the archive."]
    if report.resumed_after:
        parts.append(f"Went on after line {report.resumed_after}, where it was (--restart begins anew).")
    if done.bad:
        parts.append(f"{done.bad} lines could not be used.")
    return " ".join(parts)


@contextlib.contextmanager
def _bar(path: Path) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, where somebody watches it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda _: None
        return
    size = path.stat().st_size if path.is_file() else None
    with tqdm(total=size, unit="B", unit_scale=True, desc="import", disable=None, file=sys.stderr) as bar:

        def show(progress: Progress) -> None:
            bar.set_postfix(turns=progress.turns, bad=progress.bad, refresh=False)
            bar.update(progress.offset - bar.n)

        yield show


def _id(value: str) -> str:
    if not value.strip() or len(value) > ID_CHARS_MAX or not value.isprintable():
        raise argparse.ArgumentTypeError(f"must be 1 to {ID_CHARS_MAX} characters of plain text, on one line")
    return value
