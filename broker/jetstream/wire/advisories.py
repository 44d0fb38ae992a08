"""JetStream's advisories and metrics, as JSON on ``$JS.EVENT.…``.

    ADVISORY.API                                            an API answer, and its client
    ADVISORY.API.LIMIT_REACHED                              requests dropped, to the system account
    ADVISORY.STREAM.CREATED   UPDATED   DELETED
    ADVISORY.STREAM.BATCH_ABANDONED                         an atomic batch was dropped
    ADVISORY.STREAM.SNAPSHOT_CREATE   SNAPSHOT_COMPLETE     a stream is, or was, backed up
    ADVISORY.STREAM.RESTORE_CREATE   RESTORE_COMPLETE       or restored
    ADVISORY.STREAM.DAMAGED                                 stored messages cannot be read (jetblock's own)
    ADVISORY.CONSUMER.CREATED   DELETED
    ADVISORY.CONSUMER.PAUSE                                 paused or resumed
    ADVISORY.CONSUMER.PINNED   UNPINNED                     the client of a priority group
    ADVISORY.CONSUMER.MSG_NAKED   MSG_TERMINATED   MAX_DELIVERIES
    METRIC.CONSUMER.ACK                                     a sampled ack

The subjects of STREAM events end with ``.<stream>``, those of CONSUMER events with ``.<stream>.<consumer>``.
No event is built without subscribers. An event that reports a change of state is sent through the log's queue, like an
answer of the API. So an advisory never names a stream that a crash would lose.

Source: nats-server jetstream_events.go, jetstream_api.go sendJetStreamAPIAuditAdvisory; jsm.go schemas
(jetstream/advisory/v1, metric/v1).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, Protocol

from broker.base.clock import Clock
from broker.base.gotime import ZERO_TIME, format_time
from broker.jetstream.bus import Bus, Source
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.ids import unique_id

__all__ = ["DELETED_REASON", "AccountEvents", "Action", "ConsumerEvents", "StreamEvents", "SystemEvents"]

DELETED_REASON = "Unacknowledged message was deleted"

Action = Literal["create", "modify", "delete"]

_API = b"$JS.EVENT.ADVISORY.API"
_STREAM = b"$JS.EVENT.ADVISORY.STREAM."
_CONSUMER = b"$JS.EVENT.ADVISORY.CONSUMER."
_VERBS: dict[Action, bytes] = {"create": b"CREATED.", "modify": b"UPDATED.", "delete": b"DELETED."}


class _Log(Protocol):
    def wait(self, fn: Callable[..., object], *args: Any) -> None: ...


class _Events:
    """Builds events and publishes them."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, domain: str) -> None:
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._domain = domain

    def _send(self, subject: bytes, kind: str, /, **fields: Any) -> None:
        if not self._bus.interest(subject):
            return
        event = {"type": f"io.nats.jetstream.{kind}", "id": unique_id(self._rng),
                 "timestamp": format_time(self._clock.now_ns()), **fields}
        if self._domain:
            event["domain"] = self._domain
        self._bus.publish(subject, b"", 0, wire.dump(event))


class SystemEvents(_Events):
    """The events of the whole server, for the system account."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, domain: str, server_name: str) -> None:
        super().__init__(bus, clock, rng, domain)
        self._server_name = server_name

    def limit_reached(self, dropped: int) -> None:
        """Report that ``dropped`` API requests were dropped, because too many waited already."""
        self._send(_API + b".LIMIT_REACHED", "advisory.v1.api_limit_reached", server=self._server_name, dropped=dropped)


class AccountEvents(_Events):
    """The events of one account: streams and consumers created or deleted, and API requests."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, domain: str, server_name: str) -> None:
        super().__init__(bus, clock, rng, domain)
        self._server_name = server_name

    def stream(self, action: Action, name: str, log: _Log) -> None:
        """Report that a stream was created, updated or deleted, after ``log`` has stored it."""
        subject = _STREAM + _VERBS[action] + name.encode()
        if self._bus.interest(subject):
            log.wait(self._stream, subject, action, name)

    def consumer(self, action: Action, stream: str, name: str, log: _Log) -> None:
        """Report that a consumer was created or deleted, after ``log`` has stored it."""
        subject = _CONSUMER + _VERBS[action] + f"{stream}.{name}".encode()
        if self._bus.interest(subject):
            log.wait(self._consumer, subject, action, stream, name)

    def snapshot(self, stream: str, state: dict[str, Any], client: dict[str, Any]) -> None:
        """Report that a client began to back a stream up."""
        self._send(_STREAM + b"SNAPSHOT_CREATE." + stream.encode(), "advisory.v1.snapshot_create", stream=stream,
                   state=state, client=client)

    def snapshot_over(self, stream: str, start_ns: int, client: dict[str, Any], error: str) -> None:
        """Report that the backup is over; ``error`` is not empty if it failed."""
        why = {"error": error} if error else {}
        self._send(_STREAM + b"SNAPSHOT_COMPLETE." + stream.encode(), "advisory.v1.snapshot_complete", stream=stream,
                   start=format_time(start_ns), end=format_time(self._clock.now_ns()), client=client, **why)

    def restore(self, stream: str, client: dict[str, Any]) -> None:
        """Report that a client began to restore a stream."""
        self._send(_STREAM + b"RESTORE_CREATE." + stream.encode(), "advisory.v1.restore_create", stream=stream,
                   client=client)

    def restore_over(self, stream: str, start_ns: int, size: int, client: dict[str, Any]) -> None:
        """Report that the restore is over, after ``size`` bytes."""
        self._send(_STREAM + b"RESTORE_COMPLETE." + stream.encode(), "advisory.v1.restore_complete", stream=stream,
                   start=format_time(start_ns), end=format_time(self._clock.now_ns()), bytes=size, client=client)

    def damaged(self, stream: str, object_: str, why: str, first_seq: int, last_seq: int) -> None:
        """Report that a stored object with messages of the stream is damaged. nats-server has no such event."""
        self._send(_STREAM + b"DAMAGED." + stream.encode(), "advisory.v1.stream_damaged", stream=stream, object=object_,
                   error=why, first_seq=first_seq, last_seq=last_seq)

    def audited(self) -> bool:
        """Return whether anybody subscribes to the audit of API requests."""
        return self._bus.interest(_API)

    def audit(self, source: Source | None, subject: str, request: bytes, answer: bytes) -> None:
        """Report an answer of the API. The request is reported without its headers, and omitted if it is empty."""
        fields: dict[str, Any] = {"server": self._server_name, "client": None if source is None else source.identity(),
                                  "subject": subject}
        if request:
            fields["request"] = request.decode("utf-8", "replace")
        self._send(_API, "advisory.v1.api_audit", **fields, response=answer.decode())

    def _stream(self, subject: bytes, action: Action, name: str) -> None:
        self._send(subject, "advisory.v1.stream_action", stream=name, action=action)

    def _consumer(self, subject: bytes, action: Action, stream: str, name: str) -> None:
        self._send(subject, "advisory.v1.consumer_action", stream=stream, consumer=name, action=action)


class StreamEvents(_Events):
    """The events of one stream's messages."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, domain: str, stream: str) -> None:
        super().__init__(bus, clock, rng, domain)
        self._stream = stream
        self._abandoned = _STREAM + b"BATCH_ABANDONED." + stream.encode()

    def batch_abandoned(self, batch_id: bytes, reason: str) -> None:
        """Report that an atomic batch was dropped: "timeout", "large", "incomplete" or "unsupported"."""
        self._send(self._abandoned, "advisory.v1.stream_batch_abandoned", stream=self._stream,
                   batch=batch_id.decode("utf-8", "replace"), reason=reason)


class ConsumerEvents(_Events):
    """The events of one consumer and its messages."""

    def __init__(self, bus: Bus, clock: Clock, rng: random.Random, domain: str, account: str, stream: str,
                 consumer: str) -> None:
        super().__init__(bus, clock, rng, domain)
        self._names = {"stream": stream, "consumer": consumer}
        self._account = account
        tail = f"{stream}.{consumer}".encode()
        self._nak = _CONSUMER + b"MSG_NAKED." + tail
        self._terminated = _CONSUMER + b"MSG_TERMINATED." + tail
        self._max_deliver = _CONSUMER + b"MAX_DELIVERIES." + tail
        self._pause = _CONSUMER + b"PAUSE." + tail
        self._pinned = _CONSUMER + b"PINNED." + tail
        self._unpinned = _CONSUMER + b"UNPINNED." + tail
        self._ack = b"$JS.EVENT.METRIC.CONSUMER.ACK." + tail

    @property
    def naks_observed(self) -> bool:
        """True if anybody subscribes to the events of ``nak``."""
        return self._bus.interest(self._nak)

    def nak(self, stream_seq: int, consumer_seq: int, deliveries: int) -> None:
        """Report that a message was answered with -NAK."""
        self._send(self._nak, "advisory.v1.nak", **self._names, consumer_seq=consumer_seq, stream_seq=stream_seq,
                   deliveries=deliveries)

    def terminated(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> None:
        """Report that a message was answered with +TERM, or left the stream while it was pending."""
        why = {"reason": reason} if reason else {}
        self._send(self._terminated, "advisory.v1.terminated", **self._names, consumer_seq=consumer_seq,
                   stream_seq=stream_seq, deliveries=deliveries, **why)

    def max_deliver(self, stream_seq: int, deliveries: int) -> None:
        """Report that a message reached max_deliver without an ack."""
        self._send(self._max_deliver, "advisory.v1.max_deliver", **self._names, stream_seq=stream_seq,
                   deliveries=deliveries)

    def pause(self, paused: bool, pause_until_ns: int | None) -> None:
        """Report that the consumer was paused or resumed."""
        until = ZERO_TIME if pause_until_ns is None else format_time(pause_until_ns)
        self._send(self._pause, "advisory.v1.consumer_pause", **self._names, paused=paused, pause_until=until)

    def pinned(self, group: str, pin: str) -> None:
        """Report that a priority group serves the client with this pin from now on."""
        self._send(self._pinned, "advisory.v1.consumer_group_pinned", account=self._account, **self._names, group=group,
                   pinned_id=pin)

    def unpinned(self, group: str, reason: str) -> None:
        """Report that a priority group no longer has a pinned client; ``reason`` is "timeout" or "admin"."""
        self._send(self._unpinned, "advisory.v1.consumer_group_unpinned", account=self._account, **self._names,
                   group=group, reason=reason)

    def sampled_ack(self, stream_seq: int, consumer_seq: int, delay_ns: int, deliveries: int) -> None:
        """Report a sampled ack of a message."""
        self._send(self._ack, "metric.v1.consumer_ack", **self._names, consumer_seq=consumer_seq,
                   stream_seq=stream_seq, ack_time=delay_ns, deliveries=deliveries)
