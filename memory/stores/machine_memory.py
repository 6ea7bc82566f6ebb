"""How much memory the embedded server may fill. Above: embedded. Below: limits; nothing else, to stay small."""

from __future__ import annotations

import os
from pathlib import Path

from memory.limits import EMBEDDED_BYTES_MIN, EMBEDDED_MEMORY_SHARE

# What a container, or a slice of systemd, may use at most; its own are mounted there.
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def embedded_bytes_max(cgroups: tuple[Path, ...] = _CGROUPS) -> int:
    """``EMBEDDED_MEMORY_SHARE`` of this machine's or container's memory, at least ``EMBEDDED_BYTES_MIN``."""
    known = [size for size in (_physical(), *map(_limit, cgroups)) if size]
    return max(int(min(known, default=0) * EMBEDDED_MEMORY_SHARE), EMBEDDED_BYTES_MIN)


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0  # "max": none
