"""Counters: a total is the sum of the increments that were acknowledged, and of some of those that were not answered.

Each publish adds its own power of four to its subject. So a total shows which publishes are in it, and whether one of
them is in it twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Lost, Publish, StreamRecord
from tests.sim.streams.special import Special
from tests.sim.streams.usage import subject_of

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.client import Client

__all__ = ["Counters"]


class _Counter(StreamRecord):
    """The record of a counter: increments and totals. Publishes are identified by the text of their increments, not by
    a payload."""

    def record_payload(self, seq: int, payload: bytes, where: str) -> None:
        known = self.named.setdefault(seq, payload)
        if known != payload:
            raise Lost(f"{self}: sequence {seq} names two totals: {known!r}, and {where} {payload!r}")

    def added(self, publish: Publish, answer: dict[str, Any], epoch: int) -> None:
        """Record the answer to an increment."""
        if "error" in answer:
            publish.refused = True
            return
        publish.seq = seq = answer["seq"]
        self.newest_epoch = max(self.newest_epoch, epoch)
        self.high = max(self.high, seq)
        self.record_payload(seq, b'{"val":"%b"}' % answer["val"].encode(), "a PubAck of")
        self.acked[seq] = publish
        self.acked_by[seq] = epoch


class Counters(Special):
    """The family of counters."""

    kinds = stay = kept = ("counter",)

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        return _Counter(stream_id, kind, config)

    def publish(self, record: StreamRecord, client: Client) -> None:
        assert isinstance(record, _Counter)
        ops = []
        for _ in range(self.rng.choice((1, 1, 3, 8))):
            subject = subject_of(record.kind, self.rng).encode()
            increment = b"%d" % (4 ** len(record.by_subject[subject]))
            publish = Publish(subject, subject + b" " + increment, self.world.clock.now_ns())
            record.send(publish)
            reply = client.requests.reply(lambda answer, publish=publish: self._added(record, publish, answer, client))
            block = b"NATS/1.0\r\nNats-Incr: %b\r\n\r\n" % increment
            ops.append((subject, reply, len(block), block))
        client.requests.route(ops)

    def _added(self, record: _Counter, publish: Publish, answer: dict[str, Any], client: Client) -> None:
        record.added(publish, answer, client.process.epoch)
        self.world.counts["incremented"] += "error" not in answer

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        totals: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for seq, message in sorted(messages.items()):
            totals[message.subject].append((seq, int(json.loads(message.payload)["val"])))
        for subject, of_subject in totals.items():
            publishes, before = record.by_subject[subject], 0
            for seq, total in of_subject:
                added = total - before
                before = total
                place = added.bit_length() // 2
                if added != 4 ** place or place >= len(publishes):
                    raise Lost(f"{record}: {seq} adds {added} to the total of {subject!r}")
                publish = publishes[place]
                if publish.refused or publish.seq not in (0, seq) or record.acked.get(seq, publish) is not publish:
                    raise Lost(f"{record}: {seq} adds an increment that became {publish.seq}, or was refused: "
                               f"{publish.refused}")
                publish.seq = seq
                record.acked[seq] = publish
