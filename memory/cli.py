"""``python -m memory``: the recall host, and how well recall does on one's own data.

Above: nothing. Below: wiring, retrieval. Each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from memory.errors import EmbedderUnavailable, VoiceMemoryError
from memory.limits import ONE_THREAD
from memory.settings import Settings, load_settings

if TYPE_CHECKING:
    from memory.hosting import HostRole
    from memory.ports import Embedder

logger = logging.getLogger(__name__)

# Indexing and the embedder's threads must not keep the event loop waiting: Python's own 5 ms are a recall's whole time.
_SWITCH_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit code. Faults of input or installation are told in one line."""
    for name, threads in ONE_THREAD.items():  # before anything imports numpy
        os.environ.setdefault(name, threads)
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("memory").setLevel(arguments.log_level)
    try:
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # who started us so meant it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(arguments.run(arguments))
    except VoiceMemoryError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m memory", description="The memory of voice and text agents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    host = commands.add_parser("host", help="serve recall for this data directory until nobody uses it")
    host.set_defaults(run=_run_host, log_level=logging.INFO)
    evaluate = commands.add_parser("eval", help="measure recall on your own turns and questions")
    from memory.retrieval.evaluate import add_arguments

    add_arguments(evaluate)
    evaluate.set_defaults(run=_run_eval, log_level=logging.WARNING)
    extraction = commands.add_parser("eval-extraction", help="measure what your LLM makes of labelled dialogues")
    from memory.extraction_eval import add_arguments as add_extraction_arguments

    add_extraction_arguments(extraction)
    extraction.set_defaults(run=_run_eval_extraction, log_level=logging.WARNING)
    from memory.ingestion import importing

    brought = commands.add_parser("import", help="bring in existing conversations from a file of JSON lines")
    importing.add_arguments(brought)
    brought.set_defaults(run=_run_import, log_level=logging.WARNING)
    _add_upkeep(commands)
    return parser


def _add_upkeep(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from memory import wiring_upkeep as upkeep

    chunks = commands.add_parser("ingestion", help="list, retry or drop the chunks of turns that facts are learnt from")
    upkeep.add_ingestion(chunks)
    rebuild = commands.add_parser("rebuild", help="restore knowledge graphs from the archive, without an LLM")
    upkeep.add_rebuild(rebuild)
    reindex = commands.add_parser(
        "reindex", help="make the vectors of facts anew after a change of the embedding model"
    )
    upkeep.add_users(reindex, required=False)
    runs = {chunks: upkeep.run_ingestion, rebuild: upkeep.run_rebuild, reindex: upkeep.run_reindex}
    for each, run in runs.items():
        each.set_defaults(
            run=lambda arguments, run=run: asyncio.run(run(arguments, load_settings())), log_level=logging.WARNING
        )


def _run_eval(arguments: argparse.Namespace) -> int:
    from memory.retrieval.evaluate import run
    from memory.wiring import open_embedder

    return asyncio.run(run(arguments, open_embedder(load_settings())))


def _run_import(arguments: argparse.Namespace) -> int:
    from memory.wiring_import import run_import

    return asyncio.run(run_import(arguments, load_settings()))


def _run_eval_extraction(arguments: argparse.Namespace) -> int:
    from memory.errors import ProviderRefused
    from memory.extraction_eval import run
    from memory.providers.language import OpenAiLanguageModel, cost_usd

    settings = load_settings()
    key = settings.openai_api_key
    if key is None and settings.openai_base_url is None:
        raise ProviderRefused("There is no LLM: set OPENAI_API_KEY, or OPENAI_BASE_URL to a server with OpenAI's API.")
    llm = OpenAiLanguageModel(
        settings.graphiti_llm_model,
        api_key=key.get_secret_value() if key else None,
        base_url=settings.openai_base_url,
    )
    return asyncio.run(run(arguments, llm, cost_usd))


def _run_host(arguments: argparse.Namespace) -> int:
    sys.setswitchinterval(_SWITCH_S)
    return asyncio.run(host(load_settings()))


async def host(settings: Settings) -> int:
    """Be the data directory's recall host; 0 at once where another process is.

    Raises:
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable, StoreUnavailable: with what to do.
    """
    from memory.datadir import prepare
    from memory.hosting import HostRole
    from memory.wiring import recall_host

    await asyncio.to_thread(prepare, settings.data_dir)
    role = HostRole(recall_host(settings), idle_s=settings.host_idle_seconds)
    if not role.try_take():
        logger.info("Another process is the recall host of this data directory.")
        return 0
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await _serve(settings, role, stop)
    finally:
        role.release()
    return 0


async def _serve(settings: Settings, role: HostRole, stop: asyncio.Event) -> None:
    from memory.clock import SystemClock
    from memory.ingestion.archiver import Archiver
    from memory.replay import Replayer
    from memory.retrieval.engine import RecallEngine
    from memory.retrieval.host import RecallHost
    from memory.retrieval.snapshot_files import SnapshotStore, snapshot_directory
    from memory.scheduling import Precedence
    from memory.wiring import open_late_archive, open_sessions, open_spool

    clock = SystemClock()
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        log = await open_sessions(settings, closers)
        archive = await open_late_archive(settings, closers, clock)
        embedder = _embedder(settings)
        snapshots = SnapshotStore(snapshot_directory(settings.data_dir), origin=_origin(settings))
        engine = RecallEngine(
            log=log,
            archive=archive,
            embedder=embedder,
            embedder_ready=False,
            clock=clock,
            snapshots=snapshots,
            facts=archive if settings.graphiti_enabled else None,
        )
        consumer = Archiver(log, archive, clock, engine.counters, busy=engine.busy, before_trim=engine.read_on)
        replayer = Replayer(open_spool(settings), log, clock, engine.counters)
        host = RecallHost(
            role,
            engine,
            embedder=embedder,
            consumer=consumer,
            replayer=replayer,
            archive_problem=archive.problem,
            precedence=Precedence(settings.host_nice),
        )
        await host.run(stop)
    finally:
        while closers:
            await closers.pop()()


def _embedder(settings: Settings) -> Embedder | None:
    """The embedder, if it can be loaded here; recall goes on with keywords where it can't."""
    from memory.wiring import open_embedder

    try:
        return open_embedder(settings)
    except EmbedderUnavailable as error:
        logger.warning("Recall goes on with keywords alone: %s", error)
        return None


def _origin(settings: Settings) -> str:
    """A name for the stores that the settings name; users and passwords in their URLs don't go into it."""
    from memory.wiring import database_url, redis_url

    urls = [urlsplit(url) for url in (redis_url(settings) or "embedded:", database_url(settings))]
    places = [(url.scheme, url.netloc.rpartition("@")[2], url.path) for url in urls]
    return hashlib.sha256(repr(places).encode()).hexdigest()[:16]
