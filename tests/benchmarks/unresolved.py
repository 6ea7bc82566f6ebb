"""Imported where jobs are forked from, in a worker whose DNS is away: names below ``DOMAIN`` are not resolved.

A resolver whose servers don't answer blocks the thread that asks, then says that it may be tried again; so does this.
Nothing else is changed, and nobody needs rights over the machine's own resolver. Above: outages.
"""

from __future__ import annotations

import socket
import time
from typing import Any

NAME = "tests.benchmarks.unresolved"
DOMAIN = "unresolved.invalid"
AFTER_S = 5.0  # one attempt, as resolv.conf(5) has it

_getaddrinfo = socket.getaddrinfo


def _asked(host: Any, *arguments: Any, **options: Any) -> Any:
    if not str(host).endswith(DOMAIN):
        return _getaddrinfo(host, *arguments, **options)
    time.sleep(AFTER_S)
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


socket.getaddrinfo = _asked
