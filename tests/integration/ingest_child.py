"""An ingestion worker whose tasks are others' a second after its death: ``-m tests.integration.ingest_child``."""

from __future__ import annotations

import asyncio
import logging

from memory.settings import load_settings
from memory.wiring_ingestion import open_ingestion


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    ingestion = await open_ingestion(load_settings(), redelivery_s=1.0)
    print("working", flush=True)  # noqa: T201 - it is the answer
    await ingestion.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
