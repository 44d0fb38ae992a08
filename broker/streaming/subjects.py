"""The subjects on which the gateway and its clients talk.

    _STAN.discover.<cluster ID>       connect requests; with .pings at its end, pings
    _STAN.pub.<cluster ID>.<channel>  publishes
    _STAN.sub.<cluster ID>, …         requests: subscribe, unsubscribe, close a subscription, close
    _STAN.ack.<server ID>.<id>        acks of one subscription: its ack inbox
    _INBOX.<server ID>.hb.<n>         answers to heartbeats

The server ID is made once and stored: after a restart or a failover, clients continue with the subjects that they got
when they connected.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Subjects"]


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one gateway. ``pub``, ``ack`` and ``heartbeat`` are prefixes without their last dot."""

    discover: str
    pub: str
    subscribe: str
    unsubscribe: str
    sub_close: str
    close: str
    ping: str
    ack: str
    heartbeat: str

    @classmethod
    def of(cls, discover_prefix: str, cluster_id: str, server_id: str) -> Subjects:
        return cls(f"{discover_prefix}.{cluster_id}", f"_STAN.pub.{cluster_id}", f"_STAN.sub.{cluster_id}",
                   f"_STAN.unsub.{cluster_id}", f"_STAN.subclose.{cluster_id}", f"_STAN.close.{cluster_id}",
                   f"{discover_prefix}.{cluster_id}.pings", f"_STAN.ack.{server_id}", f"_INBOX.{server_id}.hb")
