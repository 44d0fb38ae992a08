"""A client of whichever broker serves: requests through the bus, as a connection's would come, and what it is told.

Each request carries a reply subject of its own. What is answered goes into the record of the stream that the request
was about; what is not stays open for ever, since the broker may have died before or after it did what was asked.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import ConsumerRecord, Lost, Publish, Removal, StreamRecord, error_of
from tests.sim.streams.usage import CONSUMERS, STREAMS, UPDATES, one_subject, subject_of

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["Client"]

SECOND = 1_000_000_000
NOT_AVAILABLE = frozenset((10008, 10167))
"""Errors that say nothing about the state: not now."""

Answered = Callable[[dict[str, Any]], None]


class Client:
    """What clients do to one process run of a broker, while it serves; also the ``Source`` of what they publish."""

    headers = True
    no_echo = False
    wants_no_responders = False
    pending_bytes = 0

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.rng: random.Random = world.rng
        self.open: dict[bytes, tuple[Answered, int, int]] = {}
        """By reply subject: who takes the answer; when it was asked, the newest epoch that rightfully had answered anybody,
        and the newest that had at all."""
        router = process.router
        router.subscribe(b"_R.>", self._on_answer)
        router.subscribe(b"_D.>", self._on_delivery)
        router.subscribe(b"_P.>", self._on_delivery)

    # As a Source.

    def identity(self) -> dict[str, Any]:
        return {"name": "client"}

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...
    def refuse_publish(self, subject: bytes) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def _strike(self, probability: float) -> None:
        """What was just said depends on the store: now is the moment to see whether it is there."""
        if self.rng.random() < probability and not self.world.calm:
            self.world.loop.call_soon(self.process.strike)

    # Requests and answers.

    def request(self, subject: str, body: Any, answered: Answered, inbox: bytes = b"_R") -> None:
        """Ask the API."""
        reply = self._reply(answered, inbox)
        data = json.dumps(body).encode() if body is not None else b""
        self._route([(f"$JS.API.{subject}".encode(), reply, 0, data)])

    def _reply(self, answered: Answered, inbox: bytes = b"_R", fresh: bool = True) -> bytes:
        reply = b"%b.%d" % (inbox, self.world.number())
        # Memory's streams belong to a process run, whoever owns the shard.
        self.open[reply] = answered, self.world.answered_epoch if fresh else 0, self.world.newest_epoch
        return reply

    def _route(self, ops: list[Msg]) -> None:
        self.process.router.route(ops, 0, len(ops), self, self.world.clock.now_ns())

    def _on_answer(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        if self.process.dead:
            return
        for subject, _, hlen, body in ops[start:end]:
            waiting = self.open.pop(subject, None)
            if waiting is None:
                self.world.judged(_twice, subject, body)
                continue
            answered, since, newest = waiting
            answer = error_of(body[hlen:])
            if answer.get("error", {}).get("err_code") not in NOT_AVAILABLE:
                self.world.judged(self._fresh, since, body)
            self.world.note("answer", subject, body)
            self.world.counts["refused" if "error" in answer else "answered"] += 1
            if newest <= self.process.epoch:
                self.world.judged(answered, answer)

    def _fresh(self, since: int, what: bytes) -> None:
        """It was asked when the epoch ``since`` had answered somebody: an earlier one must not answer any more."""
        epoch = self.process.epoch
        if since > epoch:
            raise Lost(f"at {self.world.clock.monotonic_ns() / 1e9:.3f} {self.process.name} answers from epoch {epoch} what "
                       f"was asked after epoch {since} had answered: {what!r}")
        self.world.newest_epoch = max(self.world.newest_epoch, epoch)
        if self.world.clock.monotonic_ns() >= self.process.rightful_ns:
            self.world.answered_epoch = max(self.world.answered_epoch, epoch)

    # What is done at random.

    def something(self) -> None:
        """One operation."""
        rng, world = self.rng, self.world
        records = self._records()
        if not records or (len(records) < len(world.kinds) and rng.random() < 0.08):
            self.create(rng.choice(world.kinds))
            return
        record = rng.choice(records)
        if record.word == "asked":
            self.confirm(record)
        elif record.word == "going":
            # What is asked for now may reach the next stream of this name.
            if rng.random() < 0.2:
                self.delete(record)
            return
        draw = rng.random()
        if draw < 0.55:
            self.publish(record)
        elif draw < 0.70:
            self.pull(record)
        elif draw < 0.76:
            self.delete_msg(record)
        elif draw < 0.79:
            self.purge(record)
        elif draw < 0.87:
            self.consumer(record)
        elif draw < 0.93:
            self.get(record)
        elif draw < 0.96:
            self.info(record)
        elif draw < 0.985:
            self.update(record)
        elif draw < 0.993:
            self.delete(record)

    def _records(self) -> list[StreamRecord]:
        """Of the streams that this broker has now."""
        found = []
        for stream in self.process.streams().values():
            record = self.world.records.get(stream.stream_id)
            if record is None:
                # Whoever asked for it was not answered; it is there all the same.
                record = self.world.appeared(self.process, stream)
            found.append(record)
        return found

    # Streams.

    def create(self, kind: str) -> None:
        config = self._new(kind)

        def answered(answer: dict[str, Any]) -> None:
            for record in self.world.records.values():
                if "error" not in answer and record.life == _life(answer) and record.word == "asked":
                    record.word = "made"

        if kind not in self.process.streams():
            self.request(f"STREAM.CREATE.{kind}", config, answered)

    def _new(self, kind: str) -> dict[str, Any]:
        """A configuration that tells this incarnation from the others of its name."""
        return {"name": kind, **STREAMS[kind], "metadata": {"life": str(self.world.number())}}

    def confirm(self, record: StreamRecord) -> None:
        """It is there, and nobody was told: ask."""
        def answered(answer: dict[str, Any]) -> None:
            if "error" not in answer and record.word == "asked" and record.life == _life(answer):
                record.word = "made"

        self.request(f"STREAM.INFO.{record.name}", None, answered)

    def update(self, record: StreamRecord) -> None:
        changes = UPDATES.get(record.kind)
        if not changes or not self.world.settings_change:
            return
        config = {**record.configs[0], **self.rng.choice(changes)}
        record.configs.append(config)
        record.config = None
        record.updates += 1

        def answered(answer: dict[str, Any]) -> None:
            record.updates -= 1
            if "error" in answer:
                if answer["error"]["err_code"] not in NOT_AVAILABLE:
                    record.configs.remove(config)
            elif not record.updates:
                record.config = config
            self._strike(0.3)

        self.request(f"STREAM.UPDATE.{record.name}", config, answered)

    def delete(self, record: StreamRecord, then: Callable[[], object] | None = None) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "error" not in answer:
                record.word = "gone"
                if then is not None:
                    then()

        record.word = "going"
        self.request(f"STREAM.DELETE.{record.name}", None, answered)
        if self.rng.random() < 0.7:
            # Behind it in the same lane: one name, two incarnations.
            self.request(f"STREAM.CREATE.{record.name}", self._new(record.kind), lambda _: None)

    def info(self, record: StreamRecord) -> None:
        """Ask for the stream's state; its answer waits until what it shows is stored."""
        word = record.word

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                if answer["error"]["err_code"] == 10059 and word == record.word == "made" and not record.memory:
                    raise Lost(f"{record} was not found")
                return
            state = answer["state"]
            if record.life != _life(answer):
                return
            if record.word == "made":
                record.stored.update(mine)
            if state["last_seq"] < high and record.word == "made" and not record.asynchronous:
                raise Lost(f"{record} ends at {state['last_seq']}, {high} was acknowledged before")

        high = record.high
        epoch = self.process.epoch
        mine = [seq for seq, by in record.acked_by.items() if by == epoch] if record.asynchronous else []
        self.request(f"STREAM.INFO.{record.name}", {"subjects_filter": ">"}, answered)

    # Messages.

    def publish(self, record: StreamRecord) -> None:
        """A run of messages, as one read of a connection brings it."""
        rng, ops = self.rng, []
        kind = record.kind
        if kind == "audit":
            return
        for _ in range(rng.choice((1, 1, 3, 8))):
            number = self.world.number()
            message = Publish(subject_of(kind, rng).encode(), b"p%d" % number, self.world.clock.now_ns())
            headers = self._headers(record, message, number)
            block = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n" if headers else b""
            record.send(message)
            self.world.sent_to[message.payload] = record
            inbox = b"echo.ack" if kind == "echo" and rng.random() < 0.5 else b"_R"
            if inbox == b"_R":
                reply = self._reply(lambda answer, message=message: self._published(record, message, answer),
                                    fresh=not record.memory)
            else:
                message.answers = False
                reply = b"%b.%d" % (inbox, number)
            ops.append((message.subject, reply, len(block), block + message.payload))
        self._route(ops)

    def _published(self, record: StreamRecord, message: Publish, answer: dict[str, Any]) -> None:
        if answer.get("error", {}).get("err_code") == 10167:
            message.refused = True
            return
        record.pub_ack(message, answer, self.process.epoch)
        if answer.get("duplicate"):
            self._strike(0.2)
        self.world.counts["duplicate" if answer.get("duplicate") else "acked"] += "error" not in answer

    def _headers(self, record: StreamRecord, message: Publish, number: int) -> list[tuple[bytes, bytes]]:
        rng, headers = self.rng, []
        if STREAMS[record.kind].get("duplicate_window", 0) >= 3600 * SECOND and rng.random() < 0.3:
            message.msg_id = b"i%d" % number
            if record.used_ids and rng.random() < 0.4:
                # A publisher that was not answered in time sends again.
                message.msg_id = rng.choice(record.used_ids[-3:] if rng.random() < 0.6 else record.used_ids)
            record.used_ids.append(message.msg_id)
            headers.append((b"Nats-Msg-Id", message.msg_id))
        if STREAMS[record.kind].get("allow_rollup_hdrs") and rng.random() < 0.05:
            message.rollup = rng.choice(("sub", "sub", "all"))
            headers.append((b"Nats-Rollup", message.rollup.encode()))
        draw = rng.random()
        if draw < 0.04:
            message.expected_last = record.high + rng.choice((0, 0, 1))
            headers.append((b"Nats-Expected-Last-Sequence", b"%d" % message.expected_last))
        elif draw < (0.3 if record.kind == "kv" else 0.08):
            known = max((p.seq for p in record.by_subject[message.subject]), default=0)
            message.expected_subject = known
            headers.append((b"Nats-Expected-Last-Subject-Sequence", b"%d" % known))
        return headers

    def delete_msg(self, record: StreamRecord) -> None:
        if not record.named:
            return
        seq = self.rng.choice(sorted(record.named)[-20:])
        removal = record.remove(Removal(seqs=frozenset((seq,))))
        self.request(f"STREAM.MSG.DELETE.{record.name}", {"seq": seq}, self._removes(record, removal))

    def purge(self, record: StreamRecord) -> None:
        rng = self.rng
        body: dict[str, Any] = {}
        if record.kind not in ("audit",) and rng.random() < 0.6:
            body["filter"] = subject_of(record.kind, rng)
        high, draw = record.high, rng.random()
        below = None
        if draw < 0.3 and high:
            low = min(record.named, default=high)
            below = body["seq"] = rng.randint(low, high + 3)
        elif draw < 0.36 and self.world.edges:
            below = body["seq"] = (1 << 64) - rng.choice((1, 2, 300))
        elif draw < 0.55:
            body["keep"] = rng.randint(1, 5)
        certain = 0 if "keep" in body else high if below is None else min(high, below - 1)
        removal = record.remove(Removal(body.get("filter", "").encode(), below, certain))
        self.request(f"STREAM.PURGE.{record.name}", body, self._removes(record, removal))

    def _removes(self, record: StreamRecord, removal: Removal) -> Answered:
        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                # Not available: the request may have failed half-way, and what it took stays taken.
                if answer["error"]["err_code"] not in NOT_AVAILABLE:
                    record.withdraw(removal)
            elif record.word == "made":
                removal.answered = True
        return answered

    def get(self, record: StreamRecord) -> None:
        """Read one message by its sequence, or the last of a subject."""
        now_ns = self.world.clock.now_ns()
        if self.rng.random() < 0.5 and record.named:
            seq = self.rng.choice(sorted(record.named)[-20:])
            publish = record.acked.get(seq)
            wanted = publish is not None and not record.asynchronous and record.word == "made"

            def answered(answer: dict[str, Any]) -> None:
                if "error" not in answer:
                    self._read(record, answer)
                elif (answer["error"]["err_code"] == 10037 and wanted and publish is not None and not record.memory
                        and not record.may_be_gone(seq, publish.subject, self.world.clock.now_ns())
                        and record.word == "made"):
                    raise Lost(f"{record}: {seq}, acknowledged {publish}, was not found")

            self.request(f"STREAM.MSG.GET.{record.name}", {"seq": seq}, answered)
            return
        subject = subject_of(record.kind, self.rng)
        # What was acknowledged before it was asked must be seen: the last one or a later one.
        last = max((seq for seq, p in record.acked.items() if p.subject == subject.encode()
                    and not record.may_be_gone(seq, p.subject, now_ns)), default=0)
        word = record.word

        def last_found(answer: dict[str, Any]) -> None:
            if word != "made" or record.word != "made":
                return
            if "error" not in answer:
                self._read(record, answer)
            found = answer.get("message", {}).get("seq", 0)
            certain = last and not record.may_be_gone(last, subject.encode(), self.world.clock.now_ns())
            if found < last and certain and answer.get("error", {}).get("err_code", 10037) == 10037 and not (
                    record.asynchronous or record.memory):
                raise Lost(f"{record}: the last of {subject} is {found}, {last} was acknowledged before")

        self.request(f"STREAM.MSG.GET.{record.name}", {"last_by_subj": subject}, last_found)

    def _read(self, record: StreamRecord, answer: dict[str, Any]) -> None:
        if record.word != "made":
            return
        message = answer["message"]
        record.names(message["seq"], base64.b64decode(message.get("data", "")), "a client's")
        self.world.counts["read"] += 1

    # Consumers.

    def consumer(self, record: StreamRecord) -> None:
        """Make one, remove one, or look at one."""
        rng = self.rng
        name = rng.choice(self.world.consumers)
        known = record.consumers.get(name)
        if known is None:
            self._create_consumer(record, name)
        elif rng.random() < 0.15:
            del record.consumers[name]
            self.request(f"CONSUMER.DELETE.{record.name}.{name}", None, lambda _: None)
        else:
            self.look_at(record, known)

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
        word = record.word

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer or word != "made" or record.word != "made" or name in record.consumers:
                return
            record.consumers[name] = ConsumerRecord(name, answer["config"])

        self.request(f"CONSUMER.DURABLE.CREATE.{record.name}.{name}", {"stream_name": record.name, "config": config},
                     answered)

    def look_at(self, record: StreamRecord, consumer: ConsumerRecord,
                then: Callable[[dict[str, Any]], object] | None = None) -> None:
        """CONSUMER.INFO: the answer waits until what was delivered so far is stored."""
        counts = dict(consumer.served_by(self.process.epoch))
        delivered = max(counts, default=0)

        def answered(answer: dict[str, Any]) -> None:
            if record.consumers.get(consumer.name) is not consumer or record.word != "made":
                return
            if "error" in answer:
                if answer["error"]["err_code"] == 10014:
                    raise Lost(f"{record}: consumer {consumer.name} was not found")
                return
            if answer["delivered"]["stream_seq"] < delivered:
                raise Lost(f"{record}: consumer {consumer.name} shows {answer}, {delivered} was delivered before")
            if not (record.memory or record.asynchronous):
                consumer.keeps(counts, delivered)
                self._strike(0.05)
            if then is not None:
                then(answer)

        self.request(f"CONSUMER.INFO.{record.name}.{consumer.name}", None, answered)

    def pull(self, record: StreamRecord) -> None:
        """Ask a consumer for messages."""
        names = [name for name, consumer in record.consumers.items() if "deliver_subject" not in consumer.config]
        if names:
            self.pull_from(record, self.rng.choice(names), self.rng.choice((1, 5, 20)))

    def pull_from(self, record: StreamRecord, name: str, batch: int) -> None:
        reply = b"_D.%d" % self.world.number()
        body = json.dumps({"batch": batch, "expires": 2 * SECOND}).encode()
        self._route([(f"$JS.API.CONSUMER.MSG.NEXT.{record.name}.{name}".encode(), reply, 0, body)])

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
            record, certain = self._told_of(name, body[hlen:])
            if record is None or not record.memory:
                self.world.judged(self._fresh, self.world.answered_epoch, body)
            consumer = None
            if record is not None and certain:
                self.world.judged(record.names, seq, body[hlen:], "a delivery's")
            if record is not None:
                record.seen[consumer_name].add(seq)
            if record is not None and record.word == "made" and certain:
                consumer = record.consumers.get(consumer_name)
            if record is None or consumer is None:
                self.world.loop.call_soon(self._say, reply, b"", b"+ACK")
            else:
                self.world.judged(consumer.delivered, seq, count, self.process.epoch)
                self._ack(record, consumer, reply, seq)

    def _told_of(self, name: str, payload: bytes) -> tuple[StreamRecord | None, bool]:
        """Which stream a delivery is from, and whether that is certain.

        Its subject has the name alone, which a younger one may bear by now; and what the broker itself said may have been
        said to several.
        """
        stream = self.process.js.accounts["$G"].streams.get(name)
        if stream is None:
            return None, False
        record = self.world.records.get(stream.stream_id) or self.world.appeared(self.process, stream)
        sent_to = self.world.sent_to.get(payload)
        if sent_to is None:
            return record, sum(1 for other in self.world.records.values() if other.name == name) == 1
        return (record, True) if sent_to is record else (None, False)

    def _ack(self, record: StreamRecord, consumer: ConsumerRecord, subject: bytes, seq: int) -> None:
        """Answer a delivery, a moment later, in one of the ways there are."""
        draw, reply = self.rng.random(), b""
        body = b"+ACK"
        if self.world.calm:
            pass
        elif draw < 0.30:
            covered = [seq]
            if consumer.config["ack_policy"] == "all":
                covered = [s for s in consumer.counts if s <= seq]

            def answered(_: dict[str, Any]) -> None:
                # An async stream answers for acks, too, before they are stored.
                if not (record.memory or record.asynchronous):
                    consumer.acked.update(covered)

            if consumer.config["ack_policy"] in ("explicit", "all"):
                reply = self._reply(answered)
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
        self.world.loop.call_soon(self._say, subject, reply, body)

    def _say(self, subject: bytes, reply: bytes, body: bytes) -> None:
        if not self.process.dead and self.process.serving:
            self._route([(subject, reply, 0, body)])


def _twice(subject: bytes, body: bytes) -> None:
    raise Lost(f"a second answer: {subject!r} {body!r}")


def _life(answer: dict[str, Any]) -> str:
    """Which incarnation an answer is about."""
    life: str = answer["config"]["metadata"]["life"]
    return life
