"""How well recall does on somebody's own turns and questions: ``python -m memory eval``.

Above: cli. Below: index and indexing (the product's own way from a turn to a hit), models, ports.

Turns, a JSON object a line: ``{"id", "session_id", "timestamp", "role", "name", "content"}``; the file is one user's
history. Questions: ``{"query", "asked_at", "evidence": [turn ids], "category"}``. ``name``, ``asked_at`` (else: after
the last turn) and ``category`` may be left out or null; times are ISO 8601, UTC where they don't say.

Importing this loads neither numpy nor the index, so that the command line can ask for its arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory.errors import InvalidEntry, VoiceMemoryError
from memory.models import MemoryEntry

if TYPE_CHECKING:
    from memory.ports import Embedder
    from memory.retrieval.index import UserIndex

K_DEFAULT = (5, 10, 25, 50)
K_MAX = 1_000
_EMBED_AT_ONCE = 64
_KEY = b"evaluation: nothing is kept"
_KINDS: dict[type, str] = {str: "text", list: "a list"}


class EvaluationError(VoiceMemoryError, ValueError):
    """A line of the turns or questions can't be used; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the ids of the turns that hold its answer, and how it is grouped."""

    query: str
    asked_at: datetime | None
    evidence: frozenset[str]
    category: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``run`` reads."""
    parser.add_argument("--turns", type=Path, required=True, metavar="T.jsonl", help="one user's turns, one a line")
    parser.add_argument("--questions", type=Path, required=True, metavar="Q.jsonl", help="questions with evidence")
    parser.add_argument("--k", type=_ks, default=K_DEFAULT, metavar="5,10,…", help="recall@k is given for these k")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


async def run(arguments: argparse.Namespace, embedder: Embedder | None) -> int:
    """Measure and print. ``embedder`` is the product's, or ``None`` to measure keywords alone.

    Raises:
        EvaluationError: an input is wrong.
        EmbedderUnavailable: from the embedder.
    """
    result = await evaluate(arguments.turns, arguments.questions, arguments.k, embedder)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else _table(result))
    return 0


async def evaluate(
    turns_path: Path, questions_path: Path, ks: Sequence[int], embedder: Embedder | None
) -> dict[str, Any]:
    """Recall@k in percent, overall and by category, and the latency of a query (its embedding included).

    ``{"overall": {"questions": n, "recall": {"10": x}}, "categories": {name: the same}, "latency_ms": {"p50", …}}``.
    Questions without evidence are asked, and timed, but not counted.

    Raises:
        EvaluationError: a file can't be read, or a line of it is wrong.
        EmbedderUnavailable: from the embedder.
    """
    index = await _index(turns_path, embedder)
    questions = list(_questions(questions_path, index))
    if not questions:
        raise EvaluationError(f"{questions_path} holds no question.")
    found, took_ms = [], []
    for question in questions:
        begin = time.perf_counter()
        found.append(await _ask(index, question, max(ks), embedder))
        took_ms.append((time.perf_counter() - begin) * 1_000)
    graded = [(question, ids) for question, ids in zip(questions, found, strict=True) if question.evidence]
    categories = sorted({question.category for question, _ in graded})
    return {
        "overall": _recall(graded, ks),
        "categories": {name: _recall([pair for pair in graded if pair[0].category == name], ks) for name in categories},
        "latency_ms": {f"p{part}": round(_percentile(took_ms, part), 2) for part in (50, 95, 99)},
    }


async def _ask(index: UserIndex, question: Question, k: int, embedder: Embedder | None) -> list[str]:
    vector = None if embedder is None else (await embedder.embed([question.query]))[0]
    now = question.asked_at or _after(index)
    hits = index.search(question.query, query_vector=vector, k=k, now=now, min_relevance=False)
    return [hit.turn.id for hit in hits]


def _after(index: UserIndex) -> datetime:
    return datetime.fromtimestamp(float(index.turns.times.values.max()), UTC)


def _recall(graded: Sequence[tuple[Question, list[str]]], ks: Sequence[int]) -> dict[str, Any]:
    recall = {}
    for k in ks:
        shares = [len(question.evidence.intersection(ids[:k])) / len(question.evidence) for question, ids in graded]
        recall[str(k)] = round(100 * sum(shares) / len(shares), 1) if shares else None
    return {"questions": len(graded), "recall": recall}


def _percentile(values: Sequence[float], part: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * part // 100, len(ordered) - 1)]


async def _index(path: Path, embedder: Embedder | None) -> UserIndex:
    from memory.retrieval.index import UserIndex
    from memory.retrieval.indexing import as_turn

    index = UserIndex(_KEY, None if embedder is None else embedder.dimension)
    said: dict[str, MemoryEntry] = {}
    for place, entry in _turns(path):
        if said.setdefault(entry.id, entry) != entry:
            raise EvaluationError(f"{place}, field id: another turn has this id already.")
        turn = as_turn(entry)
        if turn is not None:
            index.add(turn)
    if not len(index):
        raise EvaluationError(f"{path} holds no turn.")
    while embedder is not None and (missing := index.missing_vectors(_EMBED_AT_ONCE)):
        index.set_vectors([turn_id for turn_id, _ in missing], await embedder.embed([text for _, text in missing]))
    return index


def _turns(path: Path) -> Iterator[tuple[str, MemoryEntry]]:
    for place, line in _lines(path):
        fields: dict[str, Any] = {name: _field(line, name, place) for name in ("id", "session_id", "role", "content")}
        name = _field(line, "name", place, needed=False)
        timestamp = _time(line, "timestamp", place)
        if timestamp is None:
            raise EvaluationError(f"{place}, field timestamp: is missing.")
        try:
            yield place, MemoryEntry(**fields, name=name, timestamp=timestamp, mode="text")
        except InvalidEntry as error:
            raise EvaluationError(f"{place}: {error}") from None


def _questions(path: Path, index: UserIndex) -> Iterator[Question]:
    for place, line in _lines(path):
        evidence = _field(line, "evidence", place, kind=list)
        for turn_id in evidence:
            if not isinstance(turn_id, str) or turn_id not in index:
                raise EvaluationError(f"{place}, field evidence: names a turn that the turns' file does not have.")
        query = _field(line, "query", place)
        if not query.strip():
            raise EvaluationError(f"{place}, field query: is blank.")
        category = _field(line, "category", place, needed=False)
        yield Question(query, _time(line, "asked_at", place), frozenset(evidence), category or "")


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a file of JSON lines, each with where it is ("T.jsonl, line 3"); blank lines are passed over."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield f"{path}, line {number}", _object(raw, f"{path}, line {number}")
    except OSError as error:
        raise EvaluationError(f"{path} can't be read: {error.strerror or error}.") from error


def _object(raw: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise EvaluationError(f"{place}: is not UTF-8.") from None
    except (ValueError, RecursionError):
        raise EvaluationError(f"{place}: is not JSON.") from None
    if not isinstance(value, dict):
        raise EvaluationError(f"{place}: is not a JSON object.")
    return value


def _field(line: dict[str, Any], name: str, place: str, *, kind: type = str, needed: bool = True) -> Any:
    value = line.get(name)
    if value is None and not needed:
        return None
    if name not in line:
        raise EvaluationError(f"{place}, field {name}: is missing.")
    if not isinstance(value, kind):
        raise EvaluationError(f"{place}, field {name}: must be {_KINDS[kind]}.")
    return value


def _time(line: dict[str, Any], name: str, place: str) -> datetime | None:
    value = _field(line, name, place, needed=False)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise EvaluationError(f"{place}, field {name}: is no ISO 8601 time, such as 2025-03-01T09:30:00Z.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _ks(text: str) -> tuple[int, ...]:
    try:
        ks = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError("must be whole numbers with commas between, such as 5,10") from None
    if not 1 <= ks[0] <= ks[-1] <= K_MAX:
        raise argparse.ArgumentTypeError(f"must be from 1 to {K_MAX}")
    return ks


def _table(result: dict[str, Any]) -> str:
    ks = list(result["overall"]["recall"])
    rows = [("", "questions", *(f"recall@{k}" for k in ks))]
    for name, part in [("overall", result["overall"]), *result["categories"].items()]:
        shares = ("-" if part["recall"][k] is None else f"{part['recall'][k]:.1f}" for k in ks)
        rows.append((name or "(none)", str(part["questions"]), *shares))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    latency = ", ".join(f"{name} {value} ms" for name, value in result["latency_ms"].items())
    return "\n".join([*lines, f"a query takes {latency}"]) + "\n"
