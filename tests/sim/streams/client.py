"""A client of the broker that serves: requests through the bus, as from a connection, and their answers.

Each request has its own reply subject. Its answer is recorded for the stream of the request. A request without an
answer stays open for ever, since the broker may have died before or after it carried the request out.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.streams.consumer_client import ConsumerClient
from tests.sim.streams.record import Lost, Publish, Removal, StreamRecord
from tests.sim.streams.requests import NOT_AVAILABLE, SECOND, Answered, Requests
from tests.sim.streams.usage import STREAMS, UPDATES, subject_of

if TYPE_CHECKING:
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["Client"]


class Client:
    """The operations of clients on one process run of a broker, while it serves."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.rng: random.Random = world.rng
        self.requests = Requests(world, process)
        self.consumers = ConsumerClient(self.requests)
        for special in dict.fromkeys(world.specials.values()):
            special.listen(self)

    # Random operations.

    def do_random_operation(self) -> None:
        """Perform one operation."""
        rng, world = self.rng, self.world
        records = self._records()
        if not records or (len(records) < len(world.kinds) and rng.random() < 0.08):
            self.create(rng.choice(world.kinds))
            return
        record = rng.choice(records)
        if record.status == "asked":
            self.confirm(record)
        elif record.status == "going":
            # A request sent now may reach the next stream of this name.
            if rng.random() < 0.2:
                self.delete(record)
            return
        draw = rng.random()
        special = world.specials.get(record.kind)
        kept = special is not None and record.kind in special.kept
        if (kept and 0.70 <= draw < 0.79) or (special is not None and record.kind in special.stay and draw >= 0.985):
            draw = 0.5
        if self.world.staging is not None and not kept and record.kind not in ("audit", "memory") and draw < 0.12:
            self.world.staging.stage(record, self.requests)
        elif draw < 0.55:
            self.publish(record)
        elif draw < 0.70:
            self.consumers.pull(record)
        elif draw < 0.76:
            self.delete_msg(record)
        elif draw < 0.79:
            self.purge(record)
        elif draw < 0.87:
            self.consumers.do_random_operation(record)
        elif draw < 0.93:
            self.get(record)
        elif draw < 0.96:
            self.info(record)
        elif draw < 0.985:
            self.update(record)
        elif draw < 0.993:
            self.delete(record)

    def _records(self) -> list[StreamRecord]:
        """Return the records of the streams that this broker has now."""
        found = []
        for stream in self.process.streams().values():
            record = self.world.records.get(stream.stream_id)
            if record is None:
                # The request to create the stream was not answered, but the stream exists.
                record = self.world.stream_appeared(self.process, stream)
            found.append(record)
        return found

    # Streams.

    def create(self, kind: str) -> None:
        config = self._new(kind)

        def answered(answer: dict[str, Any]) -> None:
            for record in self.world.records.values():
                if "error" not in answer and record.life == _life(answer) and record.status == "asked":
                    record.status = "made"

        if kind not in self.process.streams():
            self.requests.request(f"STREAM.CREATE.{kind}", config, answered)

    def _new(self, kind: str) -> dict[str, Any]:
        """Return a configuration that distinguishes this incarnation from others of its name."""
        return {"name": kind, **STREAMS[kind], "metadata": {"life": str(self.world.next_number())}}

    def confirm(self, record: StreamRecord) -> None:
        """Ask whether the stream exists, because its creation was not answered."""
        def answered(answer: dict[str, Any]) -> None:
            if "error" not in answer and record.status == "asked" and record.life == _life(answer):
                record.status = "made"

        self.requests.request(f"STREAM.INFO.{record.name}", None, answered)

    def update(self, record: StreamRecord) -> None:
        changes = UPDATES.get(record.kind)
        if not changes or not self.world.settings_change:
            return
        config = {**record.configs[0], **self.rng.choice(changes)}
        record.configs.append(config)
        record.config = None
        record.updates += 1
        record.updates_asked = number = record.updates_asked + 1

        def answered(answer: dict[str, Any]) -> None:
            record.updates -= 1
            if "error" in answer:
                if answer["error"]["err_code"] not in NOT_AVAILABLE:
                    record.configs.remove(config)
                else:
                    record.updates_uncertain = record.updates_asked
            elif not record.updates and number > record.updates_uncertain:
                record.config = config
            self.requests.maybe_kill(0.3)

        self.requests.request(f"STREAM.UPDATE.{record.name}", config, answered)

    def delete(self, record: StreamRecord, then: Callable[[], object] | None = None) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "error" not in answer:
                record.status = "gone"
                if then is not None:
                    then()

        record.status = "going"
        self.requests.request(f"STREAM.DELETE.{record.name}", None, answered)
        if self.rng.random() < 0.7:
            # The request follows in the same lane, so that one name has two incarnations.
            self.requests.request(f"STREAM.CREATE.{record.name}", self._new(record.kind), lambda _: None)

    def info(self, record: StreamRecord) -> None:
        """Ask for the stream's state; the answer waits until that state is stored."""
        status = record.status

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                if answer["error"]["err_code"] == 10059 and status == record.status == "made" and not record.memory:
                    raise Lost(f"{record} was not found")
                return
            state = answer["state"]
            if record.life != _life(answer):
                return
            if record.status == "made":
                record.stored.update(mine)
            if state["last_seq"] < high and record.status == "made" and not record.asynchronous:
                raise Lost(f"{record} ends at {state['last_seq']}, {high} was acknowledged before")

        high = record.high
        epoch = self.process.epoch
        mine = [seq for seq, by in record.acked_by.items() if by == epoch] if record.asynchronous else []
        self.requests.request(f"STREAM.INFO.{record.name}", {"subjects_filter": ">"}, answered)

    # Messages.

    def publish(self, record: StreamRecord) -> None:
        """Publish in the way of the stream's kind."""
        special = self.world.specials.get(record.kind)
        if special is not None:
            special.publish(record, self)
        else:
            self.publish_run(record)

    def publish_run(self, record: StreamRecord) -> None:
        """Publish a run of messages, as one read of a connection brings them."""
        rng, ops = self.rng, []
        kind = record.kind
        if kind == "audit":
            return
        for _ in range(rng.choice((1, 1, 3, 8))):
            number = self.world.next_number()
            message = Publish(subject_of(kind, rng).encode(), b"p%d" % number, self.world.clock.now_ns())
            headers = self._headers(record, message, number)
            block = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n" if headers else b""
            record.send(message)
            self.world.sent_to[message.payload] = record
            inbox = b"echo.ack" if kind == "echo" and rng.random() < 0.5 else b"_R"
            if inbox == b"_R":
                reply = self.requests.reply(lambda answer, message=message: self.published(record, message, answer),
                                            fresh=not record.memory)
            else:
                message.answers = False
                reply = b"%b.%d" % (inbox, number)
            ops.append((message.subject, reply, len(block), block + message.payload))
        self.requests.route(ops)

    def published(self, record: StreamRecord, message: Publish, answer: dict[str, Any]) -> None:
        if answer.get("error", {}).get("err_code") == 10167:
            message.refused = True
            return
        record.pub_ack(message, answer, self.process.epoch)
        if answer.get("duplicate"):
            self.requests.maybe_kill(0.2)
        self.world.counts["duplicate" if answer.get("duplicate") else "acked"] += "error" not in answer

    def _headers(self, record: StreamRecord, message: Publish, number: int) -> list[tuple[bytes, bytes]]:
        rng, headers = self.rng, []
        if STREAMS[record.kind].get("duplicate_window", 0) >= 3600 * SECOND and rng.random() < 0.3:
            message.msg_id = b"i%d" % number
            if record.used_ids and rng.random() < 0.4:
                # A publisher that was not answered in time sends the message again.
                message.msg_id = rng.choice(record.used_ids[-3:] if rng.random() < 0.6 else record.used_ids)
            record.used_ids.append(message.msg_id)
            headers.append((b"Nats-Msg-Id", message.msg_id))
        if STREAMS[record.kind].get("allow_rollup_hdrs") and rng.random() < 0.05:
            message.rollup = rng.choice(("sub", "sub", "all"))
            headers.append((b"Nats-Rollup", message.rollup.encode()))
        if (special := self.world.specials.get(record.kind)) is not None:
            headers += special.headers(record, message)
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
        self.requests.request(f"STREAM.MSG.DELETE.{record.name}", {"seq": seq}, self._on_removed(record, removal))

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
        self.requests.request(f"STREAM.PURGE.{record.name}", body, self._on_removed(record, removal))

    def _on_removed(self, record: StreamRecord, removal: Removal) -> Answered:
        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                # Not available: the request may have failed half-way, and what it removed stays removed.
                if answer["error"]["err_code"] not in NOT_AVAILABLE:
                    record.withdraw(removal)
            elif record.status == "made":
                removal.answered = True
        return answered

    def get(self, record: StreamRecord) -> None:
        """Read one message by its sequence, or the last of a subject."""
        now_ns = self.world.clock.now_ns()
        if self.rng.random() < 0.5 and record.named:
            seq = self.rng.choice(sorted(record.named)[-20:])
            publish = record.acked.get(seq)
            wanted = publish is not None and not record.asynchronous and record.status == "made"

            def answered(answer: dict[str, Any]) -> None:
                if "error" not in answer:
                    self._read(record, answer)
                elif (answer["error"]["err_code"] == 10037 and wanted and publish is not None and not record.memory
                        and not record.may_be_gone(seq, publish.subject, self.world.clock.now_ns())
                        and record.status == "made"):
                    raise Lost(f"{record}: {seq}, acknowledged {publish}, was not found")

            self.requests.request(f"STREAM.MSG.GET.{record.name}", {"seq": seq}, answered)
            return
        subject = subject_of(record.kind, self.rng)
        # A message that was acknowledged before the request must be seen: the last one or a later one.
        last = max((seq for seq, p in record.acked.items() if p.subject == subject.encode()
                    and not record.may_be_gone(seq, p.subject, now_ns)), default=0)
        status = record.status

        def last_found(answer: dict[str, Any]) -> None:
            if status != "made" or record.status != "made":
                return
            if "error" not in answer:
                self._read(record, answer)
            found = answer.get("message", {}).get("seq", 0)
            certain = last and not record.may_be_gone(last, subject.encode(), self.world.clock.now_ns())
            if found < last and certain and answer.get("error", {}).get("err_code", 10037) == 10037 and not (
                    record.asynchronous or record.memory):
                raise Lost(f"{record}: the last of {subject} is {found}, {last} was acknowledged before")

        self.requests.request(f"STREAM.MSG.GET.{record.name}", {"last_by_subj": subject}, last_found)

    def _read(self, record: StreamRecord, answer: dict[str, Any]) -> None:
        if record.status != "made":
            return
        message = answer["message"]
        record.record_payload(message["seq"], base64.b64decode(message.get("data", "")), "a client's read of")
        if (special := self.world.specials.get(record.kind)) is not None:
            special.read(record, message)
        self.world.counts["read"] += 1


def _life(answer: dict[str, Any]) -> str:
    """Return the incarnation that an answer is about."""
    life: str = answer["config"]["metadata"]["life"]
    return life
