"""Advisories and metrics of consumers, as JSON on ``$JS.EVENT.…``; built only when somebody listens.

Source: nats-server jetstream_events.go, jsm.go schemas (jetstream/advisory/v1, metric/v1).
"""

from __future__ import annotations

import random
from typing import Any

from broker.clock import Clock
from broker.jetstream import wire
from broker.jetstream.bus import Bus

__all__ = ["DELETED_REASON", "ConsumerEvents", "unique_id"]

DELETED_REASON = "Unacknowledged message was deleted"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def unique_id(rng: random.Random, length: int = 22) -> str:
    """Base-62 characters, as NUIDs are."""
    return "".join(rng.choices(_DIGITS, k=length))


class ConsumerEvents:
    """Sends the events of one consumer."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, stream: str, consumer: str) -> None:
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._stream = stream
        self._consumer = consumer
        tail = f"{stream}.{consumer}".encode()
        advisory = b"$JS.EVENT.ADVISORY.CONSUMER."
        self._nak = advisory + b"MSG_NAKED." + tail
        self._terminated = advisory + b"MSG_TERMINATED." + tail
        self._max_deliver = advisory + b"MAX_DELIVERIES." + tail
        self._pause = advisory + b"PAUSE." + tail
        self._ack = b"$JS.EVENT.METRIC.CONSUMER.ACK." + tail

    def nak(self, stream_seq: int, consumer_seq: int, deliveries: int) -> None:
        """A message was answered with -NAK."""
        self._send(self._nak, "advisory.v1.nak", consumer_seq=consumer_seq, stream_seq=stream_seq,
                   deliveries=deliveries)

    def terminated(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> None:
        """A message was answered with +TERM, or left the stream while it was pending."""
        fields: dict[str, Any] = {"consumer_seq": consumer_seq, "stream_seq": stream_seq, "deliveries": deliveries}
        if reason:
            fields["reason"] = reason
        self._send(self._terminated, "advisory.v1.terminated", **fields)

    def max_deliver(self, stream_seq: int, deliveries: int) -> None:
        """A message had its last delivery and was not acked."""
        self._send(self._max_deliver, "advisory.v1.max_deliver", stream_seq=stream_seq, deliveries=deliveries)

    def pause(self, paused: bool, pause_until_ns: int | None) -> None:
        """The consumer was paused or goes on."""
        until = wire.ZERO_TIME if pause_until_ns is None else wire.format_time(pause_until_ns)
        self._send(self._pause, "advisory.v1.consumer_pause", paused=paused, pause_until=until)

    def sampled_ack(self, stream_seq: int, consumer_seq: int, delay_ns: int, deliveries: int) -> None:
        """A message was acked and drawn for the sample."""
        self._send(self._ack, "metric.v1.consumer_ack", consumer_seq=consumer_seq, stream_seq=stream_seq,
                   ack_time=delay_ns, deliveries=deliveries)

    def wants_acks(self) -> bool:
        return self._bus.interest(self._ack)

    def _send(self, subject: bytes, kind: str, **fields: Any) -> None:
        if not self._bus.interest(subject):
            return
        event = {"type": f"io.nats.jetstream.{kind}", "id": unique_id(self._rng),
                 "timestamp": wire.format_time(self._clock.now_ns()), "stream": self._stream,
                 "consumer": self._consumer, **fields}
        self._bus.publish(subject, b"", 0, wire.dump(event))
