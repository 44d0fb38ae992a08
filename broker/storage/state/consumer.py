"""The state of one consumer after its persisted records, and its form in a checkpoint's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from broker.storage.format.records.column import packed_bytes, unpack_column
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.state.extra import update_extra

__all__ = ["ConsumerState"]

_CSEQ, _AT_NS = itemgetter(0), itemgetter(1)
_TYPES = [str, dict, int, int, int, int, int, int, int, dict]


class ConsumerState:
    """The state of one consumer after its records. ``pending`` is in the order of delivery."""

    __slots__ = ("config", "created_ns", "delivered_cseq", "delivered_sseq", "extra", "floor_cseq", "floor_sseq",
                 "last_ack_ns", "last_active_ns", "name", "pending", "place", "redelivered")

    def __init__(self, name: str, config: dict[str, Any], created_ns: int) -> None:
        self.name = name
        self.config = config
        self.created_ns = created_ns
        self.delivered_cseq = 0
        self.delivered_sseq = 0
        self.floor_cseq = 0
        self.floor_sseq = 0
        self.last_active_ns = 0
        self.last_ack_ns = 0
        self.pending: dict[int, tuple[int, int]] = {}
        """Maps stream_seq to (consumer_seq, delivered_at_ns)."""
        self.redelivered: dict[int, int] = {}
        """Maps stream_seq to the number of deliveries after the first."""
        self.extra: dict[str, Any] = {}
        """Other values in the consumer's records, by key (see ``ConsumerDelta``)."""
        self.place: Any = None
        """The page of a checkpoint that has a large state; None: the state is inline, or has changed since."""

    @classmethod
    def created(cls, record: ConsumerCreate) -> ConsumerState:
        """Return the state at the consumer's creation."""
        state = cls(record.name, dict(record.config), record.created_ns)
        state.apply_delta(record.start)
        update_extra(state.extra, record.extra)
        return state

    def apply_delta(self, delta: ConsumerDelta) -> None:
        """Apply the changes of a record. All of them are outcomes."""
        if delta.delivered is not None:
            self.delivered_cseq, self.delivered_sseq, self.last_active_ns = delta.delivered
        if delta.ack_floor is not None:
            self.floor_cseq, self.floor_sseq = delta.ack_floor
        if delta.last_ack_ns is not None:
            self.last_ack_ns = delta.last_ack_ns
        if delta.dropped:
            _remove(self.pending, delta.dropped)
            _remove(self.redelivered, delta.dropped)
        if (added := delta.pending) is not None:
            # Remove them first: a redelivered message comes last in the order of delivery.
            _remove(self.pending, added.stream_seqs)
            deliveries = zip(added.consumer_seqs, added.delivered_at_ns, strict=True)
            self.pending.update(zip(added.stream_seqs, deliveries, strict=True))
        if delta.redelivered:
            self.redelivered.update(delta.redelivered)
            _remove(self.redelivered, [seq for seq, count in delta.redelivered.items() if not count])
        if delta.extra:
            update_extra(self.extra, delta.extra)

    @property
    def weight(self) -> int:
        """About how many numbers ``pack`` returns: decides between the directory page and a page of its own."""
        return 16 + 3 * len(self.pending) + 2 * len(self.redelivered)

    def pack(self) -> list[Any]:
        """Return the state as a value for a page. ``unpack`` is the inverse."""
        return self.pack_later()()

    def pack_later(self) -> Callable[[], list[Any]]:
        """Return a function that packs the present state, in any thread: copying a million pending messages takes 10
        ms, and packing them ten times as long."""
        front = [self.name, self.config, self.created_ns, self.delivered_cseq, self.delivered_sseq, self.floor_cseq,
                 self.floor_sseq, self.last_active_ns, self.last_ack_ns]
        pending, deliveries = list(self.pending), list(self.pending.values())
        redelivered, extra = dict(self.redelivered), dict(self.extra)

        def pack() -> list[Any]:
            return [*front, packed_bytes(pending), packed_bytes(map(_CSEQ, deliveries)),
                    packed_bytes(map(_AT_NS, deliveries)),
                    packed_bytes(redelivered), packed_bytes(redelivered.values()), extra]
        return pack

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> ConsumerState:
        """Return the state that ``pack`` packed. Raises: ValueError, TypeError or KeyError for any other value."""
        if [*map(type, packed[:9]), type(packed[-1])] != _TYPES:
            raise ValueError("a consumer has other fields")
        state = cls(*packed[:3])
        (state.delivered_cseq, state.delivered_sseq, state.floor_cseq, state.floor_sseq, state.last_active_ns,
         state.last_ack_ns, seqs, cseqs, times, again, counts, state.extra) = packed[3:]
        state.pending = {s: (c, t) for s, c, t in zip(
            unpack_column(seqs), unpack_column(cseqs), unpack_column(times), strict=True)}
        state.redelivered = dict(zip(unpack_column(again), unpack_column(counts), strict=True))
        return state


def _remove(known: dict[int, Any], seqs: Sequence[int]) -> None:
    if known:
        for _ in map(known.pop, seqs, repeat(None)):
            pass
