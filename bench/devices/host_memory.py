"""How much memory of the host a process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Where a container's limit and use are told, by version 2 of control groups and by version 1."""


def available_bytes(cgroups: tuple[tuple[str, str], ...] = CGROUPS) -> int:
    """Return what can be taken without swapping: of the machine, or of the container if that is less.

    A container's use counts its file cache too, which could be dropped, so this is rather too little than too much.
    """
    free = int(psutil.virtual_memory().available)
    for limit, used in cgroups:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # not told here, or "max", which is no limit
            continue
        free = min(free, max(left, 0))
    return free
