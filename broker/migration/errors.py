"""What keeps a stream, or all of them, from being moved."""

from __future__ import annotations

__all__ = ["CannotMigrate", "GaveUp", "StreamFailed"]


class CannotMigrate(Exception):
    """Nothing more can be moved; ``str()`` gives the reason and what to do."""


class StreamFailed(Exception):
    """One stream was not moved, and nothing of it is left at the target; ``str()`` gives the reason."""


class GaveUp(StreamFailed):
    """One side gave the other up in the middle of a stream, having waited for too long: it may be tried again."""
