"""``python -m memory``. Nothing is imported here before Ctrl-C has a meaning: outside of a command, which answers it
itself (see cli), it ends the process without a traceback. So does whoever reads what is printed, by going away.
"""

from __future__ import annotations

import os
import signal
import sys


def _end_quietly_on_ctrl_c() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))


def _not_printed(error: OSError) -> int:
    """What was printed was not taken; the exit code. Python would complain of what is left at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    sys.stderr.write(f"The output can't be written: {error.strerror}.\n")
    return 1


def _main() -> int:
    _end_quietly_on_ctrl_c()
    from memory import streams

    streams.secure()
    from memory.cli import main

    code = 0
    try:
        try:
            code = main()
        except SystemExit as ended:  # argparse has told how it is used
            code = int(ended.code or 0)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        code = _not_printed(error)
    _end_quietly_on_ctrl_c()
    return code


if __name__ == "__main__":
    sys.exit(_main())
