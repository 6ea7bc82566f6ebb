"""``python -m agent doctor``: what is configured, what answers, and what to fix.

Every check has the same bound on its time, and one that hangs doesn't keep the others from being made.
No secret is printed, nor is anything a server sent. Above: cli. Below: checks, endpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agent.commands import checks
from agent.commands.checks import Check, Finding, Patient, Status
from agent.commands.endpoints import check_livekit, check_openai
from agent.commands.output import Output, milliseconds, table
from agent.commands.process import run_async
from agent.settings import load
from memory.errors import SettingsError

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", checks.check_python),
    ("settings", checks.check_settings),
    ("packages", checks.check_packages),
    ("data directory", checks.check_data_dir),
    ("session store", checks.check_sessions),
    ("durability", checks.check_durability),
    ("system libraries", checks.check_libraries),
    ("graph", checks.check_graph),
    ("archive", checks.check_archive),
    ("recall", checks.check_recall),
    ("embedder", checks.check_embedder),
    ("models", checks.check_models),
    ("local speech", checks.check_speech),
    ("openai endpoint", check_openai),
    ("livekit server", check_livekit),
)
_MARKS: dict[Status, str] = {"ok": "ok", "off": "-", "warn": "!", "fail": "FAIL"}


@dataclass(frozen=True, slots=True)
class Examined:
    """One check's result and how long it took."""

    name: str
    finding: Finding
    took_ms: float


def run(arguments: argparse.Namespace) -> int:
    """Make every check; 1 if something has to be fixed for this configuration to work."""
    output = Output()
    return run_async(lambda: examine(output, timeout_s=arguments.timeout, as_json=arguments.json), output)


async def examine(
    output: Output, *, timeout_s: float, as_json: bool, chosen: Sequence[tuple[str, Check]] = CHECKS
) -> int:
    """Make the ``chosen`` checks one after the other and print each result as it comes; the exit code."""
    try:
        patient = Patient(load(), [])
    except SettingsError as error:
        patient = Patient(None, error.problems)
    found = []
    for name, check in chosen:
        examined = await _examine(name, check, patient, timeout_s)
        found.append(examined)
        if as_json:
            output.event("check", name=name, **asdict(examined.finding), took_ms=round(examined.took_ms, 1))
    ok = all(examined.finding.status != "fail" for examined in found)
    if as_json:
        output.event("result", ok=ok)
    else:
        _print(output, found)
    return 0 if ok else 1


async def _examine(name: str, check: Check, patient: Patient, timeout_s: float) -> Examined:
    started_s = time.monotonic()
    task = asyncio.create_task(check(patient))
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if done:
        finding = _outcome(task)
    else:
        # Not awaited: what hangs may not heed its cancellation either.
        task.cancel()
        finding = Finding(
            "fail", f"no answer within {timeout_s:g} s", "Look at the machine's load, or raise --timeout."
        )
    return Examined(name, finding, (time.monotonic() - started_s) * 1000)


def _outcome(task: asyncio.Task[Finding]) -> Finding:
    error = task.exception()
    if error is None:
        return task.result()
    # The text of an unforeseen error may hold a URL with a password.
    return Finding("fail", f"the check itself failed: {type(error).__name__}", "Run it with --verbose, and report it.")


def _print(output: Output, found: list[Examined]) -> None:
    names = table([[examined.name, _MARKS[examined.finding.status]] for examined in found])
    for name, examined in zip(names, found, strict=True):
        took = f"  ({milliseconds(examined.took_ms)})" if examined.took_ms >= 1 else ""
        output.line(f"{name}  {examined.finding.detail}{took}")
    fixes = [examined for examined in found if examined.finding.fix]
    output.line()
    if not fixes:
        output.line("Nothing to fix.")
        return
    output.line("What to fix (FAIL) or may be better (!):")
    for examined in fixes:
        output.line(f"  {_MARKS[examined.finding.status]:4} {examined.name}: {examined.finding.fix}")
