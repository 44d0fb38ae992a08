"""What ends a broker before it began."""

from __future__ import annotations

__all__ = ["StartError"]


class StartError(Exception):
    """Why the broker cannot start, or cannot go on; names the thing and the remedy. The process ends with status 1."""
