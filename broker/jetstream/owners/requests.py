"""The requests about streams of this broker, as the moves of streams use them (``api.stream_requests``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg

__all__ = ["HeldRequests", "Requests"]


class HeldRequests(Protocol):
    """The requests about one stream that arrive from now on."""

    def take(self) -> list[Msg]:
        """Return the requests, which are not held any more."""

    def stop_listening(self) -> None:
        """Hold no more requests."""

    def end(self) -> None:
        """Hold no more requests, and refuse those that were not taken."""


class Requests(Protocol):
    """The requests to this broker."""

    def waiting(self, account: str, name: str) -> bool:
        """Return whether requests about a stream are waiting or being carried out."""

    def hold(self, account: str, name: str) -> HeldRequests:
        """Hold the requests about a stream from now on. Raises: KeyError: the account has no JetStream."""

    def answer(self, account: str, msgs: Sequence[Msg]) -> None:
        """Answer requests about streams that serve here; of equal ones, which two brokers have held, the first."""
