"""Notifies a stream's consumers of its events, and collects what they have to store.

If a stream has very many consumers, notifications are queued, and delivered to some of the consumers in each turn of
the loop. A consumer that acts before its turn first handles its own queue, so every consumer sees all events in order.

Owns: the choice of consumers to notify; one consumer's failure stops neither the others nor the stream. Does not own:
the set of consumers (account), removals (retention), the sealing of blocks (log).

Source: nats-server, server/stream.go, purgeLocked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from broker.jetstream.filters import Filters
from broker.protocol.subject import subset
from broker.storage.format.records.consumer_state import ConsumerDelta

__all__ = ["Listener", "Listeners"]

_log = logging.getLogger(__name__)

_CALLS_AT_ONCE = 128
"""Calls to consumers in one turn of the loop: about 2 ms."""

_FOLLOWERS_AT_ONCE = 16
"""Followers woken in one turn. Each copies a batch, which takes 2 or 3 turns of some 0.3 ms."""

_TURNS = 32
"""All consumers are notified within this many turns; the longer the queue, the more are notified in each turn."""


class Changed(Protocol):
    """A consumer that has something to store."""

    @property
    def name(self) -> str: ...

    def pop_delta(self) -> ConsumerDelta | None:
        """Return the record of the changes since the last call, or None."""


class Listener(Changed, Protocol):
    """A consumer, as its stream sees it. ``notifications`` are queued calls, each with the listener as its argument."""

    notifications: list[Callable[[Any], None]]

    def deliver_notifications(self) -> None:
        """Make the calls of ``notifications``, in order. The listener does this before it acts."""

    @property
    def filters(self) -> Sequence[str]:
        """The subjects it receives; empty: all."""

    def waits_for(self, seqs: Sequence[int]) -> Sequence[int]:
        """Return the sequences of ``seqs``, ascending, that it has not received or that are unacked, whatever their
        subjects."""

    def waits_from(self, seq: int) -> bool:
        """Return whether it has not received anything from ``seq`` on, whatever the subjects."""

    def wake(self) -> None:
        """Handle that ``safe_seq`` moved."""

    def removed(self, first_seq: int, last_seq: int, msgs: int, subject: bytes | None = None, *,
                purged: bool = False) -> None:
        """Handle that ``msgs`` messages within first..last were removed, all of ``subject`` if it is given."""

    def purged(self, next_seq: int) -> None:
        """Handle that everything it could receive below ``next_seq`` was purged."""

    def notification_failed(self) -> None:
        """Recount the pending messages, since one of the calls above failed."""


class Listeners:
    """The listeners of one stream.

    Args: ``by_name`` is the owner's mapping: the owner adds and removes consumers, this class only reads it.
    """

    def __init__(self, stream: str, by_name: Mapping[str, Listener]) -> None:
        self.by_name = by_name
        self.followers: dict[Callable[[], None], None] = {}
        """A function of each stream that copies from this one, called in this order when
        ``safe_seq`` moves."""
        self._to_wake: dict[Callable[[], None], None] = {}
        self._stream = stream
        self._dirty: dict[str, Changed] = {}
        self._queued: dict[Listener, int] = {}
        """Listeners with queued notifications, and the number of calls that these make."""
        self._calls = 0
        """Number of queued calls of all listeners."""

    def dirty(self, listener: Changed) -> None:
        """Record that the listener's state changed: ``pop_deltas`` collects the change."""
        self._dirty[listener.name] = listener

    def pop_deltas(self) -> Iterator[ConsumerDelta]:
        """Yield the changes since the last call, of consumers that still exist."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for listener in dirty.values():
                delta = listener.pop_delta()
                if delta is not None and self.by_name.get(listener.name) is listener:
                    yield delta

    def wake(self) -> None:
        """Notify listeners and followers that ``safe_seq`` moved."""
        self._notify_all(lambda listener: listener.wake())
        if len(self.followers) <= _FOLLOWERS_AT_ONCE:
            for follower in self.followers:
                follower()
            return
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_followers)
        self._to_wake.update(self.followers)

    def _wake_followers(self) -> None:
        for follower in list(islice(self._to_wake, _FOLLOWERS_AT_ONCE)):
            del self._to_wake[follower]
            if follower in self.followers:
                follower()
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_followers)

    @property
    def any(self) -> bool:
        """True if a consumer or a follower reads the messages stored next."""
        return bool(self.by_name or self.followers)

    def removed(self, ranges: Sequence[tuple[int, int, int]], subject: bytes | None, purged: bool) -> None:
        """Notify listeners of removed ranges, (first, last, messages), all of ``subject`` if it is given."""
        def notify(listener: Listener) -> None:
            for first, last, msgs in ranges:
                listener.removed(first, last, msgs, subject, purged=purged)

        self._notify_in_turns(notify, len(ranges))

    def _notify_all(self, notify: Callable[[Listener], None]) -> None:
        for listener in list(self.by_name.values()):
            self._notify_one(notify, listener)

    def _notify_one(self, notify: Callable[[Listener], None], listener: Listener) -> None:
        try:
            notify(listener)
        except Exception as error:
            _log.error("consumer %s > %s failed to follow its stream", self._stream, listener.name, exc_info=error)
            listener.notification_failed()

    def _notify_in_turns(self, notify: Callable[[Listener], None], calls: int) -> None:
        """Do the same as ``_notify_all`` for a notification that makes ``calls`` calls to each listener.

        The notification is queued if these are very many calls, or if earlier ones are queued.
        """
        if len(self.by_name) * calls <= _CALLS_AT_ONCE and not self._queued:
            self._notify_all(notify)
            return
        notification, queued = partial(self._notify_one, notify), self._queued
        if not queued and self.by_name:
            asyncio.get_running_loop().call_soon(self._deliver_some)
        for listener in self.by_name.values():
            listener.notifications.append(notification)
            queued[listener] = queued.get(listener, 0) + calls
        self._calls += calls * len(self.by_name)

    def _deliver_some(self) -> None:
        most, queued = max(_CALLS_AT_ONCE, self._calls // _TURNS), self._queued
        calls = 0
        try:
            while queued and calls < most:
                listener = next(iter(queued))
                calls += queued.pop(listener)
                listener.deliver_notifications()
        finally:
            self._calls -= calls
            if queued:
                asyncio.get_running_loop().call_soon(self._deliver_some)

    @property
    def queued(self) -> bool:
        """True if notifications are queued for some listeners."""
        return bool(self._queued)

    async def delivered(self) -> None:
        """Wait until all queued notifications are delivered."""
        while self._queued:  # noqa: ASYNC110 (some are delivered in each turn)
            await asyncio.sleep(0)

    # --- purges -------------------------------------------------------------------------------------------------------

    def any_within(self, filters: Filters) -> bool:
        """Return whether some listener receives only messages that match ``filters``."""
        return any(_within(listener, filters) for listener in self.by_name.values())

    def purged(self, filters: Filters, next_seq: int, front_seq: int) -> None:
        """Notify listeners of a purge of messages that match ``filters``.

        Args: ``next_seq``: the first remaining message that matches, or else the next to be stored; ``front_seq``: the
            stream's first remaining message.

        A consumer that receives only purged subjects continues at ``next_seq``. A consumer that receives all purged
        subjects and others moves with the front. The others are not notified.
        nats-server skips everything before ``next_seq`` even if only one of several filters was purged; that is not
        done here, since messages of the other filters would be lost.
        """
        def notify(listener: Listener) -> None:
            if filters.all:
                listener.purged(front_seq)
            elif _within(listener, filters):
                listener.purged(next_seq)
            elif not listener.filters or any(subset(filters.subjects[0], one.encode()) for one in listener.filters):
                listener.purged(front_seq)

        self._notify_in_turns(notify, 4)  # this takes as long as four other calls


def _within(listener: Listener, filters: Filters) -> bool:
    """Return whether everything that ``listener`` receives matches ``filters``."""
    own = listener.filters
    return bool(own) and all(subset(subject.encode(), filters.subjects[0]) for subject in own)
