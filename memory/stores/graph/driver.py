"""One bounded way to a FalkorDB: few connections, a deadline on each call, errors that say what to do.

It speaks GRAPH.QUERY itself, over the redis driver: no graph is made by a read, nothing blocks the loop, and no error
or log line holds a query, which is full of what users said. Above: store, readers. Below: the redis driver,
connection (its faults), rewriting, errors, limits. Belongs to the event loop it was opened in.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

import redis.exceptions as driver
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from memory.errors import NoGraphServer, SettingsError, StoreFault, StoreUnavailable, VoiceMemoryError
from memory.limits import GRAPH_SAVE_TIMEOUT_S, GRAPH_TIMEOUT_S
from memory.models import clean_text
from memory.stores.connection import CODES, MENDS_ITSELF, root
from memory.stores.rewriting import Rewriting

_CONNECTIONS = 8
_CONNECT_TIMEOUT_S = 1.0
_RETRY_S = 0.05  # doubled with each attempt, and spread
_RETRY_S_MAX = 1.0

Recovery = Callable[[], Awaitable[object]]
Rows = list[list[Any]]


class NoGraph(Exception):
    """There is no graph of this name."""


class AlreadyIndexed(StoreFault):
    """An index that is there already."""


class GraphLink:
    """Queries on one FalkorDB. When the connection is lost, ``on_lost`` is awaited, and the query made once more."""

    def __init__(self, pool: ConnectionPool, on_lost: Recovery | None) -> None:
        self._client = Redis(connection_pool=pool)
        self._pool = pool
        self._on_lost = on_lost
        # The driver's own blocking pool can lose a wake-up when a waiter is cancelled.
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self.rewriting = Rewriting(self.call)

    @classmethod
    def to(cls, url: str, *, password: str | None = None, on_lost: Recovery | None = None) -> Self:
        """A link to the server at ``url`` (redis://, rediss:// or unix://); it connects when it is first used.

        Raises:
            SettingsError: ``url`` is no such URL.
        """
        secret = {} if password is None else {"password": password}
        try:
            pool: ConnectionPool = ConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                socket_timeout=GRAPH_SAVE_TIMEOUT_S,
                socket_connect_timeout=_CONNECT_TIMEOUT_S,
                retry=Retry(NoBackoff(), 1, (driver.ConnectionError,)),
                protocol=2,
                decode_responses=True,
                encoding_errors="backslashreplace",
                **secret,
            )
        except ValueError:
            raise SettingsError(["FALKORDB_HOST: must be the name of a host, such as localhost"]) from None
        return cls(pool, on_lost)

    async def aclose(self) -> None:
        """Close every connection; a rewrite of the append-only file that is wanted is waited for, within bounds."""
        await self.rewriting.aclose()
        await self._client.aclose()
        await self._pool.disconnect()

    async def read(self, graph: str, query: str, parameters: Mapping[str, Any]) -> Rows:
        """Rows of scalars. Given up within GRAPH_TIMEOUT_S, and not repeated when the server is busy.

        Raises:
            NoGraph: there is none, and none is made.
            StoreUnavailable, StoreFault: see ``translate``.
        """
        async with _deadline(GRAPH_TIMEOUT_S):
            return _rows(await self._recovering("GRAPH.RO_QUERY", graph, _text(query, parameters)))

    async def write(self, graph: str, query: str, parameters: Mapping[str, Any], *, until: float | None = None) -> Rows:
        """Rows of scalars. Repeated while the server is away or busy, as ``insisting`` is: it must bear being applied
        twice. Makes the graph if there is none.

        Raises:
            StoreUnavailable, StoreFault: see ``translate``.
        """
        text = _text(query, parameters)
        return _rows(await self.insisting("GRAPH.QUERY", graph, text, until=until))

    async def insisting(self, *command: str, until: float | None = None) -> Any:
        """Make a call that may be repeated until it gets through: up to the loop's time ``until``, or for
        GRAPH_SAVE_TIMEOUT_S.

        Raises:
            NoGraph: the server says that there is none.
            StoreUnavailable, StoreFault: see ``translate``.
        """
        last: StoreUnavailable | None = None
        wait_s = _RETRY_S
        try:
            async with asyncio.timeout_at(patience() if until is None else until):
                while True:
                    try:
                        return await self._recovering(*command)
                    except StoreUnavailable as error:
                        last = error
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads attempts
                    wait_s = min(wait_s * 2, _RETRY_S_MAX)
        except TimeoutError:
            raise last or _late(GRAPH_SAVE_TIMEOUT_S) from None

    async def exists(self, graph: str) -> bool:
        """Whether there is a key of this name."""
        async with _deadline(GRAPH_TIMEOUT_S):
            return bool(await self._recovering("EXISTS", graph))

    async def call(self, *command: str) -> Any:
        """One other command, within GRAPH_TIMEOUT_S.

        Raises:
            StoreUnavailable, StoreFault: see ``translate``.
        """
        async with _deadline(GRAPH_TIMEOUT_S):
            return await self._recovering(*command)

    async def _recovering(self, *command: str) -> Any:
        try:
            try:
                return await self._attempt(command)
            except (driver.ConnectionError, OSError) as error:
                if self._on_lost is None or isinstance(root(error), driver.AuthenticationError | TimeoutError):
                    raise
                await self._on_lost()
                return await self._attempt(command)
        except (driver.RedisError, OSError) as error:
            raise translate(error) from None
        except VoiceMemoryError as error:  # from on_lost
            raise StoreUnavailable(str(error)) from None

    async def _attempt(self, command: Sequence[str]) -> Any:
        async with self._slots:
            return await _heeding_cancellation(self._client.execute_command(*command))  # type: ignore[no-untyped-call]


async def _heeding_cancellation(call: Awaitable[Any]) -> Any:
    """What the driver answers, unless the task was cancelled meanwhile: the driver waits with asyncio.wait_for, which
    until Python 3.12 can lose a cancellation."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task else 0
    answer = await call
    if task and task.cancelling() > cancels:
        raise asyncio.CancelledError
    return answer


def patience() -> float:
    """The loop's time at which a write that begins now is given up."""
    return asyncio.get_running_loop().time() + GRAPH_SAVE_TIMEOUT_S


@contextlib.asynccontextmanager
async def _deadline(seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise _late(seconds) from None


def _late(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(f"FalkorDB did not answer within {seconds:g} s.")


def _rows(answer: Any) -> Rows:
    return answer[1] if len(answer) == 3 else []


# -- parameters


class Numbers(str):
    """A list of numbers as Cypher spells it; made at once, for vectors are most of what a query says."""

    __slots__ = ()


def vector(data: bytes) -> Numbers | None:
    """A vector as knowledge holds it, to be a parameter; ``None`` where there is none."""
    if not data:
        return None
    numbers = array("f")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return Numbers("[" + ",".join(["%.9g"] * len(numbers)) % tuple(numbers) + "]")


def _text(query: str, parameters: Mapping[str, Any]) -> str:
    header = " ".join(f"{name}={literal(value)}" for name, value in parameters.items())
    return f"CYPHER {header} {query}" if header else query


def literal(value: Any) -> str:
    """``value`` as Cypher spells it; texts without control characters and lone surrogates, which it can't hold."""
    if value is None:
        return "null"
    if isinstance(value, Numbers):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.9g}" if value % 1 else f"{value:.1f}"
    if isinstance(value, str):
        return '"' + clean_text(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"`{name}`:{literal(item)}" for name, item in value.items()) + "}"
    return "[" + ",".join(map(literal, value)) + "]"


# -- errors

_MENDS_ITSELF = {
    **MENDS_ITSELF,
    "Query timed out": "stopped a query that took longer than its TIMEOUT_DEFAULT or TIMEOUT_MAX allows. Raise them",
    "Max pending queries exceeded": "has more queries waiting than MAX_QUEUED_QUERIES allows. Raise it, or add servers",
    "OOM": "is full (maxmemory). Raise maxmemory; its keys must not be evicted (noeviction)",
    "READONLY": "is a read-only replica. Point FALKORDB_HOST at the primary",
}
NO_MODULE = (
    "This Redis holds no graphs: the FalkorDB module is not loaded. Set FALKORDB_HOST to a FalkorDB, or"
    " GRAPHITI_ENABLED=false; the embedded server needs the system libraries libgomp1 and libssl3."
)
_DIFFERENT_DIMENSION = "Vector dimension mismatch"


def translate(error: Exception) -> StoreUnavailable | StoreFault | NoGraph:
    """The memory's error for a driver's. Its own text is left out: it can quote the query."""
    error = root(error)
    text = str(error)
    for sign, what in _MENDS_ITSELF.items():
        if text.startswith(sign) or any(isinstance(error, kind) for kind, code in CODES if code == sign):
            return StoreUnavailable(f"FalkorDB {what}.")
    if isinstance(error, driver.AuthenticationError):
        return StoreFault("FalkorDB refuses the credentials. Check FALKORDB_PASSWORD.")
    if isinstance(error, driver.NoPermissionError | driver.AuthorizationError):
        return StoreFault("FalkorDB does not let this user run a command. Allow it GRAPH.* on all keys.")
    if isinstance(error, driver.TimeoutError | TimeoutError):
        return _late(GRAPH_SAVE_TIMEOUT_S)
    if isinstance(error, driver.ConnectionError | OSError):
        return StoreUnavailable("FalkorDB can't be reached. Check FALKORDB_HOST and FALKORDB_PORT, and that it runs.")
    return _refused(text, error)


def _refused(text: str, error: Exception) -> StoreFault | NoGraph:
    if text.startswith("Invalid graph operation on empty key"):
        return NoGraph()
    if "already indexed" in text or "Stopwords are already set" in text:
        return AlreadyIndexed("The graph has this index.")
    if text.startswith("unknown command"):
        return NoGraphServer(NO_MODULE)
    if text.startswith("WRONGTYPE"):
        return StoreFault("A key of another kind has the name of a graph in FalkorDB. Rename or delete that key.")
    if text.startswith(_DIFFERENT_DIMENSION):
        return StoreFault("The graph's vectors are of another embedding model. Run `python -m memory reindex`.")
    return StoreFault(f"FalkorDB answered with an error that trying again won't mend ({type(error).__name__}).")
