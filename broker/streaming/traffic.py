"""Counts of the messages and bytes of NATS Streaming clients, for the monitoring pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """Messages, and bytes of their protobufs, since the start of the process: from publishers and to subscribers."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0

    def received(self, msgs: Sequence[Msg]) -> None:
        """Count publishes."""
        self.in_msgs += len(msgs)
        self.in_bytes += sum([len(msg[3]) for msg in msgs])

    def sent(self, bodies: Sequence[bytes]) -> None:
        """Count deliveries."""
        self.out_msgs += len(bodies)
        self.out_bytes += sum(map(len, bodies))
