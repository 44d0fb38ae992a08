"""A watch on the interest in a subject: the router updates it, and it notifies its callback.

Source: nats-server, server/sublist.go (RegisterNotification).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["InterestWatch"]


class InterestWatch:
    """A watch on a subject. ``interested`` is always current; ``changed`` is called on a later turn of the loop."""

    __slots__ = ("_cancelled", "_notified", "_scheduled", "_unwatch", "changed", "interested", "queue", "subject")

    def __init__(self, subject: bytes, queue: bytes, changed: Callable[[bool], None], interested: bool,
                 unwatch: Callable[[InterestWatch], None]) -> None:
        self._unwatch = unwatch
        self._cancelled = False
        self._scheduled = False
        self._notified = interested
        self.subject = subject
        self.queue = queue
        self.changed = changed
        self.interested = interested

    def cancel(self) -> None:
        self._cancelled = True
        self._unwatch(self)

    def update(self, interested: bool, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Record a change of interest; ``call_soon`` runs the notification on a later turn of the loop."""
        self.interested = interested
        # Never notify within a delivery or another handler: the watcher itself may be delivering.
        if not self._scheduled:
            self._scheduled = True
            call_soon(self._notify)

    def _notify(self) -> None:
        self._scheduled = False
        if not self._cancelled and self._notified != self.interested:
            self._notified = self.interested
            self.changed(self.interested)
