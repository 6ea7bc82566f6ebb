"""One bounded way to a Redis: few connections, a deadline on each call, one recovery, and errors that say what to do.

Above: redis. Below: the redis driver, errors, limits. Belongs to the event loop it was opened in.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import redis.exceptions as driver
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from memory.errors import SettingsError, StoreFault, StoreUnavailable, VoiceMemoryError
from memory.limits import STORE_TIMEOUT_S

_CONNECTIONS = 8
_CONNECT_TIMEOUT_S = 1.0

_T = TypeVar("_T")
Command = Sequence[str | int | bytes]
Recovery = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, named by its digest once the server has it."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ScriptCall = tuple[Script, Sequence[str], Command]  # what, on which keys, with which arguments


class RedisLink:
    """Commands and scripts on one Redis.

    Each call takes ``2 * STORE_TIMEOUT_S`` at most. When the connection is lost, ``on_lost`` is awaited once and the
    call is made once more; whatever is called here must bear being applied twice. A call that is cancelled closes its
    connection, so that its answer is never taken for another's.
    """

    def __init__(self, pool: ConnectionPool, on_lost: Recovery | None) -> None:
        self._client = Redis(connection_pool=pool)
        self._pool = pool
        self._on_lost = on_lost
        # The driver's own blocking pool can lose a wake-up when a waiter is cancelled.
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    @classmethod
    async def open(cls, url: str, *, on_lost: Recovery | None = None) -> Self:
        """Connect, and see that the server answers.

        Raises:
            SettingsError: ``url`` is no Redis URL.
            StoreUnavailable, StoreFault: see ``translate``.
        """
        try:
            pool: ConnectionPool = ConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                # None: ``_attempt`` has the deadline. For one of its own the driver makes a task of each write, by
                # asyncio.wait_for, which until Python 3.12 can lose a cancellation.
                socket_timeout=None,
                socket_connect_timeout=_CONNECT_TIMEOUT_S,
                # Once at once: for a connection that the server has closed since its last use. No health checks:
                # they find no more than that, and recurse without end where the server wants a password.
                retry=Retry(NoBackoff(), 1, (driver.ConnectionError,)),
                protocol=2,
                decode_responses=True,
                encoding_errors="backslashreplace",
            )
        except ValueError:
            fix = "must be a Redis URL: redis://host:port/0, rediss://… or unix:///path"
            raise SettingsError([f"REDIS_URL: {fix}"]) from None
        link = cls(pool, on_lost)
        try:
            await link.commands([("PING",)])
        except BaseException:
            await link.aclose()
            raise
        return link

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self._client.aclose()
        await self._pool.disconnect()

    async def script(self, script: Script, keys: Sequence[str], arguments: Command) -> Any:
        """Run one script; returns its answer."""
        return (await self.scripts((script, keys, arguments)))[0]

    async def scripts(self, *calls: ScriptCall) -> list[Any]:
        """Run scripts in one round trip, one after the other; returns their answers."""
        commands = [("EVALSHA", script.digest, len(keys), *keys, *arguments) for script, keys, arguments in calls]

        async def evaluate(client: Redis) -> list[Any]:
            try:
                return await _pipelined(client, commands)
            except driver.NoScriptError:
                for script, _, _ in calls:
                    await _execute(client, "SCRIPT LOAD", script.text)
                return await _pipelined(client, commands)

        return await self.run(evaluate)

    async def commands(self, commands: Sequence[Command]) -> list[Any]:
        """Run ``commands`` in one round trip; returns their answers."""
        return await self.run(lambda client: _pipelined(client, commands))

    async def run(self, call: Callable[[Redis], Awaitable[_T]]) -> _T:
        """Make a call on the driver's client, within the deadline and with one recovery.

        Raises:
            StoreUnavailable, StoreFault: see ``translate``.
        """
        try:
            async with asyncio.timeout(2 * STORE_TIMEOUT_S):
                try:
                    return await self._attempt(call)
                except (driver.ConnectionError, OSError) as error:
                    if isinstance(root(error), driver.AuthenticationError | TimeoutError):
                        raise
                    if self._on_lost is not None:
                        await self._on_lost()
                    return await self._attempt(call)
        except (driver.RedisError, OSError) as error:
            raise translate(error) from None
        except VoiceMemoryError as error:  # from on_lost
            raise StoreUnavailable(str(error)) from None

    async def _attempt(self, call: Callable[[Redis], Awaitable[_T]]) -> _T:
        async with asyncio.timeout(STORE_TIMEOUT_S), self._slots:
            return await call(self._client)


async def _execute(client: Redis, *command: str | int | bytes) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def _pipelined(client: Redis, commands: Sequence[Command]) -> list[Any]:
    if len(commands) == 1:
        return [await _execute(client, *commands[0])]
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        # Its own way of raising writes the command's arguments into the error.
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


MENDS_ITSELF = {
    "OOM": "is full (maxmemory). Raise maxmemory; keys of the memory must not be evicted (noeviction)",
    "READONLY": "is a read-only replica. Point REDIS_URL at the primary",
    "MISCONF": "can't write to its disk. Free space there",
    "NOREPLICAS": "has too few replicas to accept writes",
    "BUSY": "is busy with another client's script",
    "LOADING": "is loading its data",
    "MASTERDOWN": "has lost its primary",
    "CLUSTERDOWN": "is a cluster that is down",
    "TRYAGAIN": "is moving data",
}
CODES: tuple[tuple[type[driver.RedisError], str], ...] = (
    (driver.OutOfMemoryError, "OOM"),
    (driver.ReadOnlyError, "READONLY"),
    (driver.BusyLoadingError, "LOADING"),
    (driver.MasterDownError, "MASTERDOWN"),
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.TryAgainError, "TRYAGAIN"),
)
_TRUST = (
    "Name its authority by ?ssl_ca_certs=/path/to/ca.pem in REDIS_URL, or by SSL_CERT_FILE; the host in REDIS_URL must"
    " be a name in the certificate."
)
_IN_SCRIPT = re.compile(r"-([A-Z]+) ")  # Redis 6 quotes what failed inside a script


def translate(error: Exception) -> StoreUnavailable | StoreFault:
    """The memory's error for a driver's: StoreUnavailable if the same call may succeed later, else StoreFault.

    The driver's own text is left out: it can quote keys and arguments.
    """
    error = root(error)
    code = _code(error)
    if code in MENDS_ITSELF:
        return StoreUnavailable(f"Redis {MENDS_ITSELF[code]}.")
    if isinstance(error, driver.AuthenticationError):
        return StoreFault("Redis refuses the credentials. Check REDIS_URL, or REDIS_PASSWORD.")
    if isinstance(error, driver.NoPermissionError | driver.AuthorizationError):
        return StoreFault("Redis does not let this user run a command. Allow it scripts and the keys vm:*.")
    if isinstance(error, driver.MovedError | driver.AskError):
        return StoreFault(
            "Redis is a cluster of several nodes. Set REDIS_URL to a proxy before it, or to one of no cluster."
        )
    if _distrusts(error):
        return StoreUnavailable(f"Redis shows a certificate that is not trusted. {_TRUST}")
    if isinstance(error, driver.TimeoutError | TimeoutError):
        return StoreUnavailable(f"Redis did not answer within {STORE_TIMEOUT_S:g} s.")
    if isinstance(error, driver.ConnectionError | OSError):
        return StoreUnavailable("Redis can't be reached. Check REDIS_URL (or REDIS_HOST), and that it runs.")
    return StoreFault(f"Redis answered with an error that trying again won't mend ({code or type(error).__name__}).")


def root(error: Exception) -> Exception:
    """What is behind a driver's error."""
    # What the server refuses while a connection is being made, the driver calls a ConnectionError.
    cause = error.__cause__
    return cause if type(error) is driver.ConnectionError and isinstance(cause, driver.RedisError) else error


def _distrusts(error: BaseException | None) -> bool:
    # The driver's retries wrap it once more each.
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__context__
    return error is not None


def _code(error: Exception) -> str:
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    text = str(error)
    word = text.split(" ", 1)[0]
    if word.isascii() and word.isalpha() and word.isupper():
        return word
    inside = _IN_SCRIPT.search(text)
    return inside[1] if inside else ""
