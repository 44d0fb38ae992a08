"""The receiver of the messages of a consumer without pull requests.

Owns: the interface, and JetStream's implementation, which publishes to ``deliver_subject``. Does not own: which
messages are delivered when (loop), flow control and heartbeats (push). Another protocol passes a ``Receiver`` of its
own to the consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Deliveries, InterestWatch

__all__ = ["Receiver", "SubjectReceiver"]


class Receiver(Protocol):
    """The receiver of one consumer's messages. No call waits."""

    def watch(self, changed: Callable[[bool], None]) -> InterestWatch:
        """Call ``changed`` when messages begin or cease to be wanted;
        the watch's ``interested`` is the current state."""

    def pending_bytes(self) -> int:
        """Return the bytes that were delivered and not sent yet: delivery pauses while there are very many."""

    def deliver(self, batch: Deliveries) -> int:
        """Accept messages; their columns have their sequences, times, and how often each was delivered.

        Returns: how many were accepted, from the front; the others are delivered again later.
        """

    def control(self, reply: bytes, text: bytes) -> None:
        """Accept a heartbeat or a request of flow control, as a header block; ``reply``:
        where a request is answered."""


class SubjectReceiver:
    """The subscribers of a subject, or the members of one of its queue groups in turn."""

    __slots__ = ("_bus", "_group", "_subject")

    def __init__(self, bus: Bus, subject: bytes, group: bytes) -> None:
        self._bus, self._subject, self._group = bus, subject, group

    def watch(self, changed: Callable[[bool], None]) -> InterestWatch:
        return self._bus.watch_interest(self._subject, self._group, changed)

    def pending_bytes(self) -> int:
        return self._bus.pending_bytes(self._subject)

    def deliver(self, batch: Deliveries) -> int:
        return self._bus.deliver(self._subject, batch, queue=self._group)

    def control(self, reply: bytes, text: bytes) -> None:
        self._bus.publish(self._subject, reply, len(text), text)
