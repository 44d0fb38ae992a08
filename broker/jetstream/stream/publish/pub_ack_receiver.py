"""A publisher that gets PubAcks by calls instead of messages: the seam for a protocol other than JetStream's.

A ``PubAckReceiver`` is the ``source`` of its publishes (``Stream.publish``). The reply of a message is any non-empty
token by which the receiver recognises it; a message with the reply b"" is not answered. Receivers do not send members
of batches, whose answers are JetStream's own.

As with PubAcks that are messages, an answer that reveals the stream's state comes after that state is persisted, in the
order of the log. A refusal for lack of room comes at once. No answer comes if the broker stops first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.jetstream.bus import OwnSource

if TYPE_CHECKING:
    from broker.jetstream.wire.errors import ApiError

__all__ = ["PubAckReceiver"]


class PubAckReceiver(OwnSource, ABC):
    """The base class of such publishers. ``identity``, ``hold`` and ``release``: see ``Source``."""

    @abstractmethod
    def stored(self, replies: Sequence[bytes], first_seq: int) -> None:
        """Accept the PubAcks of messages that are persisted, with sequences from ``first_seq`` on."""

    @abstractmethod
    def duplicate(self, reply: bytes, seq: int) -> None:
        """Accept the PubAck of a message that was stored before, as ``seq``."""

    @abstractmethod
    def refused(self, replies: Sequence[bytes], error: ApiError) -> None:
        """Accept the refusal of messages."""
