"""Notifies a stream's consumers of its events, and collects what they have to store.

Where there are very many, they are left word (``news``), and hear it some in each turn of the loop; one that does or says anything
before its turn hears it first. So each is told everything in order, as if it had been told at once.

Owns: which consumer is notified of what; one consumer's failure stops neither the others nor the stream. Does not own:
which consumers exist (account), what leaves the stream (retention), when a block is sealed (log).

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
"""To consumers, in one turn of the loop: about 2 ms."""

_FOLLOWERS_AT_ONCE = 16
"""Woken in one turn, each of which then copies a batch for two or three: some 0.3 ms."""

_TURNS = 32
"""In which all hear what they were told, if that is more: the more is told, the more hear it in each turn."""


class Changed(Protocol):
    """A consumer that has something to store."""

    @property
    def name(self) -> str: ...

    def take_delta(self) -> ConsumerDelta | None:
        """The record of what changed, or None."""


class Listener(Changed, Protocol):
    """A consumer, as its stream sees it. ``news``: calls with itself that ``hear`` makes, in order, as does each of the others
    first."""

    news: list[Callable[[Any], None]]

    def hear(self) -> None:
        """Make the calls of ``news``."""

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
        self._to_wake: dict[Callable[[], None], None] = {}
        self._stream = stream
        self._dirty: dict[str, Changed] = {}
        self._behind: dict[Listener, int] = {}
        """Those that were left word, and by how many calls."""
        self._calls = 0
        """Of all of them."""

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
        """Whether anything reads the messages stored next."""
        return bool(self.by_name or self.followers)

    def removed(self, ranges: Sequence[tuple[int, int, int]], subject: bytes | None, purged: bool) -> None:
        """These ranges left, as (first, last, messages), all of ``subject`` when it is given."""
        def tell(listener: Listener) -> None:
            for first, last, msgs in ranges:
                listener.removed(first, last, msgs, subject, purged=purged)

        self._leave_word(tell, len(ranges))

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for listener in list(self.by_name.values()):
            self._tell_one(tell, listener)

    def _tell_one(self, tell: Callable[[Listener], None], listener: Listener) -> None:
        try:
            tell(listener)
        except Exception as error:
            _log.error("consumer %s > %s failed to follow its stream", self._stream, listener.name, exc_info=error)
            listener.doubt()

    def _leave_word(self, tell: Callable[[Listener], None], calls: int) -> None:
        """As ``_tell``, in as many turns as ``calls`` to each listener take."""
        if len(self.by_name) * calls <= _CALLS_AT_ONCE and not self._behind:
            self._tell(tell)
            return
        told, behind = partial(self._tell_one, tell), self._behind
        if not behind and self.by_name:
            asyncio.get_running_loop().call_soon(self._go_on)
        for listener in self.by_name.values():
            listener.news.append(told)
            behind[listener] = behind.get(listener, 0) + calls
        self._calls += calls * len(self.by_name)

    def _go_on(self) -> None:
        most, behind = max(_CALLS_AT_ONCE, self._calls // _TURNS), self._behind
        calls = 0
        try:
            while behind and calls < most:
                listener = next(iter(behind))
                calls += behind.pop(listener)
                listener.hear()
        finally:
            self._calls -= calls
            if behind:
                asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def behind(self) -> bool:
        """Whether some have not heard yet what they were told."""
        return bool(self._behind)

    async def told(self) -> None:
        """Return once all have heard what they were told."""
        while self._behind:  # noqa: ASYNC110 (some hear it in each turn)
            await asyncio.sleep(0)

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
        def tell(listener: Listener) -> None:
            if filters.all:
                listener.purged(front_seq)
            elif _within(listener, filters):
                listener.purged(next_seq)
            elif not listener.filters or any(subset(filters.subjects[0], one.encode()) for one in listener.filters):
                listener.purged(front_seq)

        self._leave_word(tell, 4)  # takes as long as so many others


def _within(listener: Listener, filters: Filters) -> bool:
    """Whether everything ``listener`` receives matches ``filters``."""
    own = listener.filters
    return bool(own) and all(subset(subject.encode(), filters.subjects[0]) for subject in own)
