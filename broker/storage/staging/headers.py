"""The headers that staged messages may have: every client library can parse them, and none asks the stream for an
action, unless the request says that the stream acts on them.

A publish may carry any bytes as its headers, and nats-server stores them. Client libraries do not expect that: nats-py
stops reading after a block without a line break, and takes a status line for one of the server's. A client that
publishes such headers gets errors from its own library; a writer of staged messages would not.

Source: ADR-4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from broker.protocol import headers as header_block

__all__ = ["ACTED_UPON", "APPLICABLE", "MSG_ID", "MSG_ID_BLOCK", "ROLLUP", "TTL", "first_flaw", "flaw"]

MSG_ID: Final = b"Nats-Msg-Id"
MSG_ID_BLOCK: Final = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"
"""The header block of a message that has an id and no other header."""

ACTED_UPON: Final = frozenset((
    b"Nats-Batch-Commit", b"Nats-Batch-Id", b"Nats-Batch-Sequence", b"Nats-Counter-Sources",
    b"Nats-Expected-Last-Msg-Id", b"Nats-Expected-Last-Sequence", b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject", b"Nats-Expected-Stream", b"Nats-Incr", b"Nats-Required-Api-Level",
    b"Nats-Rollup", b"Nats-Schedule", b"Nats-Schedule-Next", b"Nats-Schedule-Rollup", b"Nats-Schedule-Source",
    b"Nats-Schedule-TTL", b"Nats-Schedule-Target", b"Nats-Schedule-Time-Zone", b"Nats-Scheduler",
    b"Nats-Stream-Source", b"Nats-TTL", b"Nats-Request-Info"))
"""Headers that ask a stream for something beyond storing the message."""

TTL: Final = b"Nats-TTL"
ROLLUP: Final = b"Nats-Rollup"
APPLICABLE: Final = frozenset((TTL, ROLLUP))
"""The headers that a stream acts upon for staged messages, too, if their request asks for it."""

_WELL_FORMED: Final = re.compile(rb"NATS/1\.0\r\n(?:[!-9;-~]+:[^\r\n]*\r\n)*\r\n")
_ASKS: Final = re.compile(rb"\r\n(" + b"|".join(sorted(ACTED_UPON)) + rb"):")
_ASKS_MORE: Final = re.compile(rb"\r\n(" + b"|".join(sorted(ACTED_UPON - APPLICABLE)) + rb"):")
_ID_BLOCK_BYTES: Final = len(MSG_ID_BLOCK % b"")


def flaw(block: bytes, *, acting: bool = False) -> str | None:
    """Return the reason why no staged message can have this header block, which is not empty; None: it can.

    Args: ``acting``: the stream acts on the headers that are ``APPLICABLE``.
    """
    if not _WELL_FORMED.fullmatch(block):
        return ("the headers are no header block: NATS/1.0, then lines of a name (printable, without spaces), a colon "
                "and a value, then an empty line, each ended by CR LF")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            return "the headers are not UTF-8"
    if (asks := (_ASKS_MORE if acting else _ASKS).search(block)) is not None:
        remedy = "" if acting or asks[1] not in APPLICABLE else ", ask for it to be applied"
        return (f"the header {asks[1].decode()} asks the stream for something that is done for published messages "
                f"only: leave it out{remedy}, or publish the message")
    return None


def first_flaw(hlens: Sequence[int], bodies: Sequence[bytes], ids: Sequence[bytes], *,
               acting: bool = False) -> tuple[int, str] | None:
    """Return the ordinal of the first message that cannot be staged, and why; None: all can.

    Args: ``ids`` are the ids that the block lists for the messages, b"": none. ``acting`` as for ``flaw``.
    """
    for at, (hlen, body, msg_id) in enumerate(zip(hlens, bodies, ids, strict=True)):
        if not hlen:
            if msg_id:
                return at, f"the message id {msg_id[:80]!r} is not in its headers"
            continue
        block = body[:hlen]
        if (hlen == _ID_BLOCK_BYTES + len(msg_id) and block == MSG_ID_BLOCK % msg_id and msg_id.isascii()
                and b"\r" not in msg_id and b"\n" not in msg_id):
            continue  # most messages have no other header
        if (why := flaw(block, acting=acting)) is not None:
            return at, why
        if (header_block.get(block, MSG_ID) or b"") != msg_id:
            return at, f"its headers do not have the message id {msg_id[:80]!r} that the block lists"
    return None
