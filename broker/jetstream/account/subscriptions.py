"""The bus subscriptions of an account's streams and consumers.

    stream      the subjects of its configuration
    consumer    its acks, in both forms; pull requests arrive at the API, which calls ``pulled_from``

Also which streams have subjects in common with another's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.stream.overlaps import Overlaps
from broker.jetstream.stream.stream import Stream
from broker.protocol.subject_tree import SubjectTree

if TYPE_CHECKING:
    from broker.jetstream.bus import BatchHandler, Bus, Subscription

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of one account; ``overlaps``: streams may have subjects in common."""

    def __init__(self, bus: Bus, overlaps: Overlaps | None) -> None:
        self._bus = bus
        self._overlaps = overlaps
        self._subjects: dict[Stream, dict[str, Subscription]] = {}
        self._tree: SubjectTree[Stream] = SubjectTree()
        self._acks: dict[Consumer, list[Subscription]] = {}
        self._pulled: dict[bytes, Consumer] = {}

    def subscribe(self, stream: Stream) -> None:
        """Subscribe to exactly the subjects in the stream's configuration."""
        subscriptions, wanted = self._subjects.setdefault(stream, {}), set(stream.config.subjects)
        for subject in [subject for subject in subscriptions if subject not in wanted]:
            self._bus.unsubscribe(subscriptions.pop(subject))
            self._tree.discard(subject.encode(), stream)
        handler: BatchHandler = stream.publish
        if self._overlaps is not None:
            self._overlaps.changed(stream)
            handler = self._overlaps.handler(stream)
        for subject in stream.config.subjects:
            if subject not in subscriptions:
                subscriptions[subject] = self._bus.subscribe(subject.encode(), handler, stream=stream.name)
                self._tree.add(subject.encode(), stream)

    def unsubscribe(self, stream: Stream) -> None:
        """Stop routing publishes to the stream."""
        for subject, subscription in self._subjects.pop(stream, {}).items():
            self._bus.unsubscribe(subscription)
            self._tree.discard(subject.encode(), stream)
        if self._overlaps is not None:
            self._overlaps.removed(stream)

    def overlap(self, subjects: Iterable[bytes], stream: Stream | None) -> bool:
        """Whether a stream other than ``stream`` has a subject that overlaps one of these."""
        return any(other is not stream for subject in subjects for other in self._tree.overlapping(subject))

    def subscribe_acks(self, consumer: Consumer) -> None:
        """Route clients' messages to the consumer: acks in both forms, and pull requests."""
        names = _names(consumer)
        self._pulled[names] = consumer
        if consumer.config.ack_policy in ("all", "explicit"):
            self._acks[consumer] = [
                self._bus.subscribe(prefix + b">", consumer.on_ack) for prefix in consumer.reply_subjects.acks]

    def unsubscribe_acks(self, consumer: Consumer) -> None:
        """Undo ``subscribe_acks``."""
        self._pulled.pop(_names(consumer), None)
        for subscription in self._acks.pop(consumer, ()):
            self._bus.unsubscribe(subscription)

    def pulled_from(self, names: bytes) -> Consumer | None:
        """The consumer that ``<stream>.<consumer>`` names in a pull request's subject."""
        return self._pulled.get(names)


def _names(consumer: Consumer) -> bytes:
    return f"{consumer.stream.name}.{consumer.name}".encode()
