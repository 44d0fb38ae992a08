"""The bus subscriptions of an account's streams and consumers, and the subjects that its streams claim.

    stream      the subjects of its configuration
    consumer    its acks, in both forms; pull requests arrive at the API, which calls ``pulled_from``

A stream claims its subjects before it exists, and gives them back once it is deleted. The account lets one stream claim
at a time, so of two streams with a subject in common the first is created and the second is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from broker.jetstream.account.long_work import LONG, Steps, at_once
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject_tree import SubjectTree

if TYPE_CHECKING:
    from broker.jetstream.bus import BatchHandler, Bus, Subscription
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.overlaps import Overlaps
    from broker.jetstream.stream.stream import Stream

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of one account. If ``overlaps`` is given, streams may have subjects in common."""

    def __init__(self, bus: Bus, overlaps: Overlaps | None) -> None:
        self._bus = bus
        self._overlaps = overlaps
        self._subjects: dict[Stream, dict[str, Subscription]] = {}
        self._claims: SubjectTree[str] = SubjectTree()
        """The subjects of all streams, by the streams' names."""
        self._acks: dict[Consumer, list[Subscription]] = {}
        self._pulled: dict[bytes, Consumer] = {}
        self._api: dict[Stream, list[Subscription]] = {}

    # --- subjects -----------------------------------------------------------------------------------------------------

    def claim(self, name: str, subjects: Sequence[bytes]) -> Steps:
        """Claim the subjects for the stream ``name``. Raises: ApiError 10065 if one overlaps another stream's.

        If that happens, or if the steps are not completed, none of them is claimed.
        """
        claimed, compared = 0, 0
        try:
            for subject in subjects:
                if self._overlaps is None:
                    for owner in self._claims.overlapping(subject):
                        compared += 1
                        if owner != name:
                            raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)
                self._claims.add(subject, name)
                claimed += 1
                compared += 1
                if compared >= LONG:
                    compared = 0
                    yield
        except ApiError:
            yield from self.give_back(name, subjects[:claimed])
            raise
        except GeneratorExit:
            at_once(self.give_back(name, subjects[:claimed]))
            raise

    def claim_anyway(self, name: str, subjects: Iterable[bytes]) -> None:
        """Claim the subjects of a restored stream, even if they overlap another stream's."""
        for subject in subjects:
            self._claims.add(subject, name)

    def give_back(self, name: str, subjects: Sequence[bytes]) -> Steps:
        """Undo ``claim``. The rest is done at once if the generator is closed."""
        left = iter(subjects)
        try:
            while some := list(islice(left, LONG)):
                for subject in some:
                    self._claims.discard(subject, name)
                yield
        finally:
            for subject in left:
                self._claims.discard(subject, name)

    def claims_one_of(self, name: str, subjects: Iterable[bytes]) -> bool:
        """Return whether the stream ``name`` has claimed a subject that overlaps one of these."""
        return any(owner == name for subject in subjects for owner in self._claims.overlapping(subject))

    def overlap(self, subjects: Iterable[bytes]) -> bool:
        """Return whether some stream has claimed a subject that overlaps one of these."""
        return any(True for subject in subjects for _ in self._claims.overlapping(subject))

    def subscribe(self, stream: Stream) -> Steps:
        """Subscribe to the claimed subjects in the stream's configuration, and unsubscribe from all others.

        The steps end early if the stream is unsubscribed between them.
        """
        subscriptions, wanted = self._subjects.setdefault(stream, {}), set(stream.config.subjects)
        handler: BatchHandler = stream.publish
        if self._overlaps is not None:
            self._overlaps.changed(stream)
            handler = self._overlaps.handler(stream)
        gone = [subject for subject in subscriptions if subject not in wanted]
        for at, subject in enumerate((*gone, *stream.config.subjects), 1):
            if subject not in subscriptions:
                subscriptions[subject] = self._bus.subscribe(subject.encode(), handler, stream=stream.name)
            elif subject not in wanted:
                self._bus.unsubscribe(subscriptions.pop(subject))
            if at % LONG == 0:
                yield
                if self._subjects.get(stream) is not subscriptions:
                    return

    def claim_only(self, streams: Iterable[Stream]) -> None:
        """Let the subjects of these streams be all that is claimed."""
        self._claims = SubjectTree()
        for stream in streams:
            self.claim_anyway(stream.name, stream.config.subjects_bytes)

    def release(self) -> None:
        """Stop routing publishes to all streams, and drop their claims."""
        for stream in list(self._subjects):
            at_once(self.unsubscribe(stream))
        for stream in list(self._api):
            self.unsubscribe_api(stream)
        self._claims = SubjectTree()

    def unsubscribe(self, stream: Stream) -> Steps:
        """Stop routing publishes to the stream. Its claims stay."""
        if self._overlaps is not None:
            self._overlaps.removed(stream)
        subscriptions = self._subjects.pop(stream, {})
        try:
            while subscriptions:
                for _ in range(min(LONG, len(subscriptions))):
                    self._bus.unsubscribe(subscriptions.popitem()[1])
                yield
        finally:
            for subscription in subscriptions.values():
                self._bus.unsubscribe(subscription)

    # --- the API of a broker that owns some of the shards -------------------------------------------------------------

    def subscribe_api(self, stream: Stream, subscribe: Callable[[str], list[Subscription]]) -> None:
        """Route the API requests about a stream to this broker: ``subscribe(name)`` subscribes to them."""
        self._api[stream] = subscribe(stream.name)

    def unsubscribe_api(self, stream: Stream) -> None:
        """Undo ``subscribe_api``."""
        for subscription in self._api.pop(stream, ()):
            self._bus.unsubscribe(subscription)

    # --- acks and pull requests ---------------------------------------------------------------------------------------

    def subscribe_acks(self, consumer: Consumer) -> None:
        """Route clients' acks, in both forms, and pull requests to the consumer."""
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
        """Return the consumer that ``<stream>.<consumer>`` names in a pull request's subject."""
        return self._pulled.get(names)


def _names(consumer: Consumer) -> bytes:
    return f"{consumer.stream.name}.{consumer.name}".encode()
