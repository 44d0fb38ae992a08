"""One stream as its persisted blocks left it: numbers, configuration, block table and consumers. Values alone."""

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

__all__ = ["START", "StreamState"]

START = Position(0, 0)
"""Before every segment."""


class StreamState:
    """One stream as persisted blocks left it."""

    __slots__ = ("account", "blocks", "bytes", "ceiling", "config", "consumers", "created_ns", "dirty", "expiries", "extra",
                 "first_seq", "first_time_ns", "held", "held_runs", "ids", "last_seq", "last_time_ns", "msgs", "name", "offline",
                 "page", "position", "schedules", "stream_id", "subjects")

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
        """Time of the message at last_seq, whether or not it is still live; times never go below it."""
        self.ceiling = 0
        """This (async) stream hands out no sequence at or above it, and goes on there after a crash; 0: it has none."""
        self.blocks = BlockTable()
        self.consumers: dict[str, ConsumerState] = {}
        self.expiries = Expiries()
        self.schedules = Expiries()
        """When scheduled messages are due next."""
        self.subjects: tuple[SubjectPage, ...] = ()
        """Pages of a checkpoint with the subjects of messages, in order. Replaced as a whole, so it may be compared by identity."""
        self.ids = StreamIds()
        """Of its duplicate window. Readers have none."""
        self.extra: dict[str, Any] = {}
        """What else the records of its creation and updates carry, by key (see ``StreamCreate``)."""
        self.position = START
        """The last segment whose block of this stream is in here."""
        self.offline: str | None = None
        """Why the stream cannot be used: a record of it is damaged, or a newer broker's. It is not replayed further."""
        self.held: list[Position] = []
        """The segments with something of it that could not be applied, from the one that took it offline on. Checkpoints name them,
        so that a broker that understands them applies them."""
        self.held_runs: list[RunKey] = []
        """The runs that adoption records in these segments name for it."""
        self.page = -1
        """Number of the directory page that holds it in a checkpoint."""
        self.dirty = True
        """Whether it changed since its page was last copied."""

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.first_seq, self.last_seq, self.msgs, self.bytes, self.first_time_ns)

    @property
    def restoring(self) -> bool:
        """Whether its restore from a backup has not been completed: then it does not exist yet."""
        return bool(self.extra.get(RESTORING))

    def __repr__(self) -> str:
        return (f"<StreamState {self.account}/{self.name} {self.stream_id:016x}: {self.msgs} messages "
                f"{self.first_seq}..{self.last_seq}, {len(self.blocks)} blocks, at {self.position}>")
