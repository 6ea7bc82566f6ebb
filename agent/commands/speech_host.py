"""``python -m agent speech-host``: the process that has the local speech models; started by whoever needs it first.

Above: cli. Below: agent.local.speech_host.
"""

from __future__ import annotations

import argparse

from agent.local.speech_host import run as serve
from agent.settings import load


def run(arguments: argparse.Namespace) -> int:
    """Serve until nobody uses it any more."""
    settings = load().memory
    idle_s = settings.host_idle_seconds if arguments.idle_s is None else arguments.idle_s
    return serve(settings.data_dir, idle_s=idle_s)
