"""The part of the server's leaf nodes that JetStream uses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

__all__ = ["Leafs"]


class Leafs(Protocol):
    """The leaf nodes of the server."""

    def domains(self, account: str) -> Collection[str]:
        """Return the JetStream domains of the servers that are connected to an account, without this server's own."""

    def reaches(self, account: str, name: str) -> bool:
        """Return whether the account is connected to a hub of that name whose JetStream has no domain."""

    async def flushed(self, account: str) -> None:
        """Return once the servers that are connected to an account have processed all that was sent to them."""

    def request(self, account: str, name: str, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Send a request to ``$JS.API`` of that hub; return 0 if it is not connected, or forbids this."""
