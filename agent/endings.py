"""When a caller of the local models has finished: by silence, by how the voice was before it, and by the words.

LiveKit's own model of turns' ends judges the voice (its weights are in the process that jobs are forked from anyway).
Who sounds finished is answered after ``FINISHED_S`` of silence; who doesn't is given ``UNFINISHED_S``, which is longer
than the pauses that speakers make within a sentence. LiveKit's threshold is meant for waits of 2.5 s; this one is
meant for waits that differ by less, and for few mistakes. No turn ends before its last words are there: a listener
that is late, or waits for the rest of a sentence, would else have its first half answered.
Above: models. Below: livekit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, inference

FINISHED_S = 0.35
UNFINISHED_S = 0.5
WORDS_S_MAX = 0.9  # LiveKit itself stops waiting for a verdict after a second
_SURE = 0.5


class EndOfTurn(inference.TurnDetector):
    """The model in this process, with our threshold; its verdict comes when ``words`` has returned."""

    def __init__(self, words: Callable[[], Awaitable[object]]) -> None:
        super().__init__(version="v1-mini", unlikely_threshold=_SURE)
        self._words = words

    def _warn_threshold_override(self) -> None:
        """It is meant, and a line in the log for every call would tell nobody anything."""

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        stream = super().stream(conn_options=conn_options)
        judge = stream.predict

        def predict() -> asyncio.Future[Any]:
            return asyncio.ensure_future(self._with_words(judge()))  # of the voice as it is now

        stream.predict = predict  # type: ignore[method-assign]
        return stream

    async def _with_words(self, verdict: asyncio.Future[Any]) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORDS_S_MAX):
                await self._words()
        return await verdict
