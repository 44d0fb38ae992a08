"""A registered client, and the rules for its pings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.streaming.wire.stan_pb2 import ConnectRequest

__all__ = ["PROTOCOL", "Client"]

PROTOCOL = 1
"""The newest version of the protocol: clients send pings."""


@dataclass(slots=True, eq=False)
class Client:
    """A client that has connected and not closed its connection.

    Attributes:
        ``conn_id``: identifies this connection of the client; b"" for clients older than protocol 1.
        ``failed_heartbeats``: heartbeats without an answer since the last answer.
        ``due_ns``: the monotonic time of its next heartbeat, or at which the answer to the last one is overdue.
        ``asked``: True while a heartbeat waits for its answer.
    """

    id: str
    heartbeat_inbox: str
    protocol: int
    conn_id: bytes
    failed_heartbeats: int = 0
    due_ns: int = 0
    asked: bool = False

    @classmethod
    def requested(cls, request: ConnectRequest) -> Client:
        return cls(request.client_id, request.heartbeat_inbox, request.protocol, request.conn_id)

    @classmethod
    def stored(cls, client_id: str, record: dict[str, Any]) -> Client:
        """Return a client from its record. Raises: KeyError, TypeError, ValueError, if a field is missing or wrong."""
        return cls(client_id, str(record["heartbeat_inbox"]), int(record["protocol"]), bytes.fromhex(record["conn_id"]))

    def record(self) -> dict[str, Any]:
        """Return the members of its record."""
        return {"heartbeat_inbox": self.heartbeat_inbox, "protocol": self.protocol, "conn_id": self.conn_id.hex()}
