"""The state of one stream after its persisted blocks: numbers, configuration, block table and consumers."""

from __future__ import annotations

from typing import Any

from broker.storage.format.block import Outcome
from broker.storage.format.header import Position
from broker.storage.format.records.stream_create import RESTORING
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.expiries import Expiries
from broker.storage.state.ids import StreamIds
from broker.storage.state.subjects import SubjectPage
from broker.storage.state.table import BlockTable, RunKey

__all__ = ["DEPARTED", "MOVES", "SOURCES", "START", "StreamState"]

DEPARTED = "departed"
"""A key of ``extra``: the shard to which the stream has moved. This shard keeps the state that it had then."""
MOVES = "moves"
"""A key of ``extra``: how often the stream has moved, if it has."""
SOURCES = "sources"
"""A key of ``extra``: the numbers of the shards that the stream has left, in order."""

START = Position(0, 0)
"""The position before every segment."""


class StreamState:
    """The state of one stream after its persisted blocks."""

    __slots__ = ("account", "blocks", "bytes", "ceiling", "config", "consumers", "created_ns", "dirty", "expiries",
                 "extra", "first_seq", "first_time_ns", "held", "held_runs", "ids", "last_seq", "last_time_ns", "msgs",
                 "name", "offline", "page", "position", "schedules", "stream_id", "subjects")

    def __init__(self, stream_id: int, account: str, name: str, config: dict[str, Any], created_ns: int) -> None:
        self.stream_id = stream_id
        self.account = account
        self.name = name
        self.config = config
        self.created_ns = created_ns
        self.first_seq = 1
        self.last_seq = 0
        self.msgs = 0
        self.bytes = 0
        self.first_time_ns = 0
        self.last_time_ns = 0
        """Time of the message at last_seq, even if it was removed; later messages never have an earlier time."""
        self.ceiling = 0
        """An async stream uses sequences below this one only, and after a crash begins there; 0: no such bound."""
        self.blocks = BlockTable()
        self.consumers: dict[str, ConsumerState] = {}
        self.expiries = Expiries()
        self.schedules = Expiries()
        """The next due time of each scheduled message."""
        self.subjects: tuple[SubjectPage, ...] = ()
        """Pages of a checkpoint with the subjects of messages, in order. The tuple is never changed in place."""
        self.ids = StreamIds()
        """The message ids of its duplicate window. Empty for readers."""
        self.extra: dict[str, Any] = {}
        """Other values in the records of its creation and updates, by key (see ``StreamCreate``)."""
        self.position = START
        """The last segment whose block of this stream was applied."""
        self.offline: str | None = None
        """Why the stream is offline and not replayed further: a record is damaged, or a newer broker's."""
        self.held: list[Position] = []
        """The segments, from the one that took the stream offline, that could not be applied to it. Checkpoints name
        them, so that a broker that understands them applies them."""
        self.held_runs: list[RunKey] = []
        """The runs that adoption records in these segments name for the stream."""
        self.page = -1
        """The number of the directory page for this stream in a checkpoint."""
        self.dirty = True
        """True if it changed since its page was last copied."""

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.first_seq, self.last_seq, self.msgs, self.bytes, self.first_time_ns)

    @property
    def restoring(self) -> bool:
        """True while its restore from a backup is not complete: until then the stream does not exist for clients."""
        return bool(self.extra.get(RESTORING))

    @property
    def departed(self) -> int | None:
        """The shard to which the stream has moved; None: it is in this one."""
        return self.extra.get(DEPARTED)

    @property
    def moves(self) -> int:
        """The number of times that the stream has arrived in a shard from another one."""
        return int(self.extra.get(MOVES, 0))

    def clear_remains(self) -> None:
        """Drop everything that a stream which has moved to another shard left behind, except that it was here."""
        self.blocks = BlockTable()
        self.subjects = ()
        self.ids = StreamIds()
        self.consumers = {}
        self.expiries, self.schedules = Expiries(), Expiries()
        self.extra = {key: self.extra[key] for key in (DEPARTED, MOVES, SOURCES) if key in self.extra}

    def __repr__(self) -> str:
        return (f"<StreamState {self.account}/{self.name} {self.stream_id:016x}: {self.msgs} messages "
                f"{self.first_seq}..{self.last_seq}, {len(self.blocks)} blocks, at {self.position}>")
