"""A consumer's reads from the store: the messages to deliver next, and the count of pending ones.

At most one read and one count run at a time. A read that fails in spite of the store's own retries is retried with
exponential backoff, because a damaged block stays damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.base.backoff import Backoff
from broker.base.clock import Clock
from broker.jetstream.consumer.cursor.cursor import Cursor, Loading
from broker.jetstream.consumer.timer import Scheduler

__all__ = ["Prefetcher"]

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 30.0
_RECOUNT_NS = 200_000_000
"""The interval between recounts, while limits remove messages of which it is unknown whether they match."""


class Prefetcher:
    """The reads of one consumer; ``open`` allows counts, ``close`` forbids them.

    Attributes: ``loading``: true while a read is running, so that delivery has to wait.
    """

    def __init__(self, names: str, cursor: Cursor, clock: Clock, loop: Scheduler, on_done: Callable[[], None],
                 try_at: Callable[[int], None]) -> None:
        """Args: ``on_done`` runs after each read or count; after a failure, ``try_at`` runs first, with the retry's
            monotonic time.
        """
        self.loading = False
        self._names = names
        self._cursor = cursor
        self._clock = clock
        self._loop = loop
        self._on_done = on_done
        self._try_at = try_at
        self._closed = True
        self._counting = False
        self._count_timer: Any = None
        self._backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        """Stop; reads already running end by themselves."""
        self._closed = True
        if self._count_timer is not None:
            self._count_timer.cancel()
            self._count_timer = None

    def reset_backoff(self) -> None:
        """Reset the backoff: a message that could not be read may have been purged."""
        self._backoff.reset()

    def load(self, loading: Loading | None) -> None:
        """Load the chunk that the cursor needs, if any, unless a read is running."""
        if loading is not None and not self.loading:
            self.loading = True
            self._loop.create_task(self._load(loading))

    def count(self) -> None:
        """Count pending messages, unless a count is running. If the number is known but not exact,
        count after an interval."""
        cursor = self._cursor
        if self._counting or self._closed or cursor.exact:
            return
        if not cursor.known:
            self._start_count()
        elif self._count_timer is None:
            self._count_timer = self._loop.call_later(_RECOUNT_NS / 1e9, self._start_count)

    async def counted(self) -> None:
        """Wait until the number is exact, for a caller that reads it with no await in between."""
        while not self._closed:
            await self._cursor.recount()
            loading = self._cursor.count()
            if loading is None:
                return
            await loading.ready

    async def _load(self, loading: Loading) -> None:
        try:
            await loading.ready
        except Exception as error:
            self._failed("reading", error)
        else:
            self._backoff.reset()
        finally:
            self.loading = False
            self._on_done()

    def _start_count(self) -> None:
        self._count_timer = None
        if not self._counting:
            self._counting = True
            self._loop.create_task(self._recount())

    async def _recount(self) -> None:
        try:
            if not self._closed:
                await self._cursor.recount()
        except Exception as error:
            self._failed("counting", error)
        finally:
            self._counting = False
            self._on_done()

    def _failed(self, what: str, error: Exception) -> None:
        delay = self._backoff.next()
        _log.warning("consumer %s: %s failed, trying again in %g s: %s", self._names, what, delay, error)
        self._try_at(self._clock.monotonic_ns() + int(delay * 1e9))
