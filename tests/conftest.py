"""Fixtures for every test: a data directory of its own, real servers, and what to do where a real part is missing."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from tests.support import postgres

_SETTINGS = ("MEMORY_", "AGENT_", "REDIS_", "DATABASE_", "FALKORDB_", "GRAPHITI_", "LIVEKIT_", "OPENAI_")


# How long an example takes is the machine's business: nothing here is asserted by the clock.
hypothesis_settings.register_profile("bounded", deadline=None)
hypothesis_settings.load_profile("bounded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-long", action="store_true", help="also run the tests marked `long` (make nightly)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: minutes, not seconds; run by `make nightly`")
    # Under nohup, or in the background of a script, these are ignored, and so they would be in what the tests start.
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-long"):
        return
    chosen = [item for item in items if item.get_closest_marker("long") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything a test needs must be there: a skip is a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"in CI nothing is skipped: {report.longrepr}"
    return report


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A fresh data directory with a short path: a socket's path holds about 100 characters."""
    path = Path(tempfile.mkdtemp(prefix="vm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """No setting of the machine reaches a test; whatever opens the default stores does so in ``data_dir``."""
    for name in list(os.environ):
        if name.startswith(_SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", str(data_dir))
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", "0.5")


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """A command that a test has run in this process sets them for good: later tests would not hear what they log."""
    loggers = [logging.getLogger(name) for name in ("memory", "agent")]
    levels = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


@pytest.fixture
def require() -> Callable[..., None]:
    """``require("module", …, extra="local")``: skip the test where a module of an extra is missing."""

    def check(*modules: str, extra: str) -> None:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: pip install 'livekit-unified-memory[{extra}]'")

    return check


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """A PostgreSQL of this run's own."""
    bin_dir = postgres.binaries()
    if bin_dir is None:
        pytest.skip("needs a PostgreSQL server (Debian: apt-get install postgresql)")
    with postgres.running(bin_dir) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.Postgres, data_dir: Path) -> str:
    """The SQLAlchemy URL of an empty database of its own."""
    return postgres_server.create_database(data_dir.name.replace("-", "_").lower())
