"""The recall host's thin client: one connection, many requests in flight, and a breaker. No model, no index, no SQL.

Nobody waits for an outage twice: while the host is away or silent, ``recall`` fails at once, and a task of its own
keeps looking for the host (and starts it) until it answers again. Above: wiring, plugin. Below: protocol, hosting.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memory.clock import Clock, SystemClock
from memory.errors import HostUnavailable, StoreUnavailable, VoiceMemoryError
from memory.hosting import HostUse
from memory.limits import (
    HOST_ERASE_S,
    HOST_PING_S,
    HOST_QUEUE_MAX,
    HOST_RETRY_S_MAX,
    HOST_RETRY_S_MIN,
    HOST_START_S,
    RECALL_QUERY_CHARS_MAX,
    RECALL_WARM_S,
)
from memory.models import Recall, Scope, clean_text
from memory.ports import Selection
from memory.retrieval.deadlines import Deadline, done_within
from memory.retrieval.protocol import Malformed, Reply, Request, read_frame
from memory.retrieval.snapshot_files import remove_snapshot, snapshot_directory
from memory.retrieval.tasks import end_all
from memory.scheduling import hand_over

logger = logging.getLogger(__name__)

_UNREADABLE = "The recall host's answer can't be read: is it of another version?"
_MARGIN_SHARE, _MARGIN_MS_MAX = 0.1, 5.0  # of a budget, kept for the way back from the host


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that is on its way."""

    number: int
    future: asyncio.Future[Reply]


class Link:
    """One connection to a host. Replies find their requests by number; what nobody waits for any more is dropped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: Clock) -> None:
        self._reader, self._writer, self._clock = reader, writer, clock
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._numbers = itertools.count(1)
        self.lost = asyncio.create_task(self._listen())

    async def ask(self, timeout_s: float, **fields: Any) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            HostUnavailable: the connection is lost, or has too many requests in flight, or the host has refused.
            TimeoutError: no reply in time.
        """
        return await self.reply(self.begin(**fields), timeout_s)

    def begin(self, **fields: Any) -> Sent:
        """Send a request, for ``reply``; it is on its way when this returns.

        Raises:
            HostUnavailable: the connection is lost, or has too many requests in flight, or it can't be asked this.
        """
        if self.lost.done() or len(self._waiting) >= HOST_QUEUE_MAX:
            raise HostUnavailable("The recall host is gone or has more to do than it can.")
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_looked_at)  # whoever asked may have been cancelled in the meantime
        try:
            frame = Request(id=number, **fields).frame()
        except (ValidationError, Malformed):  # the first quotes what is wrong
            raise HostUnavailable("The recall host can't be asked this: too much, or what no text holds.") from None
        self._writer.write(frame)
        self._waiting[number] = future
        hand_over()
        return Sent(number, future)

    async def reply(self, sent: Sent, timeout_s: float) -> Reply:
        """Wait for a request's reply. Raises as ``ask``."""
        try:
            if not await done_within(sent.future, self._clock, timeout_s):
                raise TimeoutError
            reply = sent.future.result()
        finally:
            self._waiting.pop(sent.number, None)
            sent.future.cancel()
        if reply.error:
            raise HostUnavailable(f"The recall host could not answer: {reply.error}")
        return reply

    async def close(self) -> None:
        self._writer.close()
        await end_all((self.lost,))

    async def _listen(self) -> None:
        reason = "The recall host went away."
        try:
            while (body := await read_frame(self._reader)) is not None:
                reply = Reply.parse(body)
                future = self._waiting.pop(reply.id, None)
                if future is not None and not future.done():
                    future.set_result(reply)
        except OSError as error:
            logger.warning("The recall host's connection broke: %s.", type(error).__name__)
        except Malformed:
            reason = _UNREADABLE
            logger.warning(reason)
        finally:
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(HostUnavailable(reason))


class HostRetriever:
    """Recall by the data directory's recall host. Belongs to one event loop; close with ``aclose``."""

    def __init__(self, use: HostUse, *, clock: Clock | None = None) -> None:
        self._use = use
        self._clock = clock or SystemClock()
        self._link: Link | None = None
        self._seeking: asyncio.Task[None] | None = None
        self._away = False  # somebody has waited for it in vain since it last answered
        self._told = False
        self._closed = False

    def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int,
        budget_ms: float,
        exclude_ids: frozenset[str] = frozenset(),
    ) -> Coroutine[Any, Any, Recall]:
        """See ``ports.Retriever``. Where the host is there, the request is on its way when this returns: before the
        event loop's other work, rather than after it.

        Raises, when it is awaited:
            HostUnavailable: the host is away or has not answered within ``budget_ms``; while it is known to be away,
                at once.
        """
        deadline = Deadline(self._clock, budget_ms)
        query = clean_text(query[:RECALL_QUERY_CHARS_MAX])
        if limit <= 0 or not query.strip():
            return _nothing()

        def begin(link: Link) -> Sent:
            left_ms = deadline.remaining_s() * 1_000
            return link.begin(
                op="recall",
                scope=scope,
                query=query,
                limit=limit,
                budget_ms=left_ms - min(left_ms * _MARGIN_SHARE, _MARGIN_MS_MAX),
                exclude_ids=exclude_ids,
            )

        link, sent = None if self._away else self._usable(), None
        if link is not None:
            with contextlib.suppress(HostUnavailable):  # it is tried, and told, once more when awaited
                sent = begin(link)
        return self._recalled(link, sent, begin, deadline)

    async def _recalled(
        self, link: Link | None, sent: Sent | None, begin: Callable[[Link], Sent], deadline: Deadline
    ) -> Recall:
        try:
            if link is None or sent is None:
                link = await self._linked(deadline)
                sent = begin(link)
            return _recall_in(await link.reply(sent, deadline.remaining_s()))
        except TimeoutError:
            # One user's index may take long to load; whether the host as such is silent, a ping will tell.
            self._doubt()
            raise HostUnavailable("The recall host did not answer in time.") from None

    async def warm(self, scope: Scope) -> None:
        """Have the host started, and the user's index loaded. Waits for both, within bounds. Never raises."""
        deadline = Deadline(self._clock, (HOST_START_S + RECALL_WARM_S) * 1_000)
        with contextlib.suppress(HostUnavailable, TimeoutError):
            link = await self._linked(deadline, patient=True)
            await link.ask(min(RECALL_WARM_S, deadline.remaining_s()), op="warm", scope=scope)

    async def profile(self, scope: Scope, *, name: str = "", limit: int, budget_ms: float) -> Recall:
        """See ``profile.ProfileSource``. ``budget_ms`` is the host's; one that has to be started is waited for.

        Raises:
            HostUnavailable: the host is away, or has not answered in time.
        """
        deadline = Deadline(self._clock, HOST_START_S * 1_000 + budget_ms)
        link = await self._linked(deadline, patient=True)
        try:
            reply = await link.ask(
                budget_ms / 1_000 + HOST_PING_S,
                op="profile",
                scope=scope,
                query=clean_text(name[:RECALL_QUERY_CHARS_MAX]),
                limit=limit,
                budget_ms=budget_ms,
            )
            return _recall_in(reply)
        except TimeoutError:
            raise HostUnavailable("The recall host did not answer in time.") from None

    async def erase(self, scope: Scope, selection: Selection) -> int:
        """Have the host drop what it holds of ``selection``; returns how many turns it had loaded.

        Without a host, the user's snapshot is removed here; a host that starts later, or runs but does not answer,
        finds by the log's epoch that what it has is of before. So call this after log and archive have erased.

        Raises:
            StoreUnavailable: no host, and the snapshot can't be removed; call again.
        """
        async with self._any_link() as link:
            if link is not None:
                with contextlib.suppress(HostUnavailable, TimeoutError):
                    reply = await link.ask(HOST_ERASE_S, op="erase", scope=scope, selection=selection)
                    return reply.erased
        try:
            await asyncio.to_thread(remove_snapshot, snapshot_directory(self._use.spec.data_dir), scope)
        except OSError as error:
            raise StoreUnavailable(
                f"A snapshot of recall can't be removed ({error.strerror or 'no reason given'}); repair the data "
                "directory and erase again."
            ) from None
        return 0

    async def stats(self) -> dict[str, Any]:
        """What the host says of itself. Does not start one.

        Raises:
            HostUnavailable: there is none, or it does not answer.
        """
        async with self._any_link() as link:
            if link is None:
                raise HostUnavailable("No recall host is running; it starts with the first call.")
            try:
                return (await link.ask(HOST_PING_S, op="stats")).stats
            except TimeoutError:
                raise HostUnavailable("The recall host does not answer.") from None

    async def aclose(self) -> None:
        """Close the connection and stop using the host, which ends once nobody uses it. Idempotent."""
        self._closed = True
        try:
            await end_all((self._seeking,))
            await self._drop()
        finally:
            self._use.release()

    def _usable(self) -> Link | None:
        return None if self._link is None or self._link.lost.done() else self._link

    async def _linked(self, deadline: Deadline, *, patient: bool = False) -> Link:
        """The connection to a host that answers, waiting for it until the deadline, but not for a known outage."""
        link = self._usable()
        if link is not None and not self._away:
            return link
        if self._closed:
            raise HostUnavailable("This retriever is closed.")
        known_away, seeking = self._away, self._seek()
        if (known_away and not patient) or not await deadline.met_by(seeking):
            self._away = True
            raise HostUnavailable("The recall host is away; it is being started.")
        link = self._usable()
        if link is None:
            raise HostUnavailable("The recall host went away as soon as it was there.")
        return link

    def _doubt(self) -> None:
        self._away = True
        self._seek()

    def _seek(self) -> asyncio.Task[None]:
        if self._seeking is None or self._seeking.done():
            self._seeking = asyncio.create_task(self._seek_until_found())
        return self._seeking

    async def _seek_until_found(self) -> None:
        """Until a host answers a ping: connect, starting one if need be, again and again with growing pauses."""
        pause_s = HOST_RETRY_S_MIN
        while not await self._answering():
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, HOST_RETRY_S_MAX)
        if self._told:
            logger.info("The recall host answers again.")
        self._told = self._away = False

    async def _answering(self) -> bool:
        """Whether a host answers, on the link there is or a new one. What stands in the way is logged once."""
        try:
            link = self._usable() or await self._joined()
            await link.ask(HOST_PING_S, op="ping")
        except TimeoutError:
            await self._drop()
            self._complain("it takes connections but does not answer")
        except (VoiceMemoryError, OSError) as error:
            self._complain(str(error))
        else:
            return True
        return False

    def _complain(self, reason: str) -> None:
        if not self._told:
            logger.warning("Recall is off until the recall host answers: %s", reason)
        self._told = True

    async def _joined(self) -> Link:
        """A link to a host that stays as long as this process uses it; started if need be."""
        await self._drop()
        socket = await self._use.ensure()
        link = await _connect(socket, self._clock)
        link.lost.add_done_callback(self._on_lost)
        self._link = link
        return link

    @contextlib.asynccontextmanager
    async def _any_link(self) -> AsyncIterator[Link | None]:
        """The link there is, or one for this block alone: it neither starts a host nor keeps one alive."""
        link = self._usable()
        if link is not None:
            yield link
            return
        try:
            link = await _connect(self._use.spec.socket, self._clock)
        except HostUnavailable:
            yield None
            return
        try:
            yield link
        finally:
            await link.close()

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        if not self._closed and not lost.cancelled():
            self._seek()

    async def _drop(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()


def _looked_at(future: asyncio.Future[Reply]) -> None:
    if not future.cancelled():
        future.exception()


async def _nothing() -> Recall:
    return Recall()


def _recall_in(reply: Reply) -> Recall:
    if reply.recall is None:
        raise HostUnavailable(_UNREADABLE)
    return reply.recall


async def _connect(socket: Path, clock: Clock) -> Link:
    try:
        async with asyncio.timeout(HOST_PING_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
    except (OSError, TimeoutError):
        raise HostUnavailable("Nobody listens on the recall host's socket.") from None
    return Link(reader, writer, clock)
