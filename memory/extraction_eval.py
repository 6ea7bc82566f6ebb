"""How well facts are extracted from labelled dialogues: ``python -m memory eval-extraction``, with one's own LLM.

The product's own way: ``extract`` and ``guarded``, as ingestion runs them. Above: cli. Below: ingestion.

Dialogues, a JSON object a line: ``{"id", "language", "reference_time", "user_name", "turns": [{"speaker", "text",
"name", "confidence"}], "facts": [fact], "wrong": [fact]}`` with a fact ``{"subject", "relation", "object", "fact",
"category", "turns", "optional"}``. ``facts`` are to be found (``optional`` ones may be), ``wrong`` are mistakes.
All but ids, times, speakers, texts, subjects, objects and facts may be left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from memory.errors import ProviderAnswerInvalid, ProviderUnavailable, VoiceMemoryError
from memory.models import Timestamp

if TYPE_CHECKING:
    from memory.ingestion.extraction import ExtractedFact
    from memory.knowledge import TurnPart
    from memory.knowledge_ports import LanguageModel, Usage

AT_ONCE = 4
ATTEMPTS_MAX = 4
BACKOFF_S = 2.0
BACKOFF_S_MAX = 60.0
LINE_BYTES_MAX = 1_048_576


class DialogueError(VoiceMemoryError, ValueError):
    """A line of the dialogues can't be used; the message names file, line and field."""


class _Fact(BaseModel):
    subject: str = Field(min_length=1)
    relation: str = ""
    object: str = Field(min_length=1)
    fact: str = Field(min_length=1)
    category: str = ""
    turns: list[int] = []
    optional: bool = False


class _Turn(BaseModel):
    speaker: Literal["user", "assistant", "other"]
    text: str
    name: str = ""
    confidence: float | None = None


class Dialogue(BaseModel):
    """One labelled conversation."""

    id: str
    language: str = ""
    reference_time: Timestamp
    user_name: str = ""
    turns: list[_Turn] = Field(min_length=1)
    facts: list[_Fact] = []
    wrong: list[_Fact] = []


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found in a dialogue. ``pairs``: places of the labelled fact that each found one is, or ``None``."""

    dialogue: Dialogue
    found: tuple[ExtractedFact, ...]
    pairs: tuple[int | None, ...]
    mistakes: int  # of the found ones, listed as wrong
    dropped: Counter[str]
    failed: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``run`` reads."""
    parser.add_argument(
        "--dialogues", type=Path, required=True, metavar="FILE.jsonl", help="labelled dialogues, one a line"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


async def run(arguments: argparse.Namespace, llm: LanguageModel, cost_usd: Callable[[str, Usage], float | None]) -> int:
    """Measure and print; 1 where every dialogue failed.

    Raises:
        DialogueError: an input is wrong.
        ProviderRefused, ProviderUnavailable: key, model or account; it never answers.
    """
    dialogues = await asyncio.to_thread(read, arguments.dialogues)
    result = await evaluate(dialogues, llm, cost_usd)
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n" if arguments.json else _table(result))
    return 1 if result["failed"] == result["dialogues"] else 0


def read(path: Path) -> list[Dialogue]:
    """The labelled dialogues; blank lines are passed over. Blocking.

    Raises:
        DialogueError: the file can't be read, or a line of it is wrong.
    """
    dialogues: list[Dialogue] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    dialogues.append(_dialogue(raw, f"{path}, line {number}"))
    except OSError as error:
        raise DialogueError(f"{path} can't be read: {error.strerror or error}.") from error
    if not dialogues:
        raise DialogueError(f"{path} holds no dialogue.")
    return dialogues


def _dialogue(raw: bytes, place: str) -> Dialogue:
    if len(raw) > LINE_BYTES_MAX:
        raise DialogueError(f"{place}: is longer than {LINE_BYTES_MAX} bytes.")
    try:
        return Dialogue.model_validate_json(raw)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, fault["loc"])) or "the line"
        raise DialogueError(f"{place}, {field}: {fault['msg']}.") from None


async def evaluate(
    dialogues: Sequence[Dialogue],
    llm: LanguageModel,
    cost_usd: Callable[[str, Usage], float | None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[str, Any]:
    """Precision and recall of facts, in percent: overall, by category, by language; and what it took.

    Raises:
        ProviderRefused: from the LLM. Other faults of its are tried again, then count as a dialogue without facts.
        ProviderUnavailable: it has never answered, however often it was tried.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    answers = asyncio.Event()

    async def one(dialogue: Dialogue) -> Outcome:
        async with gate:
            return await _outcome(dialogue, llm, answers, sleep)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(dialogue)) for dialogue in dialogues]
    except ExceptionGroup as faults:  # what the first dialogues meet, the others would meet as well
        raise faults.exceptions[0] from None
    outcomes = [task.result() for task in tasks]
    usage = llm.usage
    return {
        "dialogues": len(outcomes),
        "failed": sum(outcome.failed for outcome in outcomes),
        "overall": _figures(outcomes),
        "categories": _by_category(outcomes),
        "languages": {
            language or "(none)": _figures([o for o in outcomes if o.dialogue.language == language])
            for language in sorted({o.dialogue.language for o in outcomes})
        },
        "mistakes": sum(outcome.mistakes for outcome in outcomes),
        "dropped": dict(sum((outcome.dropped for outcome in outcomes), Counter[str]())),
        "llm": {
            "model": llm.name,
            "calls": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": cost_usd(llm.name, usage),
        },
    }


async def _outcome(
    dialogue: Dialogue, llm: LanguageModel, answers: asyncio.Event, sleep: Callable[[float], Awaitable[None]]
) -> Outcome:
    from memory.ingestion.extraction import extract
    from memory.ingestion.guards import guarded

    turns, now = _turns(dialogue), dialogue.reference_time
    for attempt in range(ATTEMPTS_MAX):
        try:
            extraction = await extract(llm, turns, reference_time=now, user_name=dialogue.user_name)
            answers.set()
            break
        except ProviderUnavailable as error:
            if attempt + 1 < ATTEMPTS_MAX:
                await sleep(min(error.retry_after_s or BACKOFF_S * 2**attempt, BACKOFF_S_MAX))
            elif not answers.is_set():
                raise
        except ProviderAnswerInvalid:
            answers.set()
    else:
        return Outcome(dialogue, (), (), 0, Counter(), failed=True)
    kept = guarded(extraction, turns, reference_time=now, user_name=dialogue.user_name)
    found = kept.extraction.facts
    pairs = _paired(found, dialogue.facts)
    wrong = _paired([fact for fact, pair in zip(found, pairs, strict=True) if pair is None], dialogue.wrong)
    return Outcome(dialogue, found, tuple(pairs), sum(pair is not None for pair in wrong), kept.dropped)


def _turns(dialogue: Dialogue) -> list[TurnPart]:
    from memory.knowledge import TurnPart

    return [
        TurnPart(
            turn_id=str(place),
            speaker=turn.speaker,
            text=turn.text,
            said_at=dialogue.reference_time,
            name=turn.name,
            language=dialogue.language,
            confidence=turn.confidence,
        )
        for place, turn in enumerate(dialogue.turns)
    ]


def _paired(found: Sequence[ExtractedFact], labelled: Sequence[_Fact]) -> list[int | None]:
    """For each found fact the labelled one that it is, each of them once, best matches first."""
    from memory.ingestion.matching import likeness

    scores = [
        (likeness(fact, label.subject, label.object, label.fact, label.relation), place, at)
        for place, fact in enumerate(found)
        for at, label in enumerate(labelled)
    ]
    pairs: list[int | None] = [None] * len(found)
    for score, place, at in sorted(scores, reverse=True):
        if score > 0 and pairs[place] is None and at not in pairs:
            pairs[place] = at
    return pairs


def _figures(outcomes: Iterable[Outcome], category: str | None = None) -> dict[str, Any]:
    expected = found = right = named = 0
    for outcome in outcomes:
        labels = outcome.dialogue.facts
        expected += sum(not label.optional and category in (None, label.category) for label in labels)
        for fact, pair in zip(outcome.found, outcome.pairs, strict=True):
            label = None if pair is None else labels[pair]
            if label is not None and label.optional:
                continue
            if category is None or category == (label.category if label else fact.category):
                found += 1
                right += label is not None
                named += label is not None and label.category == fact.category
    return {
        "expected": expected,
        "found": found,
        "right": right,
        "precision": _percent(right, found),
        "recall": _percent(right, expected),
        "category_right": _percent(named, right),
    }


def _by_category(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    from memory.knowledge import Category

    return {category.value: _figures(outcomes, category.value) for category in Category}


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _table(result: dict[str, Any]) -> str:
    rows = [("", "expected", "found", "right", "precision", "recall")]
    parts = [("overall", result["overall"]), *result["categories"].items(), *result["languages"].items()]
    for name, part in parts:
        shares = ("-" if part[key] is None else f"{part[key]:.1f}" for key in ("precision", "recall"))
        rows.append((name, *(str(part[key]) for key in ("expected", "found", "right")), *shares))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    llm, cost = result["llm"], result["llm"]["cost_usd"]
    lines += [
        f"{result['dialogues']} dialogues, {result['failed']} failed; {result['mistakes']} listed mistakes made, "
        f"{sum(result['dropped'].values())} facts dropped by the guards",
        f"{llm['model']}: {llm['calls']} calls, {llm['input_tokens']} tokens in, {llm['output_tokens']} out"
        + ("" if cost is None else f", about {cost:.4f} USD"),
    ]
    return "\n".join(lines) + "\n"
