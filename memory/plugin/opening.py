"""Opens the stores and finds the caller while the session starts, then lets the recorder and the recall begin.

Above: attached. Below: wiring, caller. Nothing waits for it; whatever fails is counted, told once, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import VoiceMemoryError
from memory.identity import Assurance
from memory.models import Scope
from memory.plugin.caller import Caller
from memory.plugin.recall import RecallGate
from memory.ports import TurnLog
from memory.recorder import Recorder
from memory.replay import replay_left
from memory.retrieval.prefetch import Prefetcher
from memory.retrieval.profile import ProfileSource
from memory.settings import Settings
from memory.spool import Spool
from memory.wiring import Backend, open_spool

logger = logging.getLogger("memory.plugin")

_RETRY_S_MIN, _RETRY_S_MAX = 0.5, 5.0
_OPEN_ERRORS = "plugin.open_errors"

OpenBackend = Callable[[Settings], Awaitable[Backend]]


class Opening:
    """One session's way from "attached" to "remembers". Owns the backend unless it was given one; ``aclose`` it."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        counters: Counters,
        *,
        recorder: Recorder,
        gate: RecallGate,
        find: Callable[[Callable[[Scope], None]], Awaitable[Caller]],
        backend: Backend | None,
        open_backend: OpenBackend,
    ) -> None:
        self._settings, self._clock, self._counters = settings, clock, counters
        self._recorder, self._gate, self._find = recorder, gate, find
        self._backend, self._open_backend, self._owned = backend, open_backend, backend is None
        self._prefetcher: Prefetcher | None = None
        self._caller: asyncio.Future[Caller] = asyncio.get_running_loop().create_future()
        self._warming: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name="memory.opening")

    @property
    def caller(self) -> Caller | None:
        return self._caller.result() if self._caller.done() and not self._caller.cancelled() else None

    async def identified(self) -> Caller:
        """The caller, as soon as it is known.

        Raises:
            asyncio.CancelledError: the session ended before.
        """
        return await asyncio.shield(self._caller)

    async def opened(self) -> tuple[Backend, Caller]:
        """The stores and the caller, once both are there.

        Raises:
            asyncio.CancelledError: the session ended before.
        """
        await asyncio.wait((self._task,))
        caller = self.caller
        if self._backend is None or caller is None:
            raise asyncio.CancelledError
        return self._backend, caller

    @property
    def is_away(self) -> bool:
        """Whether the stores could not be opened so far."""
        return self._backend is None and self._counters[_OPEN_ERRORS] > 0

    async def begun(self) -> None:
        """Return once the session is recorded, or never will be."""
        await asyncio.wait((self._task,))

    async def stop(self) -> None:
        """Stop looking; what is open stays open."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._caller.cancel()

    async def aclose(self) -> None:
        """Close what was opened here. Idempotent."""
        await self.stop()
        for task in (self._warming, self._replaying):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        await self._gate.profile.aclose()
        if self._prefetcher is not None:
            await self._prefetcher.aclose()
        if self._backend is not None and self._owned:
            backend, self._backend = self._backend, None
            await backend.aclose()

    async def _run(self) -> None:
        finding = asyncio.create_task(self._found(), name="memory.caller")
        try:
            backend = await self._open()
            caller = await finding
        finally:
            finding.cancel()
        self._recorder.start(backend.sessions, caller.scope)
        self._prefetcher = self._prefetcher_for(caller, backend)
        self._gate.open(self._prefetcher, lambda: _epoch(backend.sessions, caller.scope))
        if backend.spool is not None:
            self._replaying = asyncio.create_task(self._replay(backend, backend.spool), name="memory.replay")

    async def _found(self) -> Caller:
        retry_s = _RETRY_S_MIN
        while True:
            try:
                caller = await self._find(self._spool_as)
            except Exception as error:
                self._told(error, "the caller can't be found", "plugin.caller_errors")
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            self._caller.set_result(caller)
            self._spool_as(caller.scope)
            return caller

    def _spool_as(self, scope: Scope) -> None:
        spool = open_spool(self._settings) if self._backend is None else self._backend.spool
        if spool is not None:
            self._recorder.spool_as(scope, spool)

    async def _replay(self, backend: Backend, spool: Spool) -> None:
        """Whoever comes first stores what other sessions have left on disk; the recall host looks again later."""
        await self._recorder.looked_for_left(patient=True)  # its own user's come first, and in its order
        try:
            await replay_left(spool, backend.sessions, self._counters, self._clock)
        except Exception as error:
            self._counters.add("spool.errors")
            logger.warning("turns left by ended processes stay in the spool for now (%s)", type(error).__name__)

    async def _open(self) -> Backend:
        retry_s = _RETRY_S_MIN
        while self._backend is None:
            try:
                self._backend = await self._open_backend(self._settings)
            except Exception as error:
                self._gate.stop_waiting()
                self._recorder.store_is_away()
                self._told(error, "the stores can't be opened", _OPEN_ERRORS)
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
        return self._backend

    def _told(self, error: Exception, what: str, counter: str) -> None:
        if not self._counters[counter]:
            # Our own errors say what to do and hold no content; of others only the kind is told.
            why = str(error) if isinstance(error, VoiceMemoryError) else type(error).__name__
            logger.error("%s; the session goes on without memory, and it is tried again: %s", what, why)
        self._counters.add(counter)

    def _prefetcher_for(self, caller: Caller, backend: Backend) -> Prefetcher | None:
        """A way to recall, if the caller is known well enough for it, and warmed up."""
        needed = Assurance[self._settings.recall_assurance.upper()]
        if backend.retriever is None or caller.scope.kind != "user" or caller.identity.assurance < needed:
            self._counters.add("recall.not_allowed")
            return None
        self._warming = asyncio.create_task(backend.retriever.warm(caller.scope), name="memory.warm")
        if isinstance(backend.retriever, ProfileSource):
            self._gate.profile.ask(backend.retriever, caller.scope, caller.identity.name or "")
        return Prefetcher(
            backend.retriever,
            caller.scope,
            clock=self._clock,
            budget_ms=self._settings.turn_budget_ms,
            limit=self._settings.recall_limit,
            counters=self._counters,
            way=self._gate.way,
        )


async def _epoch(log: TurnLog, scope: Scope) -> int:
    return (await log.read(scope, after="", limit=0)).epoch
