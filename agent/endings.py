"""When a caller of the local models has finished: by silence, and by how the voice was before it.

LiveKit's own model of turns' ends judges the voice (its weights are in the process that jobs are forked from anyway).
Who sounds finished is answered after ``FINISHED_S`` of silence; who doesn't is given ``UNFINISHED_S``, which is longer
than the pauses that speakers make within a sentence. LiveKit's threshold is meant for waits of 2.5 s; this one is
meant for waits that differ by less, and for few mistakes. Above: models. Below: livekit.
"""

from __future__ import annotations

from livekit.agents import inference

FINISHED_S = 0.35
UNFINISHED_S = 0.5
_SURE = 0.5


class EndOfTurn(inference.TurnDetector):
    """The model in this process, with our threshold."""

    def __init__(self) -> None:
        super().__init__(version="v1-mini", unlikely_threshold=_SURE)

    def _warn_threshold_override(self) -> None:
        """It is meant, and a line in the log for every call would tell nobody anything."""
