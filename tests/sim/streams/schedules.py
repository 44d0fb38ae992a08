"""Message schedules: each is carried out once, not before its time, and soon after it once all faults have ended. Then
it is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Lost, Publish, StreamRecord
from tests.sim.streams.special import Special
from tests.sim.streams.until import until
from tests.sim.streams.usage import subject_of

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.client import Client
    from tests.sim.streams.process import Process

__all__ = ["Schedules"]

SECOND = 1_000_000_000
_TARGETS = b"schedule.t."


class _Scheduled(StreamRecord):
    """A stream in which a payload occurs twice: as a schedule, and as the message that it publishes."""

    def __init__(self, stream_id: int, kind: str, config: dict[str, Any]) -> None:
        super().__init__(stream_id, kind, config)
        self.carried_out: dict[bytes, int] = {}
        """Payload to the sequence that its schedule published."""

    def record_payload(self, seq: int, payload: bytes, where: str) -> None:
        known = self.named.setdefault(seq, payload)
        if known != payload:
            raise Lost(f"{self}: sequence {seq} names two messages: {known!r}, and {where} {payload!r}")
        publish = self.sent.get(payload)
        if publish is None or publish.refused:
            raise Lost(f"{self}: {where} {seq} reads {payload!r}, which nobody published, or which was refused")

    def pub_ack(self, publish: Publish, answer: dict[str, Any], epoch: int) -> None:
        if "error" not in answer:
            publish.seq = answer["seq"]
        super().pub_ack(publish, answer, epoch)


class Schedules(Special):
    """The family of scheduled streams."""

    kinds = stay = kept = ("schedule",)

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        return _Scheduled(stream_id, kind, config)

    def publish(self, record: StreamRecord, client: Client) -> None:
        ops = []
        for _ in range(self.rng.choice((1, 1, 3))):
            number, now_ns = self.world.next_number(), self.world.clock.now_ns()
            due = now_ns // SECOND + self.rng.choice((-5, 1, 2, 5, 20))
            publish = Publish(b"schedule.q.%d" % number, b"p%d" % number, now_ns)
            publish.ends_ns = due * SECOND
            record.send(publish)
            reply = client.requests.reply(lambda answer, publish=publish: client.published(record, publish, answer))
            at = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
            block = b"NATS/1.0\r\nNats-Schedule: @at %b\r\nNats-Schedule-Target: %b\r\n\r\n" % (
                at, subject_of(record.kind, self.rng).encode())
            ops.append((publish.subject, reply, len(block), block + publish.payload))
        client.requests.route(ops)

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        assert isinstance(record, _Scheduled)
        for seq, message in messages.items():
            publish = record.sent[message.payload]
            if not message.subject.startswith(_TARGETS):
                if publish.seq not in (0, seq):
                    raise Lost(f"{record}: {publish} is {publish.seq}, and {seq}")
                if message.payload in record.carried_out:
                    raise Lost(f"{record}: {publish} was carried out, as {record.carried_out[message.payload]}, and is "
                               "there")
                publish.seq = seq
                record.acked[seq] = publish
            elif record.carried_out.setdefault(message.payload, seq) != seq:
                raise Lost(f"{record}: {publish} was carried out as {record.carried_out[message.payload]}, and as "
                           f"{seq}")
            elif message.time_ns < publish.ends_ns:
                raise Lost(f"{record}: {publish} was carried out {(publish.ends_ns - message.time_ns) / 1e9:.3f} s too "
                           "early")
            elif now_ns < publish.ends_ns - record.slack_ns:
                raise Lost(f"{record}: {publish} was carried out by a clock that is wrong")
        self.world.counts["carried out"] = len(record.carried_out)
        here = {message.payload for message in messages.values()}
        for payload, seq in record.carried_out.items():
            if payload not in here:
                raise Lost(f"{record}: {seq}, which {record.sent[payload]} had published, is lost")
        for publish in record.acked.values():
            if publish.payload not in here:
                raise Lost(f"{record}: the schedule {publish} is lost, and was not carried out")

    async def check_end(self, owner: Process) -> None:
        await until(self.world, lambda: not self._late(), lambda: f"schedules are carried out: {self._late()}")

    def _late(self) -> str:
        """Return a schedule that was not carried out yet, "" for none."""
        for stream_id, messages in self.world.check_store().items():
            record = self.world.records.get(stream_id)
            for seq, message in messages.items() if isinstance(record, _Scheduled) else ():
                if not message.subject.startswith(_TARGETS):
                    return f"{record}: {seq}"
        return ""
