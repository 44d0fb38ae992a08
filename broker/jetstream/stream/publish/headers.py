"""The headers of a publish that a stream acts upon, as values.

Owns: finding them in a header block, reading their text, and what is wrong with it whatever stream it is for.
Does not own: what they lead to (sequencer), nor the header block's syntax (protocol.headers).

Most messages carry none of them: ``find`` is asked only of blocks in which ``Nats-`` occurs.

Source: nats-server, server/stream.go, getMsgId, getExpectedLastSeq, getRollup, parseMessageTTL and their neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from zoneinfo import ZoneInfo

from broker.gotime import parse_duration
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import INT64_MAX, decimal
from broker.protocol import headers as header_block
from broker.protocol.subject import is_literal, is_valid

__all__ = ["HINT", "MSG_ID", "TTL_INVALID", "PublishHeaders", "as_stored", "check_schedule", "find", "is_integer",
           "msg_ids", "parse_rollup", "parse_sequence", "parse_ttl"]

HINT = b"Nats-"
"""Every header that a stream acts upon begins so."""

MSG_ID = b"Nats-Msg-Id"

PublishHeaders = Mapping[bytes, bytes]
"""Header name to its first value, of the headers that begin with ``Nats-``."""

TTL_INVALID = 0
"""What ``parse_ttl`` gives for text that is no TTL."""

_HEADER = re.compile(rb"\r\n(Nats-[^:\r\n]*): *((?:(?!\r\n).)*)", re.DOTALL)
_FIRST_LINE = b"NATS/1.0\r\n"
_MSG_ID_LINE = b"\r\nNats-Msg-Id:"


def find(block: bytes) -> PublishHeaders:
    """All ``Nats-`` headers of a block; of a repeated one the first value counts."""
    found: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(block):
        found.setdefault(name, value)
    return found


def msg_ids(hlens: Iterable[int], bodies: Iterable[bytes]) -> list[bytes] | None:
    """The ``Nats-Msg-Id`` of each message of a run (b"": none), when nothing else in their headers could matter.

    None: some header needs a closer look. This is the short way for publishers that only deduplicate, and for those whose
    headers are none of the stream's business.
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
    """A sequence in decimal digits; -1, which no sequence equals, for any other text."""
    return decimal(text)


def parse_ttl(text: bytes) -> int:
    """A message's time to live in whole seconds; -1: never expires; ``TTL_INVALID`` (0): not a TTL.

    Seconds in digits, a Go duration of at least one second, or ``never`` in any case.
    """
    if text.lower() == b"never":
        return -1
    if text.isdigit() and text.strip(b"0"):
        return max(decimal(text, INT64_MAX), TTL_INVALID)
    try:
        ttl_ns = parse_duration(text.decode())
    except ValueError:  # UnicodeDecodeError is one
        return TTL_INVALID
    return max(ttl_ns // 1_000_000_000, TTL_INVALID)


def as_stored(hlen: int, body: bytes) -> tuple[int, bytes]:
    """Headers as they are stored: without a status, and without what the server alone may say of a request."""
    block, payload = body[:hlen], body[hlen:]
    if block[8:10] != b"\r\n" and block.startswith(header_block.VERSION):
        line_end = block.find(b"\r\n")
        rest = block[line_end:] if line_end >= 0 else b""
        block = header_block.VERSION + rest if rest != b"\r\n\r\n" else b""
    if b"Nats-Request-Info:" in block:
        block = header_block.remove(block, b"Nats-Request-Info")
    return len(block), block + payload


def parse_rollup(headers: PublishHeaders, *, allowed: bool) -> bytes:
    """b"", b"sub" or b"all". Raises: ApiError 10111."""
    value = headers.get(b"Nats-Rollup", b"").lower()
    if not value:
        return b""
    if not allowed:
        raise ApiError(10111, err="rollup not permitted")
    if value not in (b"sub", b"all"):
        raise ApiError(10111, err=f"rollup value invalid: {json.dumps(value.decode('utf-8', 'replace'))}")
    return value


def check_schedule(headers: PublishHeaders, subject: bytes) -> None:
    """Raises: ApiError: schedules are not there, and some are wrong besides."""
    get = headers.get
    if get(b"Nats-Schedule") or _bad_zone(get(b"Nats-Schedule-Time-Zone")):
        raise ApiError(10188)
    scheduler = get(b"Nats-Scheduler")
    if following := get(b"Nats-Schedule-Next"):
        literal = scheduler and is_valid(scheduler) and is_literal(scheduler)
        if following != b"purge" or not literal or scheduler == subject:
            raise ApiError(10212)
        raise ApiError(10188)
    if scheduler:
        raise ApiError(10212)


def is_integer(text: bytes) -> bool:
    """Whether ``text`` is digits, with or without a sign."""
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    return digits.isdigit()


def _bad_zone(name: bytes | None) -> bool:
    """Whether a schedule's time zone header is there and names none that is known."""
    if name is None:
        return False
    try:
        ZoneInfo(name.decode())
    except (ValueError, OSError, KeyError):
        return True
    return False
