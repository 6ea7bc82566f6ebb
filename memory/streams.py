"""Standard streams that were closed when the process began. Above: __main__, the agent's commands. Below: nothing."""

from __future__ import annotations

import os
import sys


def secure() -> None:
    """Give descriptors 0 to 2 something harmless where they were closed, before a socket or lock takes their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the process's life
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
