"""What processes hold on to: resident memory, open descriptors, threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

MB = 1e6
POOLED = 6  # descriptors (and threads: half as many) that the recall host's pool of SQL connections takes as it fills


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
    more = {"recall host": POOLED}
    found = {
        name: after[name].grown(before[name], rss_mb=rss_mb, handles=handles + more.get(name, 0)) for name in before
    }
    return {name: problems for name, problems in found.items() if problems}
