"""The error that keeps a broker from starting."""

from __future__ import annotations

__all__ = ["StartError"]


class StartError(Exception):
    """Why the broker cannot start, or cannot continue; names the cause and the remedy. The process ends with status 1."""
