"""Makes the publish at the head of the queue wait while its decision loads data; everything queued behind it waits too.

Owns: the time limit of the wait, and the outcome for the publish. Does not own: the queue (queue), the loading
(decision), the bytes of the refusal (replies).

    begin ──> loaded in time ──> the queue continues with the publish
         ├──> takes too long ──> the publish is refused, and loading continues. Until it ends, publishes that need data
         │                       to be loaded are refused at once; all others are accepted
         └──> failed ──────────> the publish is refused, and the failure logged. After repeated failures, publishes that
                                 need data to be loaded are refused at once for a while, longer each time
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.jetstream.stream.state.decision import WAIT_SECONDS, Decision, Stuck
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.stream.publish.replies import Replies
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.rows import NotLoaded

__all__ = ["BlockedPublish"]

_PAUSE_NS = 250_000_000
_PAUSE_NS_MAX = 16_000_000_000


class BlockedPublish:
    """The publish at the head of one stream's queue, while its decision needs data that is not loaded."""

    def __init__(self, parts: StreamParts, replies: Replies) -> None:
        self._queue, self._live, self._heads = parts.queue, parts.live, parts.heads
        self._tasks, self._clock = parts.tasks, parts.clock
        self._replies = replies
        self._msg: Msg | None = None
        """The publish that ``_decision`` belongs to."""
        self._decision: Decision | None = None
        self._until_ns = 0
        self._late: asyncio.Task[None] | None = None
        self._pause_ns = 0
        self._not_before_ns = 0

    def begin(self, msg: Msg, source: Source | None, not_loaded: NotLoaded) -> bool:
        """Make publishes and requests wait until the data for ``msg`` is loaded; return False if ``msg`` cannot
        wait."""
        now_ns = self._clock.monotonic_ns()
        if self._late is not None or now_ns < self._not_before_ns:
            return False
        if self._decision is None or self._msg is not msg:
            # An old decision remains if its publish was refused for a full log while it waited.
            self._msg = msg
            self._decision = Decision(self._live, self._heads)
            self._until_ns = now_ns + int(WAIT_SECONDS * 1e9)
        self._queue.begin()
        self._tasks.start(self._wait(msg, source, self._decision, not_loaded), "wait")
        return True

    def decided(self) -> None:
        """Release the data that was loaded for the decision, which has been taken."""
        self._msg = self._decision = None

    async def _wait(self, msg: Msg, source: Source | None, decision: Decision, not_loaded: NotLoaded) -> None:
        loading = self._tasks.start(decision.load_missing(not_loaded), "load")
        try:
            left_ns = self._until_ns - self._clock.monotonic_ns()
            done, _ = await asyncio.wait((loading,), timeout=max(left_ns / 1e9, 0.001))
            if not done:
                self._tasks.warn("a publish is refused, since %s takes longer than %g s to load", not_loaded.what,
                                 WAIT_SECONDS)
                self._late = loading
                loading.add_done_callback(self._came_late)
                self._refuse(msg, source)
            elif (error := loading.exception()) is not None:
                self._failed(error)
                self._refuse(msg, source)
            else:
                self._pause_ns = 0
        finally:
            self._queue.end()

    def _refuse(self, msg: Msg, source: Source | None) -> None:
        self.decided()
        if self._queue.drop_first(msg):
            self._replies.fail(source, (msg,), ApiError(ApiErrors.CLUSTER_NOT_AVAIL))

    def _came_late(self, loading: asyncio.Task[None]) -> None:
        self._late = None
        if not loading.cancelled() and (error := loading.exception()) is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        pause_ns = self._pause_ns
        unexpected = not isinstance(error, (StoreError, FormatError, Stuck))
        self._tasks.warn("a publish is refused, and for %g s others like it, since what it depends on cannot be read: "
                         "%s",
                         pause_ns / 1e9, error, unexpected=unexpected)
        self._not_before_ns = self._clock.monotonic_ns() + pause_ns
        self._pause_ns = min(max(2 * pause_ns, _PAUSE_NS), _PAUSE_NS_MAX)
