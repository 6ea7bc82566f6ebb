"""A conversation as ``chat`` and ``call`` hold it: a session with its models, its agent and the memory, without a room.

Opens everything in order, and closes it in reverse with a bound on each step, so that what was said is stored whatever
hangs. Above: chat, call. Below: models, assistant, memory.plugin.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from livekit.agents import AgentSession, utils

from agent.assistant import Assistant
from agent.commands.warming import warm
from agent.models import Models, build, new_session
from agent.settings import Configuration, load
from memory import datadir, wiring
from memory.errors import HostUnavailable, StoreUnavailable
from memory.limits import SHUTDOWN_FLUSH_S
from memory.models import Scope, new_id
from memory.settings import Settings
from memory.wiring import Backend

if TYPE_CHECKING:
    from livekit.agents.voice import io

    from memory.plugin import AttachedMemory

CLOSE_STEP_S = 1.0
SESSION_CLOSE_S = 2.0  # more than LAST_WORDS_S, which is part of it
NOT_STORED = "What was said last could not be stored: the store is away or full. python -m agent doctor says more."
ON_DISK = "What was said last waits on this machine's disk until its store is back. python -m agent doctor says more."

logger = logging.getLogger("agent")


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a session hears and is heard: sound for a call, text for a chat. ``listen`` gets it before it starts."""

    microphone: io.AudioInput | None = None
    speaker: io.AudioOutput | None = None
    text: io.TextOutput | None = None
    listen: Callable[[AgentSession[None]], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session that was started, and its memory. ``backend`` is ``None`` while the stores are away."""

    session: AgentSession[None]
    memory: AttachedMemory
    backend: Backend | None
    scope: Scope
    session_id: str
    warmed: asyncio.Future[None]  # done when what is remembered can be recalled at once, or won't be

    async def warm(self) -> None:
        """Wait until the memory is ready, within bounds. For those who must not start without it; calls never do."""
        await asyncio.shield(self.warmed)


def configured(arguments: argparse.Namespace) -> Configuration:
    """The settings, with the identity that was asked for.

    Raises:
        SettingsError: some are wrong.
    """
    chosen = {"org_id": arguments.org, "agent_id": arguments.agent}
    return load(**{name: value for name, value in chosen.items() if value is not None})


def check_data_dir(configuration: Configuration, *, voice: bool) -> None:
    """See that the memory and the local models can live where they are to, before anything starts there.

    Raises:
        DataDirectoryUnusable, DataTooNew: they can't; with what to do.
    """
    memory, agent = configuration.memory, configuration.agent
    if memory.enabled or (voice and agent.speaks_locally):
        datadir.check(memory.data_dir)


@contextlib.asynccontextmanager
async def stores(settings: Settings) -> AsyncIterator[Backend | None]:
    """The opened stores, so that what can't be stored is known before the conversation; ``None`` while they are away.

    A store that is away for now is told of and no reason not to talk.

    Raises:
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable: it can never be stored, as things are.
    """
    backend = None
    if not settings.enabled:
        notice("MEMORY_ENABLED is off: nothing is remembered.")
    else:
        try:
            backend = await wiring.open_backend(settings)
        except (StoreUnavailable, HostUnavailable) as error:
            notice(f"The memory is away: {error} The conversation goes on without it until it is back.")
    try:
        yield backend
    finally:
        if backend is not None:
            await bounded(backend.aclose())


@contextlib.asynccontextmanager
async def conversation(
    configuration: Configuration,
    models: Models,
    ends: Ends,
    *,
    user_id: str,
    channel: str,
    greets: bool = True,
) -> AsyncIterator[Conversation]:
    """A session, started, with the memory attached; closed and stored at the end, also when cancelled.

    ``greets``: where the settings have it greet.

    Raises:
        StoreUnavailable: at the end: not everything that was said could be stored.
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable: at the start: nothing could ever be.
    """
    from memory.plugin import attach

    settings = configuration.memory
    session_id = f"{channel}-{new_id()}"
    scope = Scope(org_id=settings.org_id, agent_id=settings.agent_id, user_id=user_id)
    async with utils.http_context.open(), stores(settings) as backend:
        session = new_session(models)
        session.input.audio, session.output.audio = ends.microphone, ends.speaker
        session.output.transcription = ends.text
        ends.listen(session)
        agent = Assistant.of(configuration, greets=greets)
        memory = attach(
            session,
            agent,
            user_id=user_id,
            org_id=settings.org_id,
            agent_id=settings.agent_id,
            session_id=session_id,
            settings=settings,
            backend=backend,
        )
        warmed = asyncio.ensure_future(warm(backend, settings, scope))
        try:
            await session.start(agent, record=False, session_host=False)
            yield Conversation(session, memory, backend, scope, session_id, warmed)
        finally:
            warmed.cancel()
            problem = await _close(session, memory, models)
        if problem:
            raise StoreUnavailable(problem)


async def _close(session: AgentSession[None], memory: AttachedMemory, models: Models) -> str | None:
    """Close them; what to tell where not everything that was said is stored."""
    task = asyncio.current_task()
    hurried = task is not None and task.cancelling() > 0
    # The session first: closing it commits what was being said, and the memory then stores that too.
    await bounded(session.aclose(), timeout_s=SESSION_CLOSE_S)
    stored = await memory.flush(CLOSE_STEP_S if hurried else SHUTDOWN_FLUSH_S)
    problem = None if stored else _where_it_is(memory)
    if hurried and problem:
        notice(problem)
    await bounded(memory.aclose())
    await bounded(models.aclose())
    return problem


def _where_it_is(memory: AttachedMemory) -> str:
    counted = memory.counters
    on_disk = counted["record.spooled"] and not counted["record.not_spooled"] and not counted["record.lost"]
    return ON_DISK if on_disk else NOT_STORED


def open_models(configuration: Configuration, *, voice: bool) -> Models:
    """The models that settings name.

    Raises:
        ModelUnavailable: a package is missing.
    """
    return build(configuration.agent, configuration.memory.data_dir, voice=voice)


async def bounded(step: Coroutine[Any, Any, Any], *, timeout_s: float = CLOSE_STEP_S) -> None:
    """One step of an orderly end: it may fail or hang without keeping the next ones from being taken."""
    task = asyncio.ensure_future(step)
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        task.cancel()
        logger.warning("A step of the end took too long and was left.")
    elif (error := task.exception()) is not None:
        logger.warning("A step of the end failed: %s.", type(error).__name__)


def notice(text: str) -> None:
    """Tell whoever runs the command, apart from the conversation: on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's own words
