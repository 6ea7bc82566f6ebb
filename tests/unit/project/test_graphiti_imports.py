"""Graphiti costs seconds and a hundred megabytes to import, and reads a .env file: only ingestion's tools may."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("graphiti_core", "falkordb")


def _imported(path: Path) -> set[str]:
    """The packages of all imports in a file, those within functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_graphs_readers_import_graphiti() -> None:
    files = [path for part in ("agent", "memory") for path in (ROOT / part).rglob("*.py")]
    using = {str(path.relative_to(ROOT)) for path in files if _imported(path) & set(HEAVY)}
    assert using == {"memory/stores/graph/readers.py", "memory/stores/graph/opening.py"}
    assert len(files) > 100


def test_nobody_writes_to_a_graph_by_graphiti() -> None:
    writers = {"add_episode", "add_episode_bulk", "add_triplet", "remove_episode", "build_indices_and_constraints"}
    files = [path for part in ("agent", "memory") for path in (ROOT / part).rglob("*.py")]
    called = {
        node.attr for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    }
    assert not called & writers
    assert "insisting" in called, "what our own writes go by"


@pytest.mark.parametrize(
    "module",
    [
        "agent.job",
        "agent.worker",
        "memory.plugin",
        "memory.service",
        "memory.wiring",
        "memory.wiring_upkeep",
        "memory.wiring_ingestion",
        "memory.retrieval.host",
        "memory.ingestion.pipeline",
        "memory.stores.graph.store",
        "memory.stores.graph.opening",
    ],
)
def test_importing_it_imports_no_graphiti(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60, cwd=ROOT)
    assert said.strip().splitlines()[-1] == "[]"
