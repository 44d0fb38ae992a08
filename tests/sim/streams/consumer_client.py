"""The operations of clients on consumers: create, inspect, pull, and answer deliveries."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import ConsumerRecord, Lost, Removal, StreamRecord
from tests.sim.streams.requests import SECOND, Requests
from tests.sim.streams.usage import CONSUMERS, STREAMS, one_subject

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg

__all__ = ["ConsumerClient"]


class ConsumerClient:
    """The operations of clients on the consumers of one process run of a broker, and its deliveries."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.world = requests.world
        self.process = requests.process
        self.rng = requests.rng
        router = requests.process.router
        router.subscribe(b"_D.>", self._on_delivery)
        for name in STREAMS:
            # A push consumer finds no interest in a wildcard that does not name its subject.
            router.subscribe(b"_P.%b" % name.encode(), self._on_delivery)

    def do_random_operation(self, record: StreamRecord) -> None:
        """Create, delete or inspect a consumer."""
        rng = self.rng
        name = rng.choice(self.world.consumers)
        known = record.consumers.get(name)
        if known is None:
            self._create_consumer(record, name)
        elif rng.random() < 0.15:
            del record.consumers[name]
            record.consumer_ends[name] += 1
            self.requests.request(f"CONSUMER.DELETE.{record.name}.{name}", None, lambda _: None)
        else:
            self.inspect(record, known)

    def _create_consumer(self, record: StreamRecord, name: str) -> None:
        given = dict(CONSUMERS[name])
        if record.kind == "audit":
            given.pop("filtered", None)
        if given.pop("filtered", False) or given.pop("wild", False):
            wild = given.get("deliver_policy") == "last_per_subject"
            given["filter_subject"] = ">" if wild else one_subject(record.kind)
        config = {"durable_name": name, **given}
        if "deliver_subject" in config:
            config["deliver_subject"] = config["deliver_subject"].format(stream=record.name)
        status, ends = record.status, record.consumer_ends[name]

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer or status != "made" or record.status != "made" or name in record.consumers:
                return
            if ends != record.consumer_ends[name]:
                return  # A deletion was requested after this request.
            record.consumers[name] = ConsumerRecord(name, answer["config"], self.world.clock.now_ns())

        self.requests.request(f"CONSUMER.DURABLE.CREATE.{record.name}.{name}",
                              {"stream_name": record.name, "config": config}, answered)

    def inspect(self, record: StreamRecord, consumer: ConsumerRecord,
                then: Callable[[dict[str, Any]], object] | None = None) -> None:
        """Request CONSUMER.INFO: the answer waits until the deliveries so far are stored."""
        counts = dict(consumer.served_by(self.process.epoch))
        delivered = max(counts, default=0)

        def answered(answer: dict[str, Any]) -> None:
            if record.consumers.get(consumer.name) is not consumer or record.status != "made":
                return
            if "error" in answer:
                if answer["error"]["err_code"] == 10014:
                    raise Lost(f"{record}: consumer {consumer.name} was not found")
                return
            if answer["delivered"]["stream_seq"] < delivered:
                raise Lost(f"{record}: consumer {consumer.name} shows {answer}, {delivered} was delivered before")
            if not (record.memory or record.asynchronous):
                consumer.record_stored(counts, delivered)
                self.requests.maybe_kill(0.05)
            if then is not None:
                then(answer)

        self.requests.request(f"CONSUMER.INFO.{record.name}.{consumer.name}", None, answered)

    def pull(self, record: StreamRecord) -> None:
        """Send a pull request to a consumer."""
        names = [name for name, consumer in record.consumers.items() if "deliver_subject" not in consumer.config]
        if names:
            self.pull_from(record, self.rng.choice(names), self.rng.choice((1, 5, 20)))

    def pull_from(self, record: StreamRecord, name: str, batch: int) -> None:
        reply = b"_D.%d" % self.world.next_number()
        body = json.dumps({"batch": batch, "expires": 2 * SECOND}).encode()
        self.requests.route([(f"$JS.API.CONSUMER.MSG.NEXT.{record.name}.{name}".encode(), reply, 0, body)])

    def _on_delivery(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        if self.process.dead:
            return
        for _, reply, hlen, body in ops[start:end]:
            if not reply.startswith(b"$JS.ACK."):
                continue  # a status: no messages, request timeout, …
            tokens = reply.decode().split(".")
            name, consumer_name, count, seq = tokens[2], tokens[3], int(tokens[4]), int(tokens[5])
            self.world.note("delivery", reply, body)
            self.world.counts["delivered"] += 1
            record, certain = self._stream_of(name, body[hlen:])
            if record is None or not record.memory:
                self.world.run_check(self.requests.check_fresh, self.world.answered_epoch, body)
            consumer = None
            if record is not None and certain:
                self.world.run_check(record.record_payload, seq, body[hlen:], "a delivery of")
            if record is not None:
                record.seen[consumer_name].add(seq)
            if record is not None and record.status == "made" and certain:
                consumer = record.consumers.get(consumer_name)
            if record is None or consumer is None:
                if record is not None:
                    record.answered[consumer_name].add(seq)
                self.world.loop.call_soon(self._send, reply, b"", b"+ACK")
            else:
                self.world.run_check(consumer.delivered, seq, count, self.process.epoch)
                self._ack(record, consumer, reply, seq)

    def _stream_of(self, name: str, payload: bytes) -> tuple[StreamRecord | None, bool]:
        """Return the record of the stream that a delivery is from, and whether that is certain.

        Its subject has only the name, which a younger stream may have by now. A message of the broker itself may have
        gone to
        several streams.
        """
        stream = self.process.js.accounts["$G"].streams.get(name)
        if stream is None:
            return None, False
        record = self.world.records.get(stream.stream_id) or self.world.stream_appeared(self.process, stream)
        sent_to = self.world.sent_to.get(payload)
        if sent_to is None or record.kind in self.world.specials:
            return record, sum(1 for other in self.world.records.values() if other.name == name) == 1
        return (record, True) if sent_to is record else (None, False)

    def _ack(self, record: StreamRecord, consumer: ConsumerRecord, subject: bytes, seq: int) -> None:
        """Answer a delivery a moment later, in one of the possible ways."""
        draw, reply = self.rng.random(), b""
        body = b"+ACK"
        if self.world.calm or draw < 0.55 or 0.75 <= draw < 0.77 or consumer.config["ack_policy"] == "none":
            record.answered[consumer.name].add(seq)
        if self.world.calm:
            pass
        elif draw < 0.30:
            covered = [seq]
            if consumer.config["ack_policy"] == "all":
                covered = [s for s in consumer.counts if s <= seq]

            def answered(_: dict[str, Any]) -> None:
                # An async stream answers acks, too, before they are stored.
                if not (record.memory or record.asynchronous):
                    consumer.acked.update(covered)
                if record.kind == "queue":
                    record.remove(Removal(seqs=frozenset(covered))).answered = True

            if consumer.config["ack_policy"] in ("explicit", "all"):
                reply = self.requests.reply(answered)
        elif draw < 0.55:
            pass
        elif draw < 0.75:
            body = b"-NAK"
        elif draw < 0.77:
            body = b"+TERM"
        elif draw < 0.79:
            body = b"+WPI"
        else:
            return
        self.world.loop.call_soon(self._send, subject, reply, body)

    def _send(self, subject: bytes, reply: bytes, body: bytes) -> None:
        if not self.process.dead and self.process.serving:
            self.requests.route([(subject, reply, 0, body)])
