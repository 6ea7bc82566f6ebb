"""Every promise of the design, and every reported fault this version covers, has a test that carries its id."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PROMISES = ("P-silent", "P-both", "P-heard", "P-durable", "P-fresh", "P-isolated", "P-erased", "P-redacted")
CASES = (
    *("L01", "L02", "L06", "L07", "L09", "L10", "L11", "L14", "L15", "L17", "L21", "L22"),
    *("L35", "L38", "L39", "S03", "S08"),
)


def _marked() -> set[tuple[str, str]]:
    """(marker, id) of every test function or class that is marked ``promise`` or ``case``."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found |= {mark for decorator in node.decorator_list if (mark := _mark(decorator))}
    return found


def _mark(decorator: ast.expr) -> tuple[str, str] | None:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="promise" | "case" as kind), args=[ast.Constant(value=str(name))]):
            return kind, name
    return None


@pytest.fixture(scope="module")
def marked() -> set[tuple[str, str]]:
    return _marked()


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_has_a_test(marked: set[tuple[str, str]], promise: str) -> None:
    assert ("promise", promise) in marked


@pytest.mark.parametrize("case", CASES)
def test_each_covered_case_has_a_test(marked: set[tuple[str, str]], case: str) -> None:
    assert ("case", case) in marked
