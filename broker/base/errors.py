"""The errors that keep a broker from starting."""

from __future__ import annotations

__all__ = ["StartError", "StoreInUse"]


class StartError(Exception):
    """The broker cannot start or continue. The text has cause and remedy; the process ends with status 1."""


class StoreInUse(StartError):
    """Another broker owns the store, and the caller does not want to wait as its standby."""
