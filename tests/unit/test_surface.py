"""The package's public surface: every name is there, and costs nothing until it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import pytest

import memory
from memory import errors


def test_every_public_name_can_be_imported() -> None:
    for name in memory.__all__:
        assert getattr(memory, name) is not None
        assert name in dir(memory)
    assert memory.__all__ == sorted(memory.__all__)


def test_every_error_is_public() -> None:
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and name in errors.__doc__}
    assert len(kinds) >= 13
    assert kinds <= set(memory.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MemoryService'"):
        memory.MemoryService  # noqa: B018
    with pytest.raises(ImportError):
        exec("from memory import nothing_of_the_kind")
    assert importlib.import_module("memory.limits") is memory.limits


def test_importing_memory_loads_nothing(run_python: Callable[[str], str]) -> None:
    loaded = run_python(
        "import sys; before = set(sys.modules); import memory; print(*set(sys.modules) - before)"
    ).split()
    assert "memory" in loaded
    assert not [name for name in loaded if name.startswith("memory.")]
    assert {name.partition(".")[0] for name in loaded} - {"memory"} <= sys.stdlib_module_names


def test_names_of_the_format_load_no_livekit_sql_or_numpy(run_python: Callable[[str], str]) -> None:
    code = "import sys; from memory import UnifiedMemoryService, MemoryEntry, Settings, Scope; print(*sys.modules)"
    assert not {"livekit", "sqlalchemy", "numpy", "redis"} & set(run_python(code).split())
