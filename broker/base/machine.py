"""The memory of the machine, or of the container that the process runs in."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

__all__ = ["memory_bytes"]


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or the lowest limit of the process's control groups and their parents, in
    bytes.

    0 if the system does not report it. ``root`` replaces / as the parent of /proc and /sys, for tests.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([physical, *_group_bounds(root)])


def _group_bounds(root: Path) -> list[int]:
    """Return the memory limits of the process's control groups (version 1 or 2), innermost first."""
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
