"""What processes hold on to: resident memory, open descriptors, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from memory.models import Scope
from memory.settings import Settings
from memory.wiring import open_backend

MB = 1e6
AT_ONCE = 32  # several times as many as either pool of a recall host has connections
PATIENCE_MS = 20_000.0  # for a busy machine


@dataclass(frozen=True, slots=True)
class Footprint:
    """One process at one moment. ``descriptors``: files, sockets, pipes. ``children``: processes under it."""

    rss_mb: float
    descriptors: int
    threads: int
    children: int

    @classmethod
    def of(cls, process: psutil.Process) -> Footprint:
        return cls(
            process.memory_info().rss / MB,
            process.num_fds(),
            process.num_threads(),
            len(process.children(recursive=True)),
        )

    def grown(self, since: Footprint, *, rss_mb: float, handles: int) -> list[str]:
        """What has grown since by more than is allowed; ``handles``: of descriptors and threads, each."""
        found = []
        if self.rss_mb - since.rss_mb > rss_mb:
            found.append(f"memory from {since.rss_mb:.1f} to {self.rss_mb:.1f} MB")
        for name, slack in (("descriptors", handles), ("threads", handles), ("children", 0)):
            before, after = getattr(since, name), getattr(self, name)
            if after - before > slack:
                found.append(f"{name} from {before} to {after}")
        return found


async def fill_pools(settings: Settings) -> None:
    """Have the recall host open every connection that it may keep: 8 to Redis, 4 to SQL (two files and a thread each).

    It opens one more whenever all are in use, so that they come one by one, over hundreds of sessions, and look like a
    leak. With all of them open before the first look, what comes after is one.
    """
    backend = await open_backend(settings)
    try:
        assert backend.retriever is not None
        nobodies = [Scope(org_id="nobody", agent_id="nobody", user_id=f"nobody-{number}") for number in range(AT_ONCE)]
        recalls = (backend.retriever.recall(each, "hello", limit=1, budget_ms=PATIENCE_MS) for each in nobodies)
        await asyncio.gather(*recalls)
    finally:
        await backend.aclose()


def told(before: Mapping[str, Footprint], after: Mapping[str, Footprint]) -> str:
    """Both, for a report: memory in MB, descriptors and threads of each process."""
    lines = []
    for name, was in before.items():
        now = after[name]
        lines.append(
            f"{name}: {was.rss_mb:.1f} -> {now.rss_mb:.1f} MB, descriptors {was.descriptors} -> {now.descriptors}, "
            f"threads {was.threads} -> {now.threads}"
        )
    return "; ".join(lines)


def grown(
    before: Mapping[str, Footprint], after: Mapping[str, Footprint], *, rss_mb: float, handles: int
) -> dict[str, list[str]]:
    """By process, what has grown by more than is allowed."""
    found = {name: after[name].grown(before[name], rss_mb=rss_mb, handles=handles) for name in before}
    return {name: problems for name, problems in found.items() if problems}
