"""The memory of the machine, or of the container that the process runs in."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

__all__ = ["memory_bytes"]


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory available to this process: the machine's, or the lowest limit of its control groups and their parents.

    0 if the system does not say. ``root``: another root for /proc and /sys, for tests.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([physical, *_group_bounds(root)])


def _group_bounds(root: Path) -> list[int]:
    """The limits of the process's control groups, innermost first; version 2, or the memory controller of version 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    bounds = []
    for line in groups:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for group in (inner, *inner.parents):
            try:
                bounds.append(int((mount / group / name).read_text()))
            except (OSError, ValueError):  # not visible in this container; "max"
                continue
    return bounds
