"""How a command's process begins and ends: standard streams, signals, logging, and a bound on how long an end takes.

Above: cli, commands. Below: output, memory.streams.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

from memory import streams

if TYPE_CHECKING:
    from agent.commands.output import Output

STOP_S_MAX = 4.0  # from the first signal to the end of the process, whatever hangs
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def secure_streams() -> None:
    """As ``streams.secure``; and take what is typed in another encoding as far as it goes."""
    streams.secure()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def flush_quietly() -> None:
    """Hand over what was printed. Where nobody reads it any more, Python would complain of it at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_at_once_on_signals() -> None:
    """Until a command takes over, a signal ends the process without a traceback: there is nothing to lose yet."""
    for number in _heeded():
        signal.signal(number, _end_at_once)


def _heeded() -> list[signal.Signals]:
    # Whoever started us with a signal ignored (nohup, a shell's background job) meant it.
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _end_at_once(number: int, _: FrameType | None = None) -> None:
    os._exit(128 + number)


class Stopped(Exception):
    """A signal (SIGPIPE: nobody reads the output) ended the command; ``code`` is the exit code."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        super().__init__(f"ended by signal {number}")


class OutputFailed(Exception):
    """What was printed could not be written, for another reason than that nobody reads it any more."""


def run_async(command: Callable[[], Coroutine[Any, Any, int]], output: Output) -> int:
    """Run ``command`` to its exit code. The first signal, or the loss of whoever reads ``output``, cancels it, so that
    it can store what was said; a second signal, or ``STOP_S_MAX`` later, ends the process as it is.

    Raises:
        Stopped: a signal or a broken pipe ended it.
        OutputFailed: the output is a file on a full disk, or the like.
    """
    got: list[int] = []

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            if got:
                _end_at_once(number)
            got.append(number)
            end_later(128 + number)
            task.cancel()

        for number in _heeded():
            loop.add_signal_handler(number, stop, number)
        output.watch(lambda: stop(signal.SIGPIPE))
        code = await command()
        # What is still running is not worth waiting for: a check that hangs, a library's thread.
        end_later(code)
        return code

    try:
        code = asyncio.run(watched())
    except asyncio.CancelledError:
        if not got:
            raise
        code = 0
    finally:
        output.close()
    if output.failure is not None and not isinstance(output.failure, BrokenPipeError):
        raise OutputFailed(f"The output can't be written: {output.failure.strerror}.")
    if got:
        raise Stopped(got[0])
    return code


def end_later(code: int, *, after_s: float = STOP_S_MAX) -> None:
    """End the process with ``code`` after ``after_s``, unless it has ended by itself."""
    timer = threading.Timer(after_s, os._exit, (code,))
    timer.daemon = True
    timer.start()


# What a model server answers to a request that it refuses may repeat the request: all that was said.
_ANSWER = re.compile(r"(Error code: \d+) - [^\n]*")


class _Private(logging.Formatter):
    """A record without what a server answered."""

    def format(self, record: logging.LogRecord) -> str:
        return _ANSWER.sub(r"\1", super().format(record)).rstrip()


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record tells more than that one of livekit's tasks failed: the commands say why, and what to do."""
    return not (record.name == "livekit.agents" and str(record.msg).startswith("Error in _"))


class _Plain(_Private):
    """One line a record: a traceback helps only who asked for it (``--verbose``)."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        return ""


def configure_logging(*, verbose: bool) -> None:
    """Log to stderr: warnings of ours and errors of others, or everything from INFO with tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    layout = "%(levelname)s %(name)s: %(message)s"
    handler.setFormatter(_Private("%(asctime)s " + layout) if verbose else _Plain(layout))
    if not verbose:
        handler.addFilter(_is_news)
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, handlers=[handler], force=True)
    for name in ("memory", "agent"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose:
        # It tells of tasks nobody waited for: livekit's, whose failures are told as what they mean.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def log_as_service() -> None:
    """Tell what goes on from INFO, with times, for a process that nobody sits in front of. After configure_logging."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("memory", "agent"):
        logging.getLogger(name).setLevel(logging.INFO)
