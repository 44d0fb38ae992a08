"""Notifies a stream's consumers of its events, and collects what they have to store.

Owns: which consumer is notified of what; one consumer's failure stops neither the others nor the stream. Does not own:
which consumers exist (account), what leaves the stream (retention), when a block is sealed (log).

Source: nats-server, server/stream.go, purgeLocked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from broker.jetstream.filters import Filters
from broker.protocol.subject import subset
from broker.storage.format.records.consumer_state import ConsumerDelta

__all__ = ["Listener", "Listeners"]

_log = logging.getLogger(__name__)


class Changed(Protocol):
    """A consumer that has something to store."""

    @property
    def name(self) -> str: ...

    def take_delta(self) -> ConsumerDelta | None:
        """The record of what changed, or None."""


class Listener(Changed, Protocol):
    """A consumer, as its stream sees it."""

    @property
    def filters(self) -> Sequence[str]:
        """The subjects it receives; empty: all."""

    def waits_for(self, seqs: Sequence[int]) -> Sequence[int]:
        """Those of ``seqs``, ascending, that it has not yet received or had acked, whatever their subjects."""

    def waits_from(self, seq: int) -> bool:
        """Whether it has yet to receive everything from ``seq`` on, whatever the subjects."""

    def wake(self) -> None:
        """``persisted_seq`` moved."""

    def removed(self, first_seq: int, last_seq: int, msgs: int, subject: bytes | None = None, *,
                purged: bool = False) -> None:
        """``msgs`` messages within first..last left the stream, all of ``subject`` when it is given."""

    def purged(self, next_seq: int) -> None:
        """Everything it could receive below ``next_seq`` was purged."""

    def doubt(self) -> None:
        """One of the calls above failed: recount the pending messages."""


class Listeners:
    """The listeners of one stream.

    Args: ``by_name`` is the owner's mapping: the owner adds and removes consumers, this class only reads it.
    """

    def __init__(self, stream: str, by_name: Mapping[str, Listener]) -> None:
        self.by_name = by_name
        self.followers: dict[Callable[[], None], None] = {}
        """Streams that copy from this one, in order: notified when ``persisted_seq`` moves."""
        self._stream = stream
        self._dirty: dict[str, Changed] = {}

    def dirty(self, listener: Changed) -> None:
        """The listener's state changed: ``take_deltas`` collects it."""
        self._dirty[listener.name] = listener

    def take_deltas(self) -> Iterator[ConsumerDelta]:
        """The changes since the last call, of consumers that still exist."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for listener in dirty.values():
                delta = listener.take_delta()
                if delta is not None and self.by_name.get(listener.name) is listener:
                    yield delta

    def wake(self) -> None:
        """``persisted_seq`` moved."""
        self._tell(lambda listener: listener.wake())
        for follower in self.followers:
            follower()

    @property
    def any(self) -> bool:
        """Whether anything reads the messages stored next."""
        return bool(self.by_name or self.followers)

    def removed(self, ranges: Sequence[tuple[int, int, int]], subject: bytes | None, purged: bool) -> None:
        """These ranges left, as (first, last, messages), all of ``subject`` when it is given."""
        def tell(listener: Listener) -> None:
            for first, last, msgs in ranges:
                listener.removed(first, last, msgs, subject, purged=purged)

        self._tell(tell)

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for listener in list(self.by_name.values()):
            try:
                tell(listener)
            except Exception as error:
                _log.error("consumer %s > %s failed to follow its stream", self._stream, listener.name, exc_info=error)
                listener.doubt()

    # --- purges -------------------------------------------------------------------------------------------------------

    def any_within(self, filters: Filters) -> bool:
        """Whether some listener receives only what matches ``filters``."""
        return any(_within(listener, filters) for listener in self.by_name.values())

    def purged(self, filters: Filters, next_seq: int, front_seq: int) -> None:
        """What matches ``filters`` was purged: each listener continues where it can.

        Args: ``next_seq``: the first remaining message that matches, or else the next to be stored; ``front_seq``:
            the stream's first remaining message.

        A consumer that receives only purged subjects continues at ``next_seq``; any other moves with the front.
        nats-server skips everything before ``next_seq`` even if only one of several filters was purged; that is not
        done here, since messages of the other filters would be lost.
        """
        for listener in list(self.by_name.values()):
            if filters.all:
                listener.purged(front_seq)
            elif _within(listener, filters):
                listener.purged(next_seq)
            elif not listener.filters or any(subset(filters.subjects[0], one.encode()) for one in listener.filters):
                listener.purged(front_seq)


def _within(listener: Listener, filters: Filters) -> bool:
    """Whether everything ``listener`` receives matches ``filters``."""
    own = listener.filters
    return bool(own) and all(subset(subject.encode(), filters.subjects[0]) for subject in own)
