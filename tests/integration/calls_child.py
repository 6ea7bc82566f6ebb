"""A worker's main process that notes down a call and is killed: ``python -m tests.integration.calls_child``."""

from __future__ import annotations

import asyncio
import os
import signal

from agent.calls import CallRegistry, HeldCall
from memory.settings import load_settings


async def main() -> None:
    registry = CallRegistry(load_settings())
    registry.hold_life()
    registry.start()
    registry.add(HeldCall("AJ_1", "RM_1", "AD_1"))
    async with asyncio.timeout(60):
        while not registry.noted:
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
