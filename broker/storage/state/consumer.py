"""One consumer as its persisted records left it, and how a checkpoint's page holds it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from sys import byteorder
from typing import Any

__all__ = ["ConsumerState"]

_CREATE_KEYS = frozenset(("name", "config", "created_ns", "d", "f", "la", "add", "drop", "re", "x"))


class ConsumerState:
    """One consumer as its records left it. ``pending`` is in the order of delivery."""

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
        """stream_seq → (consumer_seq, delivered_at_ns)"""
        self.redelivered: dict[int, int] = {}
        """stream_seq → times delivered"""
        self.extra: dict[str, Any] = {}
        """What else the consumer's records carry, by key; the jetstream layer's own."""
        self.place: Any = None
        """Where a checkpoint keeps a large state; None: inline, or changed since."""

    @classmethod
    def created(cls, body: Mapping[str, Any]) -> ConsumerState:
        """From a CONSUMER_CREATE body: name, config, created_ns, and any of a delta's keys: the state to start from."""
        state = cls(body["name"], dict(body["config"]), int(body["created_ns"]))
        state.apply_delta(body)
        state.extra.update({k: v for k, v in body.items() if k not in _CREATE_KEYS})
        return state

    def apply_delta(self, delta: Mapping[str, Any]) -> None:
        """Take a CONSUMER_STATE body; see the keys below. All are optional, all are outcomes.

        d    [consumer_seq, stream_seq, last_active_ns] delivered      f   [consumer_seq, stream_seq] ack floor
        la   last_ack_ns                                               x   {key: value} extra; None removes the key
        drop stream_seqs no longer pending, their counts with them
        add  [stream_seqs, consumer_seqs, delivered_at_ns] now pending, three columns
        re   {stream_seq: times delivered}, 0 removes it
        Columns are lists, or bytes of little-endian int64.
        """
        if (d := delta.get("d")) is not None:
            self.delivered_cseq, self.delivered_sseq, self.last_active_ns = d
        if (f := delta.get("f")) is not None:
            self.floor_cseq, self.floor_sseq = f
        if (last_ack_ns := delta.get("la")) is not None:
            self.last_ack_ns = last_ack_ns
        if drop := delta.get("drop"):
            pending, redelivered = self.pending, self.redelivered
            for seq in _ints(drop):
                pending.pop(seq, None)
                redelivered.pop(seq, None)
        if add := delta.get("add"):
            seqs, cseqs, times = map(_ints, add)
            for seq, cseq, time_ns in zip(seqs, cseqs, times, strict=True):
                # Taken out first: delivered again means last in the order of delivery.
                self.pending.pop(seq, None)
                self.pending[seq] = (cseq, time_ns)
        if re := delta.get("re"):
            for seq, count in re.items():
                if count:
                    self.redelivered[int(seq)] = count
                else:
                    self.redelivered.pop(int(seq), None)
        if x := delta.get("x"):
            for key, value in x.items():
                if value is None:
                    self.extra.pop(key, None)
                else:
                    self.extra[key] = value

    @property
    def weight(self) -> int:
        """About how many numbers ``pack`` gives: what decides between inline and a page of its own."""
        return 16 + 3 * len(self.pending) + 2 * len(self.redelivered)

    def pack(self) -> list[Any]:
        """For a page; ``unpack`` takes it back."""
        return [self.name, self.config, self.created_ns, self.delivered_cseq, self.delivered_sseq, self.floor_cseq,
                self.floor_sseq, self.last_active_ns, self.last_ack_ns, _bytes(self.pending),
                _bytes(cseq for cseq, _ in self.pending.values()), _bytes(at for _, at in self.pending.values()),
                _bytes(self.redelivered), _bytes(self.redelivered.values()), self.extra]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> ConsumerState:
        """Raises: ValueError, TypeError or KeyError when ``packed`` is not what ``pack`` gives."""
        state = cls(*packed[:3])
        (state.delivered_cseq, state.delivered_sseq, state.floor_cseq, state.floor_sseq, state.last_active_ns,
         state.last_ack_ns, seqs, cseqs, times, again, counts, state.extra) = packed[3:]
        state.pending = {s: (c, t) for s, c, t in zip(_ints(seqs), _ints(cseqs), _ints(times), strict=True)}
        state.redelivered = dict(zip(_ints(again), _ints(counts), strict=True))
        return state


def _ints(column: Any) -> Sequence[int]:
    if isinstance(column, bytes):
        values = array("q")
        values.frombytes(column)
        if byteorder == "big":
            values.byteswap()
        return values
    return column  # type: ignore[no-any-return]


def _bytes(numbers: Iterable[int]) -> bytes:
    values = array("q", numbers)
    if byteorder == "big":
        values.byteswap()
    return values.tobytes()
