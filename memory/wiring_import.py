"""``python -m memory import``: the stores that the settings name, and the importer between file and log.

Above: cli. Below: wiring, wiring_ingestion, ingestion.importing, stores.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from memory.clock import SystemClock
from memory.datadir import prepare
from memory.ingestion import importing
from memory.ingestion.archiver import Archiver
from memory.ingestion.import_lines import Target
from memory.privacy.intake import Intake
from memory.privacy.redaction import CardRedactor
from memory.settings import Settings
from memory.wiring import open_archive, open_sessions, redis_place


async def run_import(arguments: argparse.Namespace, settings: Settings) -> int:
    """See ``ingestion.importing``.

    Raises:
        ImportFailed, StoreUnavailable, StoreFault, DataDirectoryUnusable: with what to do.
    """
    await asyncio.to_thread(prepare, settings.data_dir)
    closers: list[Callable[[], Awaitable[None]]] = []
    clock = SystemClock()
    try:
        sessions, archive = await open_sessions(settings, closers), await open_archive(settings, closers)
        log = await _open_log(settings, closers)
        org, agent = arguments.org or settings.org_id, arguments.agent or settings.agent_id
        importer = importing.Importer(
            log,
            Archiver(sessions, archive, clock).drain,
            Intake(CardRedactor(), clock),
            Target(org, agent, arguments.user, arguments.mode),
            settings.data_dir / "imports",
        )
        return await importing.run(arguments, importer)
    finally:
        while closers:
            await closers.pop()()


async def _open_log(settings: Settings, closers: list[Callable[[], Awaitable[None]]]) -> importing.ImportLog:
    from memory.stores.log_import import RedisLogImport

    url, on_lost = await redis_place(settings, closers)
    log = await RedisLogImport.connect(url, on_lost=on_lost)
    closers.append(log.aclose)
    return log
