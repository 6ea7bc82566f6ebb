"""LongMemEval's questions and evidence turns as the files ``python -m memory eval`` reads.

    python -m tests.benchmarks.longmemeval EVIDENCE.json OUT_DIRECTORY
    python -m memory eval --turns OUT_DIRECTORY/turns.jsonl --questions OUT_DIRECTORY/questions.jsonl --json

EVIDENCE.json: a list of ``{"question_id", "question", "question_type", "question_date", "evidence_sessions": [{"date",
"turns": [{"role", "content"}]}]}``. All evidence turns become one user's history, by date, each of them once. With
``--halves`` the questions are also written in two halves (even and odd), for a look at how stable a figure is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def convert(questions: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Turns, oldest first, and questions, in the given order."""
    turns: dict[tuple[str, str, str], Row] = {}
    asked: list[Row] = []
    for question in questions:
        evidence = []
        for number, session in enumerate(question["evidence_sessions"]):
            session_id = f"{question['question_id']}-{number}"
            for place, turn in enumerate(session["turns"]):
                said = (session["date"], turn["role"], turn["content"])
                row = turns.setdefault(said, _turn(f"t{len(turns)}", session_id, place, *said))
                evidence.append(row["id"])
        date = question["question_date"]
        asked.append(
            {
                "query": question["question"],
                "asked_at": date and _moment(date).isoformat(),
                "evidence": list(dict.fromkeys(evidence)),
                "category": question["question_type"],
            }
        )
    return sorted(turns.values(), key=lambda row: str(row["timestamp"])), asked


def _turn(turn_id: str, session_id: str, place: int, date: str, role: str, content: str) -> Row:
    moment = _moment(date) + timedelta(seconds=place)
    return {
        "id": turn_id,
        "session_id": session_id,
        "timestamp": moment.isoformat(),
        "role": role,
        "name": None,
        "content": content,
    }


def _moment(date: str) -> datetime:
    return datetime.strptime(date, "%Y/%m/%d (%a) %H:%M").replace(tzinfo=UTC)


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Convert a file; returns the process's exit code."""
    parser = argparse.ArgumentParser(description="LongMemEval's evidence as input of `python -m memory eval`.")
    parser.add_argument("evidence", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--halves", action="store_true")
    arguments = parser.parse_args(argv)
    turns, questions = convert(json.loads(arguments.evidence.read_text()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    _write(arguments.out / "turns.jsonl", turns)
    _write(arguments.out / "questions.jsonl", questions)
    if arguments.halves:
        for name, start in (("even", 0), ("odd", 1)):
            _write(arguments.out / f"questions-{name}.jsonl", questions[start::2])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
