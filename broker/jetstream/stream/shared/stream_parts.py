"""The parts that the collaborators of one stream share, as one value that the stream makes once.

Owns: which parts these are. Does not own: how they are made (stream), and what each of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.storage.log.owner import BlockOwner

if TYPE_CHECKING:
    import random

    from broker.base.clock import Clock
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.shared.listeners import Listeners
    from broker.jetstream.stream.shared.queries import Queries
    from broker.jetstream.stream.shared.queue import PublishQueue
    from broker.jetstream.stream.state.heads import Heads
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.removal import Removal
    from broker.jetstream.stream.state.subject_search import SubjectSearch
    from broker.jetstream.stream.state.subject_state import SubjectState
    from broker.jetstream.stream.state.tasks import Tasks
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.read.reader import BlockReader

__all__ = ["StreamOwner", "StreamParts"]


class StreamOwner(BlockOwner, Protocol):
    """The stream: its settings as they are now, and the events that concern several of its collaborators."""

    @property
    def config(self) -> StreamConfig: ...

    @property
    def offline(self) -> str | None: ...

    @property
    def first_time_ns(self) -> int: ...

    def removed(self, gone: Sequence[Removal], subject: bytes | None, purged: bool, *, notify: bool = True) -> None:
        """Handle removals; ``subject`` is the subject of all of them, or None.

        ``notify``: consumers must be notified.
        """

    def notify_removed(self, ranges: Sequence[tuple[int, int, int]], subject: bytes | None, purged: bool) -> None:
        """Notify consumers of blocks that were removed as a whole, as (first, last, messages)."""

    def reset_checks(self) -> None:
        """Select the checks again, after the last sequence was set instead of counted up."""

    def trim_soon(self) -> None:
        """Continue a trim in the stream's next turn, because it needs the store or is incomplete."""

    def publish_own(self, msgs: Sequence[Msg], source: Source | None = None) -> None:
        """Publish messages of the stream itself."""


class StreamParts(NamedTuple):
    """The shared parts of one stream.

    ``stream``: the stream itself, for the log; ``stored``: False if it is in memory only.
    """

    stream: StreamOwner
    account: str
    name: str
    stream_id: int
    created_ns: int
    domain: str
    stored: bool
    log: StreamLog
    reader: BlockReader
    bus: Bus
    clock: Clock
    rng: random.Random
    tasks: Tasks
    listeners: Listeners
    live: Live
    heads: Heads
    subjects: SubjectState
    search: SubjectSearch
    queries: Queries
    queue: PublishQueue
