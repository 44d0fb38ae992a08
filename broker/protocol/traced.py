"""A message with a trace: each stream that receives it reports to the trace what it did with the message, and each
connection to another server asks the trace for the message to send.

Does not own: the choice of traced messages, and the receiver of the trace (server/connection/message_trace).
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["DEST", "DISABLED", "Trace", "TracedMsg"]

DEST = b"Nats-Trace-Dest"
DISABLED = b"trace disabled"
"""Value of the header that turns tracing off; it is no subject."""


class Trace(Protocol):
    """The receiver of a stream's report about a message."""

    only: bool
    """Flag: streams check the message like any other, but do not store it."""

    def decided(self, stream: str, subject: bytes, *, no_interest: bool = False, error: str = "") -> None:
        """Record the decision of ``stream`` about the message.

        Args: ``subject``: the subject under which it is stored, b"" if it was refused before that was known;
            ``no_interest``: it is not stored, since no consumer waits for it.
        """


    def forward(self, msg: tuple[bytes, bytes, int, bytes], to: dict[str, Any],
                error: str = "") -> tuple[bytes, bytes, int, bytes]:
        """Record that ``msg`` goes to another server, which continues the trace under a number of its own.

        Args: ``to``: the connection, as events show it; ``error``: the reason why no trace comes from there.
        Returns: the message to send.
        """


class TracedMsg(tuple[bytes, bytes, int, bytes]):
    """A ``Msg`` with its ``trace``. It always travels alone, never in a run with others."""

    trace: Trace

    @classmethod
    def of(cls, msg: tuple[bytes, bytes, int, bytes], trace: Trace) -> TracedMsg:
        """Return ``msg`` with ``trace``."""
        traced = cls(msg)
        traced.trace = trace
        return traced

    def as_changed(self, msg: tuple[bytes, bytes, int, bytes]) -> TracedMsg:
        """Return ``msg``, a changed form of this message, with the same trace."""
        return TracedMsg.of(msg, self.trace)
