"""``python -m agent``: what can be asked of it, and how errors become exit codes.

Each command is imported when it is run. Above: __main__. Below: commands.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from agent.commands.process import (
    OutputFailed,
    Stopped,
    configure_logging,
    end_at_once_on_signals,
    flush_quietly,
    secure_streams,
)

DEFAULT_USER = "local-user"
DEFAULT_SAY = "I am allergic to peanuts, so please keep them off my order."
DEFAULT_ASK = "Which food could make me sick?"
FAILED_CODE = 1
WRONG_CODE = 2

_ID_CHARS_MAX = 512  # as memory.limits has it; importing that would be the slowest part of --help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code (see ``agent.commands``)."""
    secure_streams()
    end_at_once_on_signals()
    try:
        parsed = _parsed(arguments)
    except SystemExit:
        flush_quietly()
        raise
    if not hasattr(parsed, "options"):  # LiveKit's commands log in LiveKit's way
        configure_logging(verbose=parsed.verbose)
    # Not before: help and wrong usage need neither.
    from memory.errors import HostUnavailable, StoreUnavailable, VoiceMemoryError

    run: Callable[[argparse.Namespace], int] = importlib.import_module(parsed.module).run
    try:
        return run(parsed)
    except Stopped as stopped:
        return stopped.code
    except (HostUnavailable, StoreUnavailable, OutputFailed) as error:
        return _refused(parsed, str(error), FAILED_CODE)
    except VoiceMemoryError as error:
        return _refused(parsed, str(error), WRONG_CODE)


def _refused(parsed: argparse.Namespace, reason: str, code: int) -> int:
    if getattr(parsed, "json", False):
        line = json.dumps({"event": "error", "message": reason, "code": code}, ensure_ascii=False)
        with contextlib.suppress(OSError):  # it may be the output itself that failed
            os.write(sys.stdout.fileno(), f"{line}\n".encode(errors="replace"))
    print(f"agent {parsed.command}: {reason}", file=sys.stderr)
    return code


_Commands = argparse._SubParsersAction


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    parsed, options = parser.parse_known_args(arguments)
    if hasattr(parsed, "options"):
        parsed.options = options  # LiveKit's to know
    elif options:
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent",
        description="A voice agent that remembers. Its settings come from the environment; doctor shows them.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        _add_demo,
        _add_chat,
        _add_call,
        _add_worker,
        _add_ingest,
        _add_doctor,
        _add_download_files,
        _add_speech_host,
    ):
        add(commands)
    return parser


def _command(commands: _Commands[argparse.ArgumentParser], name: str, what: str | None) -> argparse.ArgumentParser:
    # Without a help text a command is left out of the list: for our own processes.
    shown = {"help": what, "description": what[:1].upper() + what[1:] + "."} if what else {}
    parser = commands.add_parser(name, **shown)  # type: ignore[arg-type] # argparse passes them on to a parser
    parser.set_defaults(module=f"agent.commands.{name.replace('-', '_')}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log to stderr what happens, with tracebacks")
    return parser


def _add_demo(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "demo", "say something in a call, kill the call's process, and ask about it by text")
    parser.add_argument("--say", default=DEFAULT_SAY, type=_text, metavar="TEXT", help="what the caller says")
    parser.add_argument(
        "--ask", default=DEFAULT_ASK, type=_text, metavar="TEXT", help="what the same user types afterwards"
    )
    parser.add_argument("--user", type=_identifier, metavar="U", help="the user (default: a new one each run)")
    _add_json(parser)


def _add_chat(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "chat", "type with the agent: from a terminal, or one line a turn from a pipe")
    _add_identity(parser)
    _add_json(parser)


def _add_call(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "call", "play a recording to the agent as a spoken call, in real time")
    parser.add_argument("recording", metavar="FILE.wav", help="the caller's side: any rate, mono or stereo")
    parser.add_argument("--out", metavar="REPLY.wav", help="write the call: caller left, agent right")
    _add_identity(parser)
    _add_json(parser)


def _add_worker(commands: _Commands[argparse.ArgumentParser]) -> None:
    for name, what in (
        ("start", "take calls from a LiveKit server, until told to stop"),
        ("dev", "the same while developing: readable logs, no waiting for calls at the end"),
        ("console", "talk with the agent through LiveKit's CLI (lk agent console)"),
    ):
        parser = _command(commands, name, what)
        parser.set_defaults(module="agent.commands.worker", options=[])


def _add_ingest(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "ingest", "turn what was said into facts: any number of these, on any machine")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # whose end ends this one


def _add_doctor(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "doctor", "show what is configured, what answers, and what to fix")
    parser.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="S", help="seconds each check may take (default: %(default)g)"
    )
    _add_json(parser)


def _add_download_files(commands: _Commands[argparse.ArgumentParser]) -> None:
    _command(commands, "download-files", "fetch the model files that don't come with the packages")


def _add_speech_host(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "speech-host", None)
    parser.add_argument("--idle-s", type=_seconds)


def _add_identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user", type=_identifier, default=DEFAULT_USER, metavar="U", help="who it is (default: %(default)s)"
    )
    parser.add_argument("--org", type=_identifier, metavar="O", help="the organisation (default: MEMORY_ORG_ID)")
    parser.add_argument("--agent", type=_identifier, metavar="A", help="the agent (default: MEMORY_AGENT_ID)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, for scripts")


def _identifier(value: str) -> str:
    if not value.strip() or len(value) > _ID_CHARS_MAX or not value.isprintable():
        raise argparse.ArgumentTypeError(f"must be 1 to {_ID_CHARS_MAX} characters of plain text, on one line")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be blank")
    return value


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 to 86400")
    return seconds
