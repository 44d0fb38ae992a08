"""A message that is followed on its way: a stream that gets one tells what becomes of it.

Does not own: which messages ask for that, and who is told (server/connection/message_trace).
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["DEST", "DISABLED", "Trace", "TracedMsg"]

DEST = b"Nats-Trace-Dest"
DISABLED = b"trace disabled"
"""The value of the header that turns tracing off; no subject."""


class Trace(Protocol):
    """Where it is told."""

    only: bool
    """The message is judged like any other, but neither delivered nor stored."""

    def decided(self, stream: str, subject: bytes, *, no_interest: bool = False, error: str = "") -> None:
        """``stream`` has judged the message. ``subject``: under which it is stored, b"" if it did not come that far;
        ``no_interest``: it is not stored, since no consumer waits for it."""


class TracedMsg(tuple[bytes, bytes, int, bytes]):
    """A ``Msg`` with its ``trace``. It always travels alone, never in a run with others."""

    trace: Trace

    @classmethod
    def of(cls, msg: tuple[bytes, bytes, int, bytes], trace: Trace) -> TracedMsg:
        """``msg``, followed by ``trace``."""
        traced = cls(msg)
        traced.trace = trace
        return traced

    def as_changed(self, msg: tuple[bytes, bytes, int, bytes]) -> TracedMsg:
        """``msg``, which this one has become on its way."""
        return TracedMsg.of(msg, self.trace)
