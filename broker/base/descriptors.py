"""File descriptors: how many this process may have open, and how many of them connections must leave free.

A store on a directory opens a file for each put, and a store in a bucket may open a connection. If idle clients held
all descriptors, no message could be stored and no log file or configuration could be opened. So listeners accept
nothing while the lowest free descriptor lies in the reserve:

    0                                     limit - reserve          limit - ¾ reserve          limit
    ├── clients ────────────────────────────────┤                          │                    │
    ├── monitoring ────────────────────────────────────────────────────────┤                    │
    └── the store, logs, certificates, configuration ──────────────────────────────────────────┘

The kernel always assigns the lowest free number, so a connection can never get a descriptor of the reserve, and one
``dup`` shows whether the next one would. The limit is read each time, because ``prlimit`` can change it.
"""

from __future__ import annotations

import os
import resource
from typing import Final

__all__ = ["is_free_for_connections", "open_files_max", "raise_limit", "reserved"]

_RESERVED: Final = 64
"""Enough for 32 connections to a bucket, or for 16 threads and 4 puts of a directory, and for files besides."""

_RESERVED_SHARE: Final = 4
"""The reserve is at most one in this many descriptors."""

_MONITORING_SHARE: Final = 4
"""This part of the reserve is for monitoring, so that health checks are answered while clients are not accepted."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, as Go does for each program at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS reports a hard limit that it does not grant


def open_files_max() -> int:
    """Return the number of descriptors that this process may have now."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def reserved(most: int) -> int:
    """Return the number of descriptors, of ``most``, that clients leave free."""
    return min(_RESERVED, most // _RESERVED_SHARE)


def is_free_for_connections(any_descriptor: int, *, monitoring: bool = False) -> bool:
    """Return whether the next descriptor is outside the reserve. Args: ``any_descriptor`` is an open one.

    Raises: OSError (EMFILE) if there is none at all.
    """
    most = open_files_max()
    kept = reserved(most)
    if monitoring:
        kept -= kept // _MONITORING_SHARE
    lowest_free = os.dup(any_descriptor)
    os.close(lowest_free)
    return lowest_free < most - kept
