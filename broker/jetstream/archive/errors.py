"""The error of damaged archives."""

from __future__ import annotations

__all__ = ["ArchiveError"]


class ArchiveError(Exception):
    """Raised if the bytes are not an archive of a stream, or not a whole one. Reading it again cannot help."""
