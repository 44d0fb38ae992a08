"""Notifications that a stream has queued for a consumer, and their order with the consumer's own actions.

A stream with very many consumers queues a call for each, and makes some of these calls in each turn of the loop. A
consumer that acts before its turn first makes its own queued calls, so it sees all events in order.

Does not own: when the stream makes the calls (stream.shared.listeners).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["Notified", "in_order"]


class Notified:
    """A consumer with queued ``notifications``: calls that get the consumer as their argument."""

    def __init__(self) -> None:
        self.notifications: list[Callable[[Any], None]] = []

    def deliver_notifications(self) -> None:
        """Make the calls in ``notifications``, in order."""
        if self.notifications:
            notifications, self.notifications = self.notifications, []
            for notify in notifications:
                notify(self)


N = TypeVar("N", bound=Notified)
Ts = TypeVarTuple("Ts")
T = TypeVar("T")


def in_order(method: Callable[[N, *Ts], T]) -> Callable[[N, *Ts], T]:
    """Deliver the queued notifications before each call of ``method``, so that events and actions stay in order."""
    @wraps(method)
    def call(self: N, *args: *Ts) -> T:
        if self.notifications:
            self.deliver_notifications()
        return method(self, *args)
    return call
