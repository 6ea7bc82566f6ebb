"""A clock that a test moves, and a spool: for the tests of the recorder."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.spool import Spool
from tests.support.sessions import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def spool(data_dir: Path) -> Spool:
    return Spool(data_dir)
