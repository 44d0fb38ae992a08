"""The errors that prevent moving a stream, or all streams."""

from __future__ import annotations

__all__ = ["CannotMigrate", "GaveUp", "StreamFailed"]


class CannotMigrate(Exception):
    """Nothing more can be moved; ``str()`` gives the reason and the remedy."""


class StreamFailed(Exception):
    """A stream was not moved, and nothing of it is left at the target; ``str()`` gives the reason."""


class GaveUp(StreamFailed):
    """The source or the target waited too long, and ended the transfer of a stream: a retry may help."""
