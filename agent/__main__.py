"""``python -m agent``. Nothing heavy is imported here: help and wrong usage answer at once.

Ctrl-C ends the process quietly from the first line on; what takes over, and when, is ``commands.process``'s.
"""

from __future__ import annotations

import os
import signal
import sys


def _main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from agent.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
