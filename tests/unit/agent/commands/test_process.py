"""How a process ends: quietly, with the right code, and not before what has to be done at the end is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

END_S = 60

PROGRAM = """
import asyncio, os, sys
from agent.commands.output import Output
from agent.commands.process import *
secure_streams()
end_at_once_on_signals()

async def command():
    try:
        print("begun", file=sys.stderr, flush=True)
        {body}
    finally:
        {ending}
        print("stored", file=sys.stderr, flush=True)
    return 7

try:
    output = Output()
    code = run_async(command, output)
except Stopped as stopped:
    code = stopped.code
except OutputFailed as failed:
    print(failed, file=sys.stderr)
    code = 1
sys.exit(code)
"""


def start(body: str, ending: str = "pass", **streams: int) -> subprocess.Popen[str]:
    program = PROGRAM.format(body=body, ending=ending)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        text=True,
        stderr=subprocess.PIPE,
        stdin=streams.get("stdin", subprocess.DEVNULL),
        stdout=streams.get("stdout", subprocess.DEVNULL),
    )


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=END_S)
    return process.returncode, err


def test_a_command_that_ends_has_its_own_code() -> None:
    assert ended(start("pass")) == (7, "begun\nstored\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_command_store_what_it_has(number: signal.Signals) -> None:
    process = start("await asyncio.Event().wait()")
    begun(process)
    process.send_signal(number)
    assert ended(process) == (128 + number, "stored\n")


def test_a_second_signal_ends_it_at_once() -> None:
    process = start(
        "await asyncio.Event().wait()", 'print("ending", file=sys.stderr, flush=True); await asyncio.sleep(60)'
    )
    begun(process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "")


def test_an_end_that_hangs_is_cut_short() -> None:
    process = start("await asyncio.Event().wait()", "import time; time.sleep(3600)")
    begun(process)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    process = start("import time; asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)")
    assert ended(process) == (7, "begun\nstored\n")


def test_a_signal_that_the_starter_ignores_is_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start("os.kill(os.getpid(), 1); await asyncio.sleep(0)")
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert ended(process) == (7, "begun\nstored\n")


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    reading, writing = os.pipe()
    process = start('output.line("x"); await asyncio.Event().wait()', stdout=writing)
    os.close(reading)
    os.close(writing)
    assert ended(process) == (128 + signal.SIGPIPE, "begun\nstored\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_on_a_full_disk_is_told_of() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    code, err = ended(start('output.line("x"); await asyncio.Event().wait()', stdout=full))
    os.close(full)
    assert code == 1
    assert "No space left on device" in err


@pytest.mark.parametrize("verbose", [False, True])
def test_what_a_model_server_answers_is_not_logged(verbose: bool) -> None:
    program = (
        "import asyncio, logging\n"
        "from agent.commands.process import configure_logging\n"
        f"configure_logging(verbose={verbose})\n"
        "failure = ValueError('Error code: 422 - ' + str({'input': 'a secret'}) + ', status_code=422')\n"
        "logging.getLogger('livekit.agents').error('it failed: %s', failure, exc_info=failure)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=END_S, check=False, text=True)
    assert "it failed: Error code: 422\n" in found.stderr
    assert ("ValueError: Error code: 422\n" in found.stderr) == verbose
    assert "secret" not in found.stderr


@pytest.mark.parametrize("verbose", [False, True])
def test_what_livekit_says_of_its_tasks_is_for_who_asks(verbose: bool) -> None:
    program = (
        "import asyncio, logging\n"
        "from livekit.agents.utils import log_exceptions\n"
        "from agent.commands.process import configure_logging\n"
        f"configure_logging(verbose={verbose})\n"
        "from livekit.agents.log import logger\n"
        "@log_exceptions(logger=logger)\n"
        "async def _llm_task(): raise ValueError\n"
        "async def main(): await asyncio.gather(_llm_task(), return_exceptions=True)\n"
        "asyncio.run(main())\n"
        "logger.error('something else')\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=END_S, check=True, text=True)
    assert ("Error in _llm_task" in found.stderr) == verbose
    assert "something else" in found.stderr


def test_closed_streams_are_no_trap_for_sockets() -> None:
    program = (
        "import os; os.close(0); os.close(1)\n"
        "from agent.commands.process import secure_streams\n"
        "secure_streams(); os.fstat(0); os.fstat(1); assert os.open(os.devnull, os.O_RDONLY) > 2"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=END_S, check=False)
    assert found.returncode == 0, found.stderr
