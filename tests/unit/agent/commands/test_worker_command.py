"""What the worker's command looks at before LiveKit takes over."""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import pytest
from livekit.api import AccessToken

from agent.commands.worker import _allow_dev_secret, _told_in_words, run
from agent.settings import load
from memory.errors import DataTooNew, VoiceMemoryError


@pytest.mark.parametrize("command", ["start", "dev"])
def test_a_data_directory_of_a_newer_version_is_refused_before_anything_starts_in_it(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, command: str
) -> None:
    for name, value in {"URL": "ws://127.0.0.1:1", "API_KEY": "devkey", "API_SECRET": "s" * 32}.items():
        monkeypatch.setenv(f"LIVEKIT_{name}", value)
    (data_dir / "FORMAT").write_text("99\n")
    with pytest.raises(DataTooNew, match="Upgrade"):
        run(argparse.Namespace(command=command, options=[], verbose=False))
    assert [path.name for path in data_dir.iterdir()] == ["FORMAT"]


@pytest.mark.parametrize(("error", "traced"), [(VoiceMemoryError("Set REDIS_URL."), False), (ValueError(), True)])
def test_an_end_that_says_what_to_do_has_no_traceback(
    caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    logger = logging.getLogger("livekit.agents")
    logger.addFilter(_told_in_words)
    try:
        logger.error("worker failed", exc_info=error)
    finally:
        logger.removeFilter(_told_in_words)
    assert ("worker failed" in caplog.text, "Error: " in caplog.text or "ValueError" in caplog.text) == (True, traced)


@pytest.mark.parametrize(("secret", "warned"), [("secret", False), ("hunter", True), ("s" * 32, False)])
def test_a_short_secret_is_warned_of_unless_it_is_the_development_servers(
    monkeypatch: pytest.MonkeyPatch, secret: str, warned: bool
) -> None:
    monkeypatch.setenv("LIVEKIT_API_SECRET", secret)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _allow_dev_secret(load())
        AccessToken("devkey", secret).to_jwt()
    assert bool(told) == warned
