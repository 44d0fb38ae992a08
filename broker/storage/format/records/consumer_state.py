"""Record 7: the changes in one consumer's delivery state since its last such record.

Each commit has one for each consumer whose state changed, so this record is written and read more often than all others
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, damaged
from broker.storage.format.records.column import pack_column, unpack_column
from broker.storage.format.records.kinds import RecordKind

__all__ = ["RESUME", "ConsumerDelta", "PendingColumns"]

RESUME: Final = "resume"
"""A key of ``extra``, for the deliver policy ``last_per_subject``: the stream's last sequence at creation."""

@dataclass(slots=True)
class PendingColumns:
    """Messages that wait for their acks: a column for each value, all of one length."""

    stream_seqs: Sequence[int]
    consumer_seqs: Sequence[int]
    """0: the message was acknowledged before it was delivered."""
    delivered_at_ns: Sequence[int]


@dataclass(slots=True, eq=False, repr=False)
class ConsumerDelta(RecordBody):
    """All values except ``name`` are outcomes; None: unchanged. They are applied in this order."""

    KIND: ClassVar = RecordKind.CONSUMER_STATE

    name: str
    """The name of the consumer."""
    delivered: Sequence[int] | None = None
    """[consumer_seq, stream_seq, time of the last delivery]"""
    ack_floor: Sequence[int] | None = None
    """[consumer_seq, stream_seq]"""
    last_ack_ns: int | None = None
    dropped: Sequence[int] | None = None
    """Stream sequences that are no longer pending; their redelivery counts are removed too."""
    pending: PendingColumns | None = None
    """New pending messages, which are last in the order of delivery."""
    redelivered: Mapping[int, int] | None = None
    """Maps a stream sequence to the number of deliveries after the first; 0 removes it."""
    extra: Mapping[str, Any] | None = None
    """Other values of the consumer by key; None removes a key."""

    def encode(self) -> dict[str, Any]:
        body: dict[str, Any] = {"n": self.name}
        self.encode_into(body)
        return body

    def encode_into(self, body: dict[str, Any]) -> None:
        """Add everything except the name to ``body``."""
        if self.delivered is not None:
            body["d"] = self.delivered
        if self.ack_floor is not None:
            body["f"] = self.ack_floor
        if self.last_ack_ns is not None:
            body["la"] = self.last_ack_ns
        if self.pending is not None:
            pending = self.pending
            body["add"] = [pack_column(pending.stream_seqs), pack_column(pending.consumer_seqs),
                           pack_column(pending.delivered_at_ns)]
        if self.dropped is not None:
            body["drop"] = pack_column(self.dropped)
        if self.redelivered is not None:
            body["re"] = self.redelivered
        if self.extra is not None:
            body["x"] = self.extra

    @classmethod
    def decode(cls, body: Any) -> ConsumerDelta:
        if type(body) is not dict or type(name := body.get("n")) is not str:
            raise damaged(cls.KIND, "n", "not the name of a consumer")
        return cls.decode_from(body, name, cls.KIND)

    @classmethod
    def decode_from(cls, body: dict[str, Any], name: str, kind: RecordKind) -> ConsumerDelta:
        """Decode everything except the name, from the body of a record of ``kind``. Raises: Corrupt."""
        get = body.get
        delta = cls(name, delivered := get("d"), ack_floor := get("f"), last_ack_ns := get("la"))
        key = "d"
        try:
            # The type of a sum depends on the types of all terms: this is faster than checking each.
            if delivered is not None and (type(delivered) is not list or len(delivered) != 3
                                          or type(sum(delivered)) is not int):
                raise TypeError
            key = "f"
            if ack_floor is not None and (type(ack_floor) is not list or len(ack_floor) != 2
                                          or type(sum(ack_floor)) is not int):
                raise TypeError
            key = "la"
            if last_ack_ns is not None and type(last_ack_ns) is not int:
                raise TypeError
        except TypeError:
            raise damaged(kind, key, f"not {_SHAPES[key]}") from None
        if len(body) != 4 or delivered is None or ack_floor is None or last_ack_ns is None:  # most have no more
            delta._decode_more(body, kind)
        return delta

    def _decode_more(self, body: dict[str, Any], kind: RecordKind) -> None:
        get = body.get
        key = "drop"
        try:
            if (dropped := get("drop")) is not None:
                self.dropped = unpack_column(dropped)
            key = "add"
            if (add := get("add")) is not None:
                stream_seqs, consumer_seqs, delivered_at_ns = map(unpack_column, add)
                if not len(stream_seqs) == len(consumer_seqs) == len(delivered_at_ns):
                    raise ValueError
                self.pending = PendingColumns(stream_seqs, consumer_seqs, delivered_at_ns)
            key = "re"
            if (redelivered := get("re")) is not None:
                if type(redelivered) is not dict or type(sum(redelivered) + sum(redelivered.values())) is not int:
                    raise TypeError
                self.redelivered = redelivered
            key = "x"
            if (extra := get("x")) is not None:
                if type(extra) is not dict:
                    raise TypeError
                self.extra = extra
        except (TypeError, ValueError):
            raise damaged(kind, key, f"not {_SHAPES[key]}") from None


_SHAPES: Final = {
    "d": "a list of three integers",
    "f": "a list of two integers",
    "la": "an integer",
    "drop": "a column",
    "add": "three columns of one length",
    "re": "a map of integers to integers",
    "x": "a map",
}
