"""The command line: what it takes, how quickly it answers, and which exit code an error has."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from agent import cli
from agent.commands.process import OutputFailed, Stopped
from memory.errors import DataTooNew, HostUnavailable, SettingsError, StoreUnavailable


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's process keeps its own signal handlers, streams and logging."""
    for name in ("secure_streams", "end_at_once_on_signals"):
        monkeypatch.setattr(cli, name, lambda: None)
    monkeypatch.setattr(cli, "configure_logging", lambda **_: None)


def run(
    monkeypatch: pytest.MonkeyPatch, *words: str, error: BaseException | None = None
) -> tuple[int, argparse.Namespace]:
    seen: list[argparse.Namespace] = []

    def command(arguments: argparse.Namespace) -> int:
        seen.append(arguments)
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(run=command))
    return cli.main(words), seen[0]


def test_help_and_wrong_usage_import_nothing_heavy() -> None:
    code = "import sys, agent.cli; print([m for m in ('livekit', 'pydantic', 'numpy', 'redis') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


def commands() -> dict[str, argparse.ArgumentParser]:
    [found] = [action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_can_be_imported_and_run(command: str) -> None:
    module = importlib.import_module(commands()[command].get_default("module"))
    assert callable(module.run)


def test_our_own_processes_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "speech-host" not in shown


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sing"],
        ["call"],
        ["chat", "--user", ""],
        ["chat", "--user", "a\nb"],
        ["chat", "--user", "x" * 513],
        ["chat", "--org", "\udcff"],
        ["demo", "--say", " "],
        ["doctor", "--timeout", "soon"],
        ["doctor", "--timeout", "-1"],
    ],
)
def test_wrong_usage_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    _, chat = run(monkeypatch, "chat")
    assert (chat.user, chat.org, chat.agent, chat.json) == (cli.DEFAULT_USER, None, None, False)
    _, demo = run(monkeypatch, "demo")
    assert (demo.say, demo.ask, demo.user) == (cli.DEFAULT_SAY, cli.DEFAULT_ASK, None)


def test_a_user_may_have_any_plain_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arguments = run(monkeypatch, "chat", "--user", "ليلى +1 555")
    assert arguments.user == "ليلى +1 555"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError(["AGENT_STT: …"]), 2),
        (DataTooNew("too new"), 2),
        (StoreUnavailable("away"), 1),
        (HostUnavailable("away"), 1),
        (OutputFailed("full"), 1),
        (Stopped(2), 130),
        (Stopped(13), 141),
    ],
)
def test_errors_become_exit_codes_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    assert run(monkeypatch, "chat", error=error)[0] == code
    assert "Traceback" not in capsys.readouterr().err


def test_scripts_get_an_error_as_an_event(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "chat", "--json", error=DataTooNew("Upgrade."))
    out, err = capfd.readouterr()
    assert json.loads(out) == {"event": "error", "message": "Upgrade.", "code": 2}
    assert err == "agent chat: Upgrade.\n"
