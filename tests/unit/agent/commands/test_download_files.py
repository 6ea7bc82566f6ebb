"""``download-files``: what could not be fetched is named, and a network that is missing told apart from all else."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from livekit.agents import Plugin

from agent.commands.download_files import HUB_AWAY_CODE, run
from memory.errors import EmbedderUnavailable
from memory.providers import embedders
from memory.providers.embedders import fetch_tokenizer

ARGUMENTS = argparse.Namespace()


class Files(Plugin):
    """A plugin with files to fetch. ``error``: what its transport raises."""

    def __init__(self, package: str, error: Exception | None = None) -> None:
        super().__init__(package, "1.0", package)
        self.fetched, self._error = 0, error

    def download_files(self) -> None:
        self.fetched += 1
        if self._error is not None:
            raise self._error


def wrapped(cause: BaseException) -> RuntimeError:
    """As a transport's own class around what the system says."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise ValueError("in between") from error
    except ValueError:
        try:
            raise RuntimeError("the transport's")
        except RuntimeError as error:
            return error


OUT_OF_REACH = [
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    TimeoutError("timed out"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    wrapped(ConnectionResetError("reset")),
]
BROKEN = [
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ENOSPC, "No space left on device"),
    ImportError("No module named 'onnx'"),
    KeyError("model"),
]


def named(error: Exception) -> str:
    return type(error).__name__


Registered = Callable[..., list[Files]]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Registered:
    def register(*plugins: Files) -> list[Files]:
        monkeypatch.setattr(Plugin, "registered_plugins", list(plugins))
        return list(plugins)

    return register


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | Path], None]:
    def have(result: Exception | Path) -> None:
        def fetch(data_dir: Path) -> Path:
            assert (data_dir / "FORMAT").exists()
            if isinstance(result, Exception):
                raise EmbedderUnavailable("The tokenizer can't be fetched.") from result
            return result

        monkeypatch.setattr(embedders, "fetch_tokenizer", fetch)

    have(Path("models") / "tokenizer.json")
    return have


def test_all_that_is_missing_is_fetched(plugins: Registered, capfd: pytest.CaptureFixture[str]) -> None:
    found = plugins(Files("plugin.one"), Files("plugin.two"))
    assert run(ARGUMENTS) == 0
    assert [plugin.fetched for plugin in found] == [1, 1]
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "tokenizer" in line] == ["embedder's tokenizer: models/tokenizer.json"]
    assert {"plugin.one: ready", "plugin.two: ready"} <= set(lines)


def test_the_installed_plugins_are_asked() -> None:
    command = [sys.executable, "-m", "agent", "download-files"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "livekit.plugins.openai: ready" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("error", "code"), [*((each, HUB_AWAY_CODE) for each in OUT_OF_REACH), *((each, 1) for each in BROKEN)], ids=repr
)
def test_a_plugin_whose_files_can_not_be_had_is_named_and_the_others_are_fetched(
    error: Exception, code: int, plugins: Registered, capfd: pytest.CaptureFixture[str]
) -> None:
    _, other = plugins(Files("plugin.one", error), Files("plugin.two"))
    assert run(ARGUMENTS) == code
    assert other.fetched == 1
    lines = capfd.readouterr().out.splitlines()
    (told,) = [line for line in lines if line.startswith("plugin.one: not fetched")]
    assert ("hub can't be reached" in told) == (code == HUB_AWAY_CODE)
    assert (named(error) in told) == (code == 1)
    assert "plugin.two: ready" in lines


@pytest.mark.parametrize(
    ("error", "code"), [*((each, HUB_AWAY_CODE) for each in OUT_OF_REACH), *((each, 1) for each in BROKEN)], ids=repr
)
def test_a_tokenizer_that_can_not_be_had_is_named(
    error: Exception,
    code: int,
    tokenizer: Callable[[Exception], None],
    plugins: Registered,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (plugin,) = plugins(Files("plugin.one"))
    tokenizer(error)
    assert run(ARGUMENTS) == code
    assert plugin.fetched == 1
    assert "embedder's tokenizer: The tokenizer can't be fetched." in capfd.readouterr().out.splitlines()


def test_a_hub_out_of_reach_hides_nothing_else_that_is_wrong(
    tokenizer: Callable[[Exception], None], plugins: Registered
) -> None:
    tokenizer(OUT_OF_REACH[0])
    plugins(Files("plugin.one", BROKEN[0]), Files("plugin.two", OUT_OF_REACH[1]))
    assert run(ARGUMENTS) == 1


def test_without_an_embedder_no_tokenizer_is_fetched(
    tokenizer: Callable[[Exception], None],
    plugins: Registered,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    data_dir: Path,
) -> None:
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    tokenizer(AssertionError("asked for"))
    plugins(Files("plugin.one"))
    assert run(ARGUMENTS) == 0
    assert "embedder: not used (MEMORY_EMBEDDER=none)" in capfd.readouterr().out
    assert os.listdir(data_dir) == []


def test_a_plugin_that_can_not_be_imported_is_named_and_the_others_are_fetched(
    plugins: Registered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugins_package = importlib.import_module("livekit.plugins")
    (tmp_path / "brokenplugin.py").write_text("import a_library_that_nobody_has\n")
    monkeypatch.setattr(plugins_package, "__path__", [*plugins_package.__path__, str(tmp_path)])
    (plugin,) = plugins(Files("plugin.one"))
    assert run(ARGUMENTS) == 1
    assert plugin.fetched == 1
    told = "livekit.plugins.brokenplugin: can't be imported (ModuleNotFoundError: No module named 'a_library"
    assert told in capfd.readouterr().out


def test_the_hubs_own_client_is_understood(
    monkeypatch: pytest.MonkeyPatch, plugins: Registered, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer's package away, and a network that is switched off: what its client raises for that."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(embedders, "fetch_tokenizer", fetch_tokenizer)
    monkeypatch.setattr(embedders, "_in_package", lambda *_: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    plugins()
    assert run(ARGUMENTS) == HUB_AWAY_CODE
    assert "no network" in capfd.readouterr().out
