"""How much memory the embedded server may fill."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memory.limits import EMBEDDED_BYTES_MIN, EMBEDDED_MEMORY_SHARE
from memory.stores.machine_memory import embedded_bytes_max

GIB = 1 << 30


@pytest.fixture
def physical(monkeypatch: pytest.MonkeyPatch) -> int:
    pages = {"SC_PHYS_PAGES": 16 * GIB // 4_096, "SC_PAGE_SIZE": 4_096}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[str(name)])
    return 16 * GIB


@pytest.mark.parametrize(
    ("limit", "of"),
    [(None, 16 * GIB), ("max\n", 16 * GIB), (f"{2 * GIB}\n", 2 * GIB), ("9223372036854771712", 16 * GIB)],
)
def test_a_share_of_what_machine_and_container_have(physical: int, data_dir: Path, limit: str | None, of: int) -> None:
    path = data_dir / "memory.max"
    if limit is not None:
        path.write_text(limit)
    assert embedded_bytes_max((path,)) == int(of * EMBEDDED_MEMORY_SHARE)


def test_a_small_container_still_has_a_server(physical: int, data_dir: Path) -> None:
    path = data_dir / "memory.max"
    path.write_text(str(64 << 20))
    assert embedded_bytes_max((path,)) == EMBEDDED_BYTES_MIN


def test_where_nothing_tells_there_is_a_bound_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert embedded_bytes_max(()) == EMBEDDED_BYTES_MIN
