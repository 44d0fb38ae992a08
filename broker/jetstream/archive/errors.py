"""What is wrong with an archive."""

from __future__ import annotations

__all__ = ["ArchiveError"]


class ArchiveError(Exception):
    """The bytes are not an archive of a stream, or not a whole one. Reading it again cannot help."""
