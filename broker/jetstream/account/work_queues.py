"""The filters of the consumers of work queues: each message is for one consumer, so no two filters may overlap.

There may be thousands of consumers. A new one is compared only with consumers whose filters overlap its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.protocol.subject_tree import SubjectTree

if TYPE_CHECKING:
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream

__all__ = ["WorkQueues"]


class WorkQueues:
    """The filters of one account's work queues. A stream's filters are collected at the first call of ``rival`` for
    it."""

    def __init__(self) -> None:
        self._trees: dict[Stream, SubjectTree[str]] = {}

    def rival(self, stream: Stream, config: ConsumerConfig, consumers: Mapping[str, Consumer],
              existing: Consumer | None) -> ConsumerConfig | None:
        """Return the configuration of a consumer, other than ``existing``, whose filters overlap ``config``'s.

        None: there is no such consumer.
        """
        tree = self._trees.get(stream)
        if tree is None:
            tree = self._trees[stream] = SubjectTree()
            for consumer in consumers.values():
                _add(tree, consumer)
        for subject in _subjects(config):
            for name in tree.overlapping(subject):
                other = consumers.get(name)
                if other is not None and other is not existing:
                    return other.config
        return None

    def add(self, stream: Stream, consumer: Consumer) -> None:
        """Add the filters of a consumer's current configuration."""
        if (tree := self._trees.get(stream)) is not None:
            _add(tree, consumer)

    def remove(self, stream: Stream, consumer: Consumer) -> None:
        """Remove the filters of a consumer's current configuration,
        before the consumer or the configuration is removed."""
        if (tree := self._trees.get(stream)) is not None:
            for subject in _subjects(consumer.config):
                tree.discard(subject, consumer.name)

    def remove_stream(self, stream: Stream) -> None:
        """Forget the filters of a stream's consumers."""
        self._trees.pop(stream, None)


def _add(tree: SubjectTree[str], consumer: Consumer) -> None:
    if not consumer.config.copies:  # it takes no messages from others
        for subject in _subjects(consumer.config):
            tree.add(subject, consumer.name)


def _subjects(config: ConsumerConfig) -> list[bytes]:
    return [subject.encode() for subject in config.filters] or [b">"]
