"""Imported where jobs are forked from, in a worker whose disk is full: a job can write no file once its call begins.

Not sooner: LiveKit needs a temporary directory to begin a job, with or without memory. Above: outages.
"""

from __future__ import annotations

import resource

from agent import job

_start = job.Call._start


async def _start_without_room(self: job.Call) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    await _start(self)


job.Call._start = _start_without_room  # type: ignore[method-assign]
