"""``python -m memory``. Nothing is imported here before Ctrl-C has a meaning: outside of a command, which answers it
itself (see cli), it ends the process without a traceback.
"""

from __future__ import annotations

import os
import signal
import sys


def _end_quietly_on_ctrl_c() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))


def _main() -> int:
    _end_quietly_on_ctrl_c()
    from memory.cli import main

    code = main()
    _end_quietly_on_ctrl_c()
    return code


if __name__ == "__main__":
    sys.exit(_main())
