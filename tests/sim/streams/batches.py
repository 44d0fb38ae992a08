"""Batches: an atomic one is stored whole and in one piece, or not at all; of a fast-ingest batch the first messages
are.

    atomic    committed at once or in two parts, abandoned, with a message left out, or with one that is refused
    fast      in one or several parts, with gaps that end it or do not, ended by a commit or not at all
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Lost, Publish, StreamRecord, error_of
from tests.sim.streams.special import Special
from tests.sim.streams.usage import subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.jetstream.bus import Msg
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.client import Client
    from tests.sim.streams.world import World

__all__ = ["Batches"]


class _Atomic:
    """An atomic batch: its messages, which belong together."""

    def __init__(self, rows: list[Publish]) -> None:
        self.rows = rows

    def refuse(self) -> None:
        for row in self.rows:
            row.refused = True

    def answered(self, record: StreamRecord, answer: dict[str, Any], epoch: int) -> None:
        """Record the answer to the commit."""
        if "error" in answer:
            for row in self.rows:
                record.pub_ack(row, answer, epoch)
            return
        count = len(self.rows)
        if answer["count"] != count:
            raise Lost(f"{record}: {answer} for a batch of {count} messages")
        for seq, row in enumerate(self.rows, answer["seq"] - count + 1):
            record.pub_ack(row, {"stream": record.name, "seq": seq}, epoch)

    def check(self, record: StreamRecord, messages: dict[int, Message], now_ns: int) -> None:
        """Check that all messages of the batch are there if any was seen. Raises: Lost."""
        firsts = {row.seq - at for at, row in enumerate(self.rows) if row.seq}
        if len(firsts) > 1:
            raise Lost(f"{record}: the batch {self.rows} is in pieces: {[row.seq for row in self.rows]}")
        for first in firsts:
            for seq, row in enumerate(self.rows, first):
                if row.seq:
                    record.acked[seq] = row
                elif not record.may_be_gone(seq, row.subject, now_ns):
                    raise Lost(f"{record}: of the batch {self.rows} from {first} on {row} is missing")


class _Fast:
    """A fast-ingest batch: its messages by their places."""

    def __init__(self, gap_ok: bool) -> None:
        self.gap_ok = gap_ok
        self.rows: dict[int, Publish] = {}
        self.stored = 0
        """All messages up to this place are stored, as an answer stated."""

    def answered(self, record: StreamRecord, place: int, answer: dict[str, Any]) -> None:
        """Record an answer to the message at ``place``."""
        if answer.get("type") == "ack":
            self.stored = max(self.stored, answer["seq"])
        elif answer.get("type") == "err":
            self.rows[answer["seq"]].refused = True
        elif answer.get("type") == "gap":
            pass
        elif "error" in answer:
            if place in self.rows:
                self.rows[place].refused = True
        else:
            self.stored = max(self.stored, answer["count"])
            last = self.rows.get(answer["count"])
            if last is not None and not last.refused:
                record.record_payload(answer["seq"], last.payload, "the end of a batch:")

    def check(self, record: StreamRecord, messages: dict[int, Message], now_ns: int) -> None:
        """Check that the batch's messages are in order, and that none before them is missing. Raises: Lost."""
        places = [place for place, row in self.rows.items() if row.seq]
        seqs = [self.rows[place].seq for place in places]
        if seqs != sorted(seqs):
            raise Lost(f"{record}: the batch {self.rows} has its messages at {seqs}")
        for place, row in self.rows.items():
            if row.seq:
                record.acked[row.seq] = row
            elif not row.refused and (place <= self.stored or (not self.gap_ok and place < max(places, default=0))):
                raise Lost(f"{record}: of a batch that has {places}, and was stored up to {self.stored}, {row} is "
                           "missing")


class Batches(Special):
    """The family of atomic and fast-ingest streams."""

    kinds = ("atomic", "fast")
    stay = kept = ("fast",)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._batches: dict[int, list[_Atomic | _Fast]] = {}
        """Batches by stream."""
        self._fast: dict[bytes, tuple[StreamRecord, _Fast]] = {}

    def publish(self, record: StreamRecord, client: Client) -> None:
        if self.rng.random() < 0.3:
            client.publish_run(record)
        elif record.kind == "atomic":
            self._publish_atomic(record, client)
        else:
            self._publish_fast(record, client)

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        for batch in self._batches.get(record.stream_id, ()):
            batch.check(record, messages, now_ns)

    def _row(self, record: StreamRecord) -> Publish:
        row = Publish(subject_of(record.kind, self.rng).encode(), b"p%d" % self.world.next_number(),
                      self.world.clock.now_ns())
        row.answers = False
        record.send(row)
        self.world.sent_to[row.payload] = record
        return row

    def _publish_atomic(self, record: StreamRecord, client: Client) -> None:
        rng = self.rng
        batch = _Atomic([self._row(record) for _ in range(rng.choice((1, 2, 4, 9)))])
        self._batches.setdefault(record.stream_id, []).append(batch)

        def answered(answer: dict[str, Any]) -> None:
            batch.answered(record, answer, client.process.epoch)
            self.world.counts["committed"] += "error" not in answer

        reply = client.requests.reply(answered)
        batch_id, ops, count = b"b%d" % self.world.next_number(), [], len(batch.rows)
        for place, row in enumerate(batch.rows, 1):
            headers = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (batch_id, place)
            if place == count:
                headers += b"Nats-Batch-Commit: 1\r\n"
            ops.append(_op(row.subject, reply if place == count else b"", headers, row.payload))
        draw = rng.random()
        if draw < 0.1:  # abandoned: the commit is missing
            del ops[-1]
            batch.refuse()
        elif draw < 0.2 and count > 2:  # a message was lost on the way
            del ops[rng.randrange(1, count - 1)]
            batch.refuse()
        elif draw < 0.3:  # the last message is refused
            row = batch.rows[-1]
            ops[-1] = _op(row.subject, reply, headers + b"Nats-Expected-Last-Msg-Id: none\r\n", row.payload)
            batch.refuse()
        self._send(client, ops, batch.refuse)

    def _publish_fast(self, record: StreamRecord, client: Client) -> None:
        rng = self.rng
        batch = _Fast(rng.random() < 0.5)
        self._batches.setdefault(record.stream_id, []).append(batch)
        batch_id = b"f%d" % self.world.next_number()
        self._fast[batch_id] = record, batch
        ops: list[Msg] = []
        count, ends = rng.choice((1, 2, 6, 15)), rng.random() < 0.8
        for place in range(1, count + 1):
            operation = 2 if place == count and ends else 0 if place == 1 else 1
            if 1 < place < count and rng.random() < 0.03:
                continue
            row = batch.rows[place] = self._row(record)
            gap = b"ok" if batch.gap_ok else b"fail"
            reply = b"_F.%b.%d.%b.%d.%d.$FI" % (batch_id, rng.choice((1, 3, 10)), gap, place, operation)
            ops.append((row.subject, reply, 0, row.payload))
        self._send(client, ops, lambda: None)

    def _send(self, client: Client, ops: list[Msg], unsent: Callable[[], None]) -> None:
        """Send at once, or in two parts: the second one only if the broker then serves."""
        rng, process = self.rng, client.process
        first = rng.randint(1, len(ops)) if ops and rng.random() < 0.4 and not self.world.calm else len(ops)
        client.requests.route(ops[:first])
        if first == len(ops):
            return

        def rest() -> None:
            if process.dead or not process.serving:
                unsent()
            else:
                client.requests.route(ops[first:])

        self.world.loop.call_later(rng.choice((0.0, 0.05, 0.5, 12.0)), rest)

    def listen(self, client: Client) -> None:
        def answered(ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
            if client.process.dead:
                return
            for subject, _, hlen, body in ops[start:end]:
                batch_id, _, _, place, _, _ = subject.removeprefix(b"_F.").split(b".")
                record, batch = self._fast[batch_id]
                self.world.note("answer", subject, body)
                self.world.run_check(batch.answered, record, int(place), error_of(body[hlen:]))

        client.process.router.subscribe(b"_F.>", answered)


def _op(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> Msg:
    block = b"NATS/1.0\r\n" + headers + b"\r\n"
    return subject, reply, len(block), block + payload
