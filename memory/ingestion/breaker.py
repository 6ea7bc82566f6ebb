"""Leaves a provider alone while it is away: one breaker for each, shared by all that ask it in this process.

Closed: everybody may ask. After ``BREAKER_FAILURES`` failures in a row it is open, and nobody asks for a while that
doubles each time; then half open: one asks, and the answer decides. ``Retry-After`` counts at once. A provider that
refuses the key or the account is asked about every ten minutes, and named as what the operator has to mend.
Above: pipeline, worker's health. Below: errors, clock, limits.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from memory.clock import Clock
from memory.errors import ProviderAnswerInvalid, ProviderFault, ProviderRefused, ProviderUnavailable
from memory.limits import BREAKER_FAILURES, BREAKER_OPEN_S, BREAKER_OPEN_S_MAX

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_JITTER = 0.25  # so that processes that were turned away together don't come back together
_PROBE_S = 1.0  # who comes while another one's question decides comes again then

BreakerStatus = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerState:
    """``refused``: the operator has to act. ``reason``: what the provider's last failure was, without content."""

    status: BreakerStatus
    refused: bool
    reason: str
    wait_s: float


class Breaker:
    """Asks one provider, unless it is better left alone. Belongs to one event loop.

    ``uniform(a, b)`` gives the jitter, in tests what they like.
    """

    def __init__(self, name: str, clock: Clock, *, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self.name = name
        self._clock, self._uniform = clock, uniform
        self._failures = 0  # in a row
        self._opened = 0  # how often in a row
        self._until_s = 0.0
        self._asking = False  # somebody's question decides
        self._refused = False
        self._reason = ""

    @property
    def state(self) -> BreakerState:
        status: BreakerStatus = "closed"
        if self._opened:
            status = "open" if self._clock.monotonic() < self._until_s else "half_open"
        return BreakerState(status, self._refused, self._reason, self.wait_s)

    @property
    def wait_s(self) -> float:
        """For how long it isn't worth asking; 0 where it is."""
        if not self._opened:
            return 0.0
        left_s = max(0.0, self._until_s - self._clock.monotonic())
        return max(left_s, _PROBE_S) if self._asking else left_s

    async def ask(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """``call``'s answer; what it raises counts here.

        Raises:
            ProviderUnavailable: nobody is to ask now; ``retry_after_s`` says for how long.
            ProviderRefused, ProviderUnavailable, ProviderAnswerInvalid: as ``call`` raises them.
        """
        if wait_s := self.wait_s:
            raise ProviderUnavailable(self._turned_away(), retry_after_s=wait_s)
        deciding = bool(self._opened)
        self._asking = self._asking or deciding
        try:
            answer = await call()
        except ProviderAnswerInvalid:
            self._succeeded()  # it is there, whatever it says
            raise
        except ProviderFault as error:
            self._failed(error)
            raise
        finally:
            if deciding:
                self._asking = False
        self._succeeded()
        return answer

    def _turned_away(self) -> str:
        return f"{self.name} is left alone for a while: {self._reason}"

    def _succeeded(self) -> None:
        if self._opened:
            logger.warning("%s answers again.", self.name)
        self._failures = self._opened = 0
        self._refused, self._reason = False, ""

    def _failed(self, error: ProviderFault) -> None:
        refused = isinstance(error, ProviderRefused)
        told_s = error.retry_after_s if isinstance(error, ProviderUnavailable) else None
        known = bool(self._opened) and refused == self._refused and self._clock.monotonic() < self._until_s
        self._failures += 1
        self._reason, self._refused = str(error), refused
        if known and told_s is None:
            return  # a question that was under way when it opened
        if not (refused or told_s is not None or self._opened or self._failures >= BREAKER_FAILURES):
            return
        if refused and not known:
            logger.error("%s: %s", self.name, self._reason)
        elif not self._opened:
            logger.warning("%s is away: %s", self.name, self._reason)
        self._opened += 1
        self._until_s = max(self._until_s, self._clock.monotonic() + self._open_s(told_s))

    def _open_s(self, told_s: float | None) -> float:
        if self._refused:
            wait_s = BREAKER_OPEN_S_MAX
        else:
            wait_s = min(BREAKER_OPEN_S * 2 ** min(self._opened - 1, 16), BREAKER_OPEN_S_MAX)
            if told_s is not None:
                # Its own word, in bounds: an endpoint that says "in a year" is asked about all the same.
                wait_s = min(max(told_s, 0.0), BREAKER_OPEN_S_MAX)
        return wait_s * self._uniform(1.0, 1.0 + _JITTER)
