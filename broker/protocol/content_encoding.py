"""Compression of the server's own messages, as far as the answered request accepts it.

    Accept-Encoding: snappy | s2 | gzip | …    ->    Content-Encoding: snappy | gzip | identity

Source: nats-server, server/events.go (internalSendLoop, getAcceptEncoding).
"""

from __future__ import annotations

from broker.protocol import headers

__all__ = ["encoded"]


def encoded(body: bytes, block: bytes) -> tuple[int, bytes]:
    """Compress ``body`` for the sender of the header ``block``. Returns: header length; headers and payload."""
    accepted = (headers.get(block, b"Accept-Encoding") or b"").lower()
    if not accepted or not body:
        return 0, body
    encoding = b"identity"
    if b"snappy" in accepted or b"s2" in accepted:
        import cramjam  # this import takes 0.1 s, so it is not done at the start
        encoding, body = b"snappy", bytes(cramjam.snappy.compress(body))
    elif b"gzip" in accepted:
        import gzip  # rarely needed, so it is not imported at the start either

        encoding, body = b"gzip", gzip.compress(body, compresslevel=6, mtime=0)
    header = headers.build([(b"Content-Encoding", encoding)])
    return len(header), header + body
