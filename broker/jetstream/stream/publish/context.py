"""The parts of a stream from which its checks are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.stream.publish.last_seqs import LastSeqs
from broker.jetstream.stream.publish.totals import Totals
from broker.jetstream.stream.state.rows import NotLoaded

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.publish.msg_ids import MsgIds
    from broker.jetstream.stream.publish.pending import Pending
    from broker.jetstream.stream.retention.enforcement import Enforcement
    from broker.jetstream.stream.retention.interest import Interest
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.retention.rollup import Rollups
    from broker.jetstream.stream.retention.ttl import MessageTtls
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["CheckContext"]


class Scheduler(Protocol):
    """The stream's schedules."""

    @property
    def source(self) -> Source: ...
    def may_end(self, subject: bytes) -> bool: ...
    def next_of(self, subject: bytes) -> tuple[int, int] | None: ...
    def ended_since(self, subject: bytes) -> bool: ...
    def set(self, rows: Sequence[tuple[int, int]]) -> None: ...


class CheckContext:
    """The collaborators of one stream that its checks read, and change only through ``commit_pending``.

    Attributes: ``shares``: returns whether the stream of that name stores a subject too (``overlapping_streams``).
    """

    __slots__ = ("_log", "_publish", "_stream", "dedupe", "enforcement", "interest", "last_seqs", "live", "msg_ids",
                 "retention", "rollups", "scheduler", "shares", "subjects", "totals", "ttls")

    def __init__(self, parts: StreamParts, dedupe: Dedupe, msg_ids: MsgIds, retention: Retention, rollups: Rollups,
                 enforcement: Enforcement, interest: Interest, ttls: MessageTtls, scheduler: Scheduler) -> None:
        self._stream, self._log, self._publish = parts.stream, parts.log, parts.bus.publish
        self.live, self.subjects = parts.live, parts.subjects
        self.dedupe, self.msg_ids = dedupe, msg_ids
        self.retention, self.rollups, self.enforcement = retention, rollups, enforcement
        self.interest, self.ttls, self.scheduler = interest, ttls, scheduler
        self.last_seqs = LastSeqs(parts)
        self.totals = Totals(parts)
        self.shares: Callable[[bytes, bytes], bool] = lambda subject, name: False

    def publish_when_stored(self, subject: bytes, hlen: int, body: bytes) -> None:
        """Publish a message to subscribers once everything that the stream has sequenced so far is in the store."""
        self._log.wait_safe(self._publish, subject, b"", hlen, body, of=self._stream)

    def commit_pending(self, pending: Pending) -> None:
        """Append the messages accepted so far, and apply the stream's limits. Raises: NotLoaded."""
        pending.append()
        self.retention.trim()
        if self.retention.over:
            # Only one slice of very many blocks was removed; the check needs all of them removed.
            raise NotLoaded("room within the limits", work=self.enforcement.trim)
