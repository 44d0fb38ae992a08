"""The headers of a publish that a stream acts upon.

Owns: finding them in a header block, and the list of headers that are not stored. Does not own: their effects (checks),
the header block's syntax (protocol.headers).

Most messages have none of these headers: ``find`` is called only for blocks in which ``Nats-`` occurs.

Source: nats-server, server/stream.go, getMsgId, getExpectedLastSeq, removeHeaderStatusIfPresent.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from broker.jetstream.wire.numbers import decimal, modulo_2_to_64
from broker.protocol import headers as header_block

__all__ = ["HINT", "MSG_ID", "as_stored", "find", "has_unstored", "msg_ids", "parse_expected", "parse_sequence"]

HINT = b"Nats-"
"""The prefix of every header that a stream acts upon."""

MSG_ID = b"Nats-Msg-Id"

_HEADER = re.compile(rb"\r\n(Nats-[^:\r\n]*): *([^\r]*(?:\r(?!\n)[^\r]*)*)")
_FIRST_LINE = b"NATS/1.0\r\n"
_MSG_ID_LINE = b"\r\nNats-Msg-Id:"


def find(block: bytes, names: Container[bytes]) -> dict[bytes, bytes]:
    """Return the headers of a block that are in ``names``, all of which begin with ``Nats-``.

    The first value of a repeated header counts.
    """
    found: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(block):
        if name in names and name not in found:
            found[name] = value
    return found


def msg_ids(hlens: Iterable[int], bodies: Iterable[bytes]) -> list[bytes] | None:
    """Return the ``Nats-Msg-Id`` of each message of a run (b"": none), if no other header of theirs can matter.

    Returns None if some header must be parsed. This is the fast path for publishers that only deduplicate, and for
    those whose headers mean nothing to the stream.
    """
    ids: list[bytes] = []
    for hlen, body in zip(hlens, bodies, strict=True):
        if not hlen:
            ids.append(b"")
            continue
        at = body.find(HINT, 0, hlen)
        if not body.startswith(_FIRST_LINE):
            return None
        if at < 0:
            ids.append(b"")
            continue
        if body[at - 2:at + 12] != _MSG_ID_LINE or body.find(HINT, at + 5, hlen) >= 0:
            return None
        ids.append(body[at + 12:body.find(b"\r\n", at, hlen)].lstrip(b" "))
    return ids


def parse_sequence(text: bytes) -> int:
    """Parse a sequence in decimal digits; return -1, which no sequence equals, for any other text."""
    return decimal(text)


def parse_expected(text: bytes) -> int:
    """Parse an expected sequence, of which nats-server keeps 64 bits: 2^64 expects 0. Returns -1 for any other text."""
    return modulo_2_to_64(text) if text.isdigit() else -1


def has_unstored(hlen: int, body: bytes) -> bool:
    """Return whether ``as_stored`` changes the headers."""
    return body[8:10] != b"\r\n" or body.find(b"Nats-Request-Info:", 0, hlen) >= 0


def as_stored(hlen: int, body: bytes) -> tuple[int, bytes]:
    """Return headers as they are stored: without a status, and without headers that only the server may set."""
    block, payload = body[:hlen], body[hlen:]
    if block[8:10] != b"\r\n" and block.startswith(header_block.VERSION):
        line_end = block.find(b"\r\n")
        rest = block[line_end:] if line_end >= 0 else b""
        block = header_block.VERSION + rest if rest != b"\r\n\r\n" else b""
    if b"Nats-Request-Info:" in block:
        block = header_block.remove(block, b"Nats-Request-Info")
    return len(block), block + payload
