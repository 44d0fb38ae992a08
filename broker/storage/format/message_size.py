"""The size of a message in its stream's ``bytes`` and in every limit on bytes.

    size = 30 + len(subject) + len(headers and payload) (+ 4 if it has headers)

Clients see these numbers in stream infos and PubAck refusals, and blocks store their sums. Code that runs for each
message may add the constants itself; only this module has the formula.

Source: nats-server, server/filestore.go, fileStoreMsgSizeRaw.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HEADERS_BYTES", "ROW_BYTES", "message_size", "messages_size"]

ROW_BYTES: Final = 30
"""Bytes for every message: in nats-server's files 22 bytes of row and 8 of checksum."""

HEADERS_BYTES: Final = 4
"""Bytes for every message with headers: in nats-server's files, the length of the headers."""


def message_size(subject: bytes, hlen: int, body: bytes) -> int:
    """Return the size of one message; ``body`` is headers (its first ``hlen`` bytes) and payload."""
    return ROW_BYTES + len(subject) + len(body) + (HEADERS_BYTES if hlen else 0)


def messages_size(count: int, with_headers: int, subject_bytes: int, body_bytes: int) -> int:
    """Return the size of ``count`` messages together, ``with_headers`` of which have headers."""
    return ROW_BYTES * count + HEADERS_BYTES * with_headers + subject_bytes + body_bytes
