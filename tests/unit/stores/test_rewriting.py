"""A rewrite that could not be had is told: until there is one, the server's file holds what was deleted."""

from __future__ import annotations

from typing import Any

import pytest

from memory.stores import rewriting
from memory.stores.rewriting import Rewriting


async def busy(*_: str) -> Any:
    return {"aof_enabled": 1, "aof_rewrite_in_progress": 1}


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize(("tries", "close_s"), [(3, 5.0), (10_000, 0.0)])
async def test_P_erased_a_rewrite_that_never_began_is_told(
    tries: int, close_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rewriting, "_RETRY_S", 0.001)
    monkeypatch.setattr(rewriting, "_TRIES", tries)
    monkeypatch.setattr(rewriting, "_CLOSE_S", close_s)
    one = Rewriting(busy)
    await one.soon()
    await one.aclose()
    assert caplog.text.count("BGREWRITEAOF") == 1
