"""The reply subjects of a consumer's deliveries and flow control requests, in both of nats-server's formats.

    short    $JS.ACK.<stream>.<consumer>.…
             $JS.FC.<stream>.<consumer>.…
    long     $JS.ACK.<domain or _>.<account hash>.<stream>.<consumer>.…
             $JS.FC.<domain or _>.<account hash>.<stream>.<consumer>.…

Answers to both are always accepted; the feature flag ``js_ack_fc_v2`` chooses which one deliveries carry.

Source: ADR-15; nats-server, server/consumer.go, addConsumerWithAssignment.
"""

from __future__ import annotations

from broker.jetstream.wire.ids import short_hash

__all__ = ["ReplySubjects"]


class ReplySubjects:
    """The reply subjects of one consumer.

    Attributes: ``acks``, ``flows``: the prefixes of the subjects in each format, up to the last dot; ``ack``, ``flow``:
        the prefixes of the format to send.
    """

    __slots__ = ("ack", "acks", "flow", "flows")

    def __init__(self, domain: str, account: str, stream: str, consumer: str, *, long: bool) -> None:
        short = f"{stream}.{consumer}."
        origins = (short, f"{domain or '_'}.{short_hash(account)}.{short}")
        self.acks = tuple(f"$JS.ACK.{origin}".encode() for origin in origins)
        self.flows = tuple(f"$JS.FC.{origin}".encode() for origin in origins)
        self.ack, self.flow = self.acks[long], self.flows[long]
