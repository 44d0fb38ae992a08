"""When a log asks its schedule again: soon, once lazy news has waited long enough, or at a time that the schedule named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["CommitTimers"]


class CommitTimers:
    """At most one of each is set. ``due`` is called when one fires; ``lazy_due`` before it, for lazy news.

    Attributes: ``soon``: set while ``due`` is called in this turn of the loop or the next.
    """

    __slots__ = ("_at", "_due", "_lazy", "_lazy_due", "_lazy_seconds", "_loop", "_stopped", "soon")

    def __init__(self, due: Callable[[], object], lazy_due: Callable[[], object], lazy_ns: int) -> None:
        self._due = due
        self._lazy_due = lazy_due
        self._lazy_seconds = lazy_ns / 1e9
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.soon: asyncio.Handle | None = None
        self._lazy: asyncio.TimerHandle | None = None
        self._at: asyncio.TimerHandle | None = None

    def set_soon(self) -> None:
        """Once the current callback, and others that are ready, have run."""
        if self.soon is None and not self._stopped:
            self.soon = self._loop.call_soon(self._due)

    def set_lazy(self) -> None:
        """For lazy news, unless it is set."""
        if self._lazy is None and not self._stopped:
            self._lazy = self._loop.call_later(self._lazy_seconds, self._lazy_fires)

    def set_in(self, delay_ns: int) -> None:
        """In ``delay_ns``, in place of an earlier call of this."""
        if self._at is not None:
            self._at.cancel()
        self._at = self._loop.call_later(max(0, delay_ns) / 1e9, self._at_fires)

    def clear_soon(self) -> None:
        if self.soon is not None:
            self.soon.cancel()
            self.soon = None

    def clear_lazy(self) -> None:
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None

    def stop(self) -> None:
        """None fires from now on."""
        self._stopped = True
        self.clear_soon()
        self.clear_lazy()
        if self._at is not None:
            self._at.cancel()

    def _lazy_fires(self) -> None:
        self._lazy = None
        self._lazy_due()
        self._due()

    def _at_fires(self) -> None:
        self._at = None
        self._due()
