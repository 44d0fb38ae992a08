"""The timers after which a log consults its schedule again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["CommitTimers"]


class CommitTimers:
    """Four timers: the next turn of the loop, the delay of lazy changes, the delay until a segment with commits in the
    journal is closed, and the instant that the schedule returned.

    Each of them is pending at most once. ``due`` is called when one of them fires. When one of the delays is over,
    ``lazy_due`` is called before ``due``.

    Attributes: ``soon`` is set if ``due`` is to be called in this turn of the loop or the next.
    """

    __slots__ = ("_at", "_close", "_due", "_lazy", "_lazy_due", "_lazy_seconds", "_loop", "_stopped", "soon")

    def __init__(self, due: Callable[[], object], lazy_due: Callable[[], object], lazy_ns: int) -> None:
        self._due = due
        self._lazy_due = lazy_due
        self._lazy_seconds = lazy_ns / 1e9
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.soon: asyncio.Handle | None = None
        self._lazy: asyncio.TimerHandle | None = None
        self._at: asyncio.TimerHandle | None = None
        self._close: asyncio.TimerHandle | None = None

    def set_soon(self) -> None:
        """Call ``due`` once the current callback, and others that are ready, have run."""
        if self.soon is None and not self._stopped:
            self.soon = self._loop.call_soon(self._due)

    def set_lazy(self) -> None:
        """Start the delay of lazy changes, unless it is running."""
        if self._lazy is None and not self._stopped:
            self._lazy = self._loop.call_later(self._lazy_seconds, self._lazy_fires)

    def set_in(self, delay_ns: int) -> None:
        """Call ``due`` in ``delay_ns``. This replaces an earlier ``set_in``."""
        if self._at is not None:
            self._at.cancel()
        self._at = self._loop.call_later(max(0, delay_ns) / 1e9, self._at_fires)

    def set_close(self, delay_ns: int) -> None:
        """Start the delay until the open segment is closed, unless it is running."""
        if self._close is None and not self._stopped:
            self._close = self._loop.call_later(delay_ns / 1e9, self._close_fires)

    def clear_close(self) -> None:
        if self._close is not None:
            self._close.cancel()
            self._close = None

    def clear_soon(self) -> None:
        if self.soon is not None:
            self.soon.cancel()
            self.soon = None

    def clear_lazy(self) -> None:
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None

    def stop(self) -> None:
        """Cancel all timers and set none from now on."""
        self._stopped = True
        self.clear_soon()
        self.clear_lazy()
        self.clear_close()
        if self._at is not None:
            self._at.cancel()

    def _lazy_fires(self) -> None:
        self._lazy = None
        self._lazy_due()
        self._due()

    def _close_fires(self) -> None:
        self._close = None
        self._lazy_due()
        self._due()

    def _at_fires(self) -> None:
        self._at = None
        self._due()
