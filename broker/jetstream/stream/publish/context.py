"""The parts of a stream from which its checks are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.stream.state.rows import NotLoaded

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.publish.last_seqs import LastSeqs
    from broker.jetstream.stream.publish.pending import Pending
    from broker.jetstream.stream.publish.totals import Totals
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_state import SubjectState

__all__ = ["CheckContext"]


class Retention(Protocol):
    """The limits, for checks that depend on what they remove."""

    @property
    def over(self) -> bool: ...
    def trim(self) -> None: ...


class Rollups(Protocol):
    """What roll-ups remove."""

    def plan(self, subject: bytes | None, staged: tuple[int, int] | None = None) -> Callable[[], None]: ...
    def plan_all(self, subjects: Sequence[bytes], plans: dict[bytes, Callable[[], None]]) -> None: ...


class Scheduler(Protocol):
    """The stream's schedules."""

    @property
    def source(self) -> Source: ...
    def may_end(self, subject: bytes) -> bool: ...
    def next_of(self, subject: bytes) -> tuple[int, int] | None: ...
    def ended_since(self, subject: bytes) -> bool: ...
    def set(self, rows: Sequence[tuple[int, int]]) -> None: ...


class Markers(Protocol):
    """The delete markers that the stream publishes."""

    @property
    def source(self) -> Source: ...
    def replaced_by_marker(self, subject: bytes) -> int: ...


class Interest(Protocol):
    """What consumers wait for, in a stream that stores only that."""

    def wants(self, subject: bytes) -> bool: ...
    def wants_all(self, subjects: Iterable[bytes]) -> bool: ...
    def drop_unwanted(self, first_seq: int) -> None: ...


class CheckContext:
    """The parts of one stream that its checks read, and change only through ``commit_pending``.

    Attributes: ``publish_when_stored``: publish a message (subject, header length, headers and payload) to subscribers
        when everything that the stream has sequenced so far is in the store; ``shares``: whether a subject is also
        stored by the stream of that name (``overlapping_streams``).
    """

    __slots__ = ("_retention", "dedupe", "interest", "last_seqs", "live", "load_ids", "markers", "publish_when_stored", "rollups",
                 "scheduler", "shares", "subjects", "totals", "trim_all")

    def __init__(self, live: Live, dedupe: Dedupe, subjects: SubjectState, last_seqs: LastSeqs, retention: Retention,
                 rollups: Rollups, totals: Totals, scheduler: Scheduler, load_ids: Callable[[], Awaitable[None]],
                 trim_all: Callable[[], Awaitable[None]],
                 publish_when_stored: Callable[[bytes, int, bytes], None], interest: Interest,
                 markers: Markers) -> None:
        self.live = live
        self.dedupe = dedupe
        self.subjects = subjects
        self.last_seqs = last_seqs
        self.rollups = rollups
        self.totals = totals
        self.scheduler = scheduler
        self.load_ids = load_ids
        self.trim_all = trim_all
        self.publish_when_stored = publish_when_stored
        self.interest = interest
        self.markers = markers
        self.shares: Callable[[bytes, bytes], bool] = lambda subject, name: False
        self._retention = retention

    def commit_pending(self, pending: Pending) -> None:
        """Append the messages accepted so far, and apply the stream's limits. Raises: NotLoaded."""
        pending.append()
        self._retention.trim()
        if self._retention.over:
            # Only one slice of very many blocks was removed; the check needs the others removed, too.
            raise NotLoaded("room within the limits", work=self.trim_all)
