"""Status messages of consumers: header-only messages whose first line carries a code and a text.

Clients compare these texts exactly; one changed letter breaks them.

Source: nats-server consumer.go; ADR-37 has the list.
"""

from __future__ import annotations

__all__ = [
    "BATCH_COMPLETED",
    "CONSUMER_DELETED",
    "FLOW_CONTROL",
    "LEADERSHIP_CHANGE",
    "MESSAGE_SIZE",
    "NO_MESSAGES",
    "PUSH_BASED",
    "REQUEST_TIMEOUT",
    "SERVER_SHUTDOWN",
    "WRONG_PIN",
    "idle_heartbeat",
    "line",
    "with_pending",
]

_V = b"NATS/1.0 "
REQUEST_TIMEOUT = _V + b"408 Request Timeout"
MESSAGE_SIZE = _V + b"409 Message Size Exceeds MaxBytes"
BATCH_COMPLETED = _V + b"409 Batch Completed"
SERVER_SHUTDOWN = _V + b"409 Server Shutdown"
LEADERSHIP_CHANGE = _V + b"409 Leadership Change"
CONSUMER_DELETED = _V + b"409 Consumer Deleted"
WRONG_PIN = _V + b"423 Nats-Wrong-Pin-Id"
NO_MESSAGES = _V + b"404 No Messages\r\n\r\n"
PUSH_BASED = _V + b"409 Consumer is push based\r\n\r\n"
FLOW_CONTROL = _V + b"100 FlowControl Request\r\n\r\n"


def line(text: str) -> bytes:
    """Return a complete status message with ``text`` ("409 Exceeded MaxWaiting"); line breaks in it become spaces."""
    return _V + text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\r\n\r\n"


def with_pending(text: bytes, messages: int, size: int) -> bytes:
    """Return a complete status message that reports what is left of a request."""
    return b"%b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (text, messages, size)


def idle_heartbeat(consumer_seq: int, stream_seq: int, stalled: bytes = b"") -> bytes:
    """Return a heartbeat with the last sequences sent; ``stalled``: the flow control reply that delivery waits for."""
    extra = b"Nats-Consumer-Stalled: %b\r\n" % stalled if stalled else b""
    return (b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%b\r\n"
            % (consumer_seq, stream_seq, extra))
