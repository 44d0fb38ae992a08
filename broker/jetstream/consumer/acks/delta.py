"""What the store does not know yet of one consumer's ack state: the body of its next CONSUMER_STATE record.

    add    seq, consumer seq, time     pending, and new or delivered again; consumer seq 0: acked ahead of `delivered`
    drop   seq                         neither of both any longer (apply it before ``add``)
    re     seq: count                  deliveries after the first; 0: none any more

A message delivered and acked between two records appears in none of them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from broker.jetstream.consumer.acks.pending import Flight

__all__ = ["Changes"]

_FRESH_MAX = 64
"""Flights kept for the next record before those that were acked meanwhile are let go."""


class Changes:
    """Gathered by the ack state, taken when the stream's block is sealed.

    Attributes: ``fresh`` flights that the store has not seen; ``dropped`` sequences that it may hold, and should no
        longer; ``recounted`` those whose count of redeliveries changed; ``ahead`` those newly acked ahead.
    """

    __slots__ = ("ahead", "dropped", "fresh", "recounted")

    def __init__(self) -> None:
        self.fresh: list[Flight] = []
        self.dropped: list[int] = []
        self.recounted: set[int] = set()
        self.ahead: list[int] = []

    def prune(self, floor_seq: int) -> None:
        """Let go of flights at or below the floor, when there are many."""
        fresh = self.fresh
        if len(fresh) > _FRESH_MAX and fresh[0].seqs[-1] <= floor_seq:
            self.fresh = [flight for flight in fresh if flight.seqs[-1] > floor_seq]

    def rewritten(self, replaced: Iterable[tuple[Flight, Flight]]) -> None:
        """Flights gave way to others: what was fresh of them still is."""
        fresh = set(self.fresh)
        self.fresh = [new for old, new in replaced if old in fresh]

    def take(self, pending: Mapping[int, Flight], floor_seq: int, ahead: Collection[int],
             redelivered: Mapping[int, int]) -> dict[str, Any]:
        """Members of the record's body, as the state now is; from now on the store knows them."""
        seqs: list[int] = []
        cseqs: list[int] = []
        times: list[int] = []
        for flight in self.fresh:
            flight.known = True
            if flight.seqs[-1] <= floor_seq:
                continue
            for seq, cseq in zip(flight.seqs, flight.cseqs, strict=True):
                if pending.get(seq) is flight:
                    seqs.append(seq)
                    cseqs.append(cseq)
            times += [flight.at_ns] * (len(seqs) - len(times))
        for seq in self.ahead:
            if seq in ahead:
                seqs.append(seq)
                cseqs.append(0)
                times.append(0)
        body: dict[str, Any] = {}
        if seqs:
            body["add"] = [_column(seqs), _column(cseqs), _column(times)]
        if self.dropped:
            body["drop"] = _column(self.dropped)
        if self.recounted:
            body["re"] = {seq: redelivered.get(seq, 0) for seq in sorted(self.recounted)}
        self.fresh, self.dropped, self.recounted, self.ahead = [], [], set(), []
        return body


def _column(numbers: list[int]) -> list[int] | bytes:
    """As CONSUMER_STATE records hold it: a few as they are, many as little-endian int64."""
    if len(numbers) <= 8:
        return numbers
    values = array("q", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
