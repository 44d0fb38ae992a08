"""The errors that keep a broker from starting."""

from __future__ import annotations

__all__ = ["StartError", "StoreInUse"]


class StartError(Exception):
    """Why the broker cannot start, or cannot continue; names the cause and the remedy. The process ends with status 1."""


class StoreInUse(StartError):
    """Another broker owns the store, and the caller does not want to wait as its standby."""
