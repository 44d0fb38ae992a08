"""Encoding for leaf nodes: values to bytes, many messages in one call.

The subject of a delivery travels in its reply: a message that a consumer sends to the subject ``to`` has ``to`` as its
subject and ``<ack subject>@<own subject>`` as its reply. The server of the receiving client undoes this.

Source: nats-server, server/client.go (msgHeaderForRouteOrLeaf), server/leafnode.go (sendLeafNodeSubUpdate).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from broker.protocol.run import LARGE_BYTES, Msg

__all__ = ["connect", "encode", "interest"]

_CRLF: Final = b"\r\n"


def connect(fields: Mapping[str, object]) -> bytes:
    """Encode a CONNECT line."""
    return b"CONNECT %b\r\n" % json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def interest(subject: bytes, queue: bytes, weight: int) -> bytes:
    """Encode the number of subscriptions that this server has now; 0: it has none any more."""
    if not weight:
        return b"LS- %b %b\r\n" % (subject, queue) if queue else b"LS- %b\r\n" % subject
    return b"LS+ %b %b %d\r\n" % (subject, queue, weight) if queue else b"LS+ %b\r\n" % subject


def encode(msgs: Sequence[Msg], queues: Sequence[bytes] = (), to: bytes = b"") -> list[bytes]:
    """Encode messages, each for plain subscriptions and for one member of each of ``queues``.

    Args: ``to`` is the subject that routes all messages; b"": each message's own subject routes it.
    Returns: buffers in order.
    """
    names = b" ".join(queues)
    buffers: list[bytes] = []
    for subject, reply, hlen, body in msgs:
        if to:
            reply = b"%b@%b" % (reply, subject) if reply else b""
            subject = to
        if names:
            reply = b"+ %b %b " % (reply, names) if reply else b"| %b " % names
        elif reply:
            reply += b" "
        size = len(body)
        if size >= LARGE_BYTES:
            # A large body is not copied.
            buffers += ((b"HMSG %b %b%d %d\r\n" % (subject, reply, hlen, size) if hlen
                         else b"LMSG %b %b%d\r\n" % (subject, reply, size)), body, _CRLF)
        elif hlen:
            buffers.append(b"HMSG %b %b%d %d\r\n%b\r\n" % (subject, reply, hlen, size, body))
        else:
            buffers.append(b"LMSG %b %b%d\r\n%b\r\n" % (subject, reply, size, body))
    return buffers
