"""``python -m memory eval``: figures that can be worked out by hand, and faults told by file, line and field."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memory.retrieval.evaluate import EvaluationError, add_arguments, evaluate, run
from tests.benchmarks.longmemeval import convert
from tests.support.turns import DIMENSION, vector_of

Row = dict[str, Any]


class Embedder:
    """Vectors that depend on the text alone."""

    model, dimension = "made up", DIMENSION

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([vector_of(text) for text in texts])


def _turn(turn_id: str, content: str, **fields: Any) -> Row:
    row = {"id": turn_id, "session_id": turn_id, "timestamp": "2025-03-01T09:30:00Z", "role": "user", "name": None}
    return {**row, "content": content, **fields}


def _question(query: str, *evidence: str, **fields: Any) -> Row:
    return {"query": query, "asked_at": "2025-03-02T00:00:00", "evidence": list(evidence), "category": "c", **fields}


TURNS = [_turn("dog", "my dog is Biscuit"), _turn("city", "I live in Lyon", name="Ann"), _turn("food", "I hate sushi")]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "T.jsonl", tmp_path / "Q.jsonl"


def _write(path: Path, rows: Sequence[Row | str]) -> None:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def _arguments(files: tuple[Path, Path], *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--turns", str(files[0]), "--questions", str(files[1]), *more])


@pytest.mark.parametrize("embedder", [None, Embedder()])
async def test_recall_is_the_share_of_the_evidence(files: tuple[Path, Path], embedder: Embedder | None) -> None:
    _write(files[0], TURNS)
    questions = [
        _question("my dog is Biscuit", "dog"),
        _question("I live in Lyon", "city", "food", category="d"),
        _question("who is Hamlet?"),
    ]
    _write(files[1], questions)
    result = await evaluate(*files, (1, 3), embedder)
    assert result["overall"] == {"questions": 2, "recall": {"1": 75.0, "3": 100.0}}
    assert result["categories"] == {
        "c": {"questions": 1, "recall": {"1": 100.0, "3": 100.0}},
        "d": {"questions": 1, "recall": {"1": 50.0, "3": 100.0}},
    }
    assert list(result["latency_ms"]) == ["p50", "p95", "p99"]
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]


async def test_a_turn_with_the_same_words_as_the_question_is_not_hidden_by_the_gate(files: tuple[Path, Path]) -> None:
    _write(files[0], TURNS)
    _write(files[1], [_question("hello there", "dog", asked_at=None, category=None)])
    result = await evaluate(*files, (3,), None)
    assert result["overall"]["recall"]["3"] == 100.0
    assert list(result["categories"]) == [""]


async def test_questions_without_any_evidence_give_no_figure(files: tuple[Path, Path]) -> None:
    _write(files[0], TURNS)
    _write(files[1], [_question("who?")])
    assert (await evaluate(*files, (5,), None))["overall"] == {"questions": 0, "recall": {"5": None}}


@pytest.mark.parametrize(
    ("turns", "questions", "told"),
    [
        ([_turn("a", "x"), "{"], [], "T.jsonl, line 2: is not JSON"),
        (["[1]"], [], "T.jsonl, line 1: is not a JSON object"),
        (["[" * 100_000], [], "T.jsonl, line 1: is not JSON"),
        ([_turn("a", "x"), "", {"id": "b"}], [], "T.jsonl, line 3, field session_id: is missing"),
        ([{**_turn("a", "x"), "content": 5}], [], "T.jsonl, line 1, field content: must be text"),
        ([_turn("a", "  ")], [], "T.jsonl, line 1: .*content: is blank"),
        ([_turn("a", "x", role="robot")], [], "T.jsonl, line 1: .*role: must be 'user', 'assistant' or 'system'"),
        ([_turn("a", "x", timestamp="yesterday")], [], "T.jsonl, line 1, field timestamp: is no ISO 8601 time"),
        ([_turn("a", "x", timestamp=None)], [], "T.jsonl, line 1, field timestamp: is missing"),
        ([_turn("a", "x"), _turn("a", "y")], [], "T.jsonl, line 2, field id: another turn has this id"),
        ([], [_question("q")], "T.jsonl holds no turn"),
        (TURNS, [], "Q.jsonl holds no question"),
        (TURNS, [_question("q", "cat")], "Q.jsonl, line 1, field evidence: names a turn"),
        (TURNS, [_question("q", evidence="dog")], "Q.jsonl, line 1, field evidence: must be a list"),
        (TURNS, [_question("q", evidence=[["dog"]])], "Q.jsonl, line 1, field evidence: names a turn"),
        (TURNS, [_question(" ")], "Q.jsonl, line 1, field query: is blank"),
        (TURNS, [_question("q", asked_at="soon")], "Q.jsonl, line 1, field asked_at: is no ISO 8601 time"),
        (TURNS, [_question("q", category=3)], "Q.jsonl, line 1, field category: must be text"),
    ],
)
async def test_a_fault_is_told_by_file_line_and_field(
    files: tuple[Path, Path], turns: list[Row | str], questions: list[Row | str], told: str
) -> None:
    _write(files[0], turns)
    _write(files[1], questions)
    with pytest.raises(EvaluationError, match=told):
        await evaluate(*files, (5,), None)


async def test_files_that_cannot_be_read_are_told(files: tuple[Path, Path]) -> None:
    with pytest.raises(EvaluationError, match=r"T\.jsonl can't be read: No such file"):
        await evaluate(*files, (5,), None)
    files[0].write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(EvaluationError, match="line 1: is not UTF-8"):
        await evaluate(*files, (5,), None)


async def test_the_same_turn_twice_is_one_turn(files: tuple[Path, Path]) -> None:
    _write(files[0], [*TURNS, TURNS[0]])
    _write(files[1], [_question("dog Biscuit", "dog")])
    assert (await evaluate(*files, (1,), None))["overall"]["recall"] == {"1": 100.0}


async def test_the_figures_are_printed(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _write(files[0], TURNS)
    _write(files[1], [_question("dog Biscuit", "dog")])
    assert await run(_arguments(files, "--k", "3,1", "--json"), None) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["recall"] == {"1": 100.0, "3": 100.0}
    assert await run(_arguments(files), None) == 0
    table = capsys.readouterr().out
    assert "recall@5" in table
    assert "recall@50" in table


@pytest.mark.parametrize("k", ["", "x", "0", "5,,10", "1001", "-1"])
def test_a_wrong_k_is_refused(files: tuple[Path, Path], k: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _arguments(files, f"--k={k}")
    assert "argument --k: must be" in capsys.readouterr().err


def test_longmemeval_becomes_one_history() -> None:
    session = {
        "date": "2023/04/10 (Mon) 14:47",
        "turns": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    }
    earlier = {"date": "2023/04/09 (Sun) 14:47", "turns": [{"role": "assistant", "content": "c"}]}
    asked = {"question_id": "q", "question": "?", "question_type": "x", "question_date": None}
    turns, questions = convert(
        [{**asked, "evidence_sessions": [session, earlier]}, {**asked, "evidence_sessions": [session]}]
    )
    assert [turn["content"] for turn in turns] == ["c", "a", "b"]
    assert [len(question["evidence"]) for question in questions] == [3, 2]
    assert questions[0]["evidence"][:2] == questions[1]["evidence"]
