"""What can be told of an error without its text, which may hold what somebody said. Above: pipeline, tasks, scan,
worker. Below: errors."""

from __future__ import annotations

from memory.errors import StoreFault


def place_of(error: BaseException) -> str:
    """The error's kind, and the function and line that it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    return type(error).__name__ + place


def reason_of(error: Exception) -> str:
    """The text of a store's fault, which is ours; of any other error, its place."""
    return str(error) if isinstance(error, StoreFault) else place_of(error)
