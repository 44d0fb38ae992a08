"""The stored form of channels, positions and messages: a stream, a consumer's metadata, and a header.

The gateway makes them; a migration writes them into archives, and the gateway accepts them from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.streaming.names import stream_of

if TYPE_CHECKING:
    from broker.config.streaming import ChannelLimits

__all__ = ["CONSUMER_KEY", "REPLY_HEADER", "consumer_metadata", "reply_header", "stream_config"]

CONSUMER_KEY = "jetblock.streaming"
"""The key in a consumer's metadata by which the gateway recognises its consumers. Its value is the channel."""

REPLY_HEADER = b"Nats-Streaming-Reply"
"""The header that keeps the reply subject of a message published by a NATS Streaming client."""


def reply_header(reply: str) -> bytes:
    """Return the headers of a message with a reply subject, which may have no line feed; b"" without one."""
    return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (REPLY_HEADER, reply.encode()) if reply else b""


def stream_config(channel: str, limits: ChannelLimits) -> dict[str, Any]:
    """Return the members of the configuration that are not defaults."""
    return {"name": stream_of(channel), "subjects": [channel], "max_msgs": limits.max_msgs or -1,
            "max_bytes": limits.max_bytes or -1, "max_age": limits.max_age_ns, "max_consumers": 1_000_000,
            "description": f"NATS Streaming channel {channel}"}


def consumer_metadata(channel: str, client_id: str, durable: str, queue: str) -> dict[str, str]:
    """Return the metadata of the consumer that has the position of a subscription."""
    shown = {CONSUMER_KEY: channel, "client_id": client_id, "durable": durable, "queue": queue}
    return {key: value for key, value in shown.items() if value}
