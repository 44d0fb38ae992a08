"""Parses a client's answer to a delivery: the ack subject and the payload.

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream_seq>.<consumer_seq>.<time_ns>.<pending>                  9 tokens
    $JS.ACK.<domain or _>.<account hash>.<stream>.<consumer>.<delivered>.….<pending>[.more]               11 or more

Input may be any bytes. A subject that is not an ack's gives a ``stream_seq`` of -1, an unknown payload the kind
``UNKNOWN``; neither raises.

Source: nats-server consumer.go: ackReplyInfo, processAck, processNak.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from broker.base.gojson.decoding import JsonError, assigned, unmarshal
from broker.base.gotime import parse_duration
from broker.jetstream.wire.numbers import INT64_MAX, INT64_MIN, decimal

__all__ = ["AckInfo", "AckKind", "parse_answer", "parse_delay", "parse_subject"]


class AckKind(Enum):
    """The kinds of answer."""

    ACK = "+ACK"
    NAK = "-NAK"
    PROGRESS = "+WPI"
    NEXT = "+NXT"
    TERM = "+TERM"
    UNKNOWN = ""


class AckInfo(NamedTuple):
    """The numbers of an ack subject; -1 for each token that is not a number, all -1 for any other subject."""

    delivered: int
    stream_seq: int
    consumer_seq: int


_NONE = AckInfo(-1, -1, -1)


def parse_subject(subject: bytes) -> AckInfo:
    """Return the numbers of an ack subject, in either form. Ten tokens are neither form."""
    tokens = subject.split(b".")
    count = len(tokens)
    if count != 9 and count < 11:
        return _NONE
    at = 4 if count == 9 else 6
    return AckInfo._make(decimal(token, INT64_MAX) for token in tokens[at:at + 3])


def parse_answer(payload: bytes) -> tuple[AckKind, bytes]:
    """Return the kind of answer and its argument: a NAK's delay, a TERM's reason, a NEXT's pull request.

    NAK, NEXT and TERM are recognised by prefix, the others only in full.
    """
    if payload in (b"", b"+ACK", b"+OK"):
        return AckKind.ACK, b""
    word = payload[:4]
    if word == b"-NAK":
        return AckKind.NAK, payload[4:]
    if word == b"+NXT":
        return AckKind.NEXT, payload[4:]
    if payload[:5] == b"+TERM":
        return AckKind.TERM, payload[5:]
    if payload == b"+WPI":
        return AckKind.PROGRESS, b""
    return AckKind.UNKNOWN, b""


def parse_delay(argument: bytes) -> int | None:
    """Return the delay in nanoseconds that follows ``-NAK``; None if it is missing or invalid: deliver at once.

    It is either ``{"delay": nanoseconds}`` or a duration as Go writes it (``1.5s``, ``2m30s``).
    """
    argument = argument.strip()
    if not argument:
        return None
    if argument[:1] == b"{":
        try:
            value = unmarshal(argument)
        except JsonError:
            return None
        delay = 0
        for _, given in assigned(value, ("delay",)):
            if given is not None:
                delay = given
            if type(delay) is not int or not INT64_MIN <= delay <= INT64_MAX:
                return None
        return delay
    try:
        return parse_duration(argument.decode())
    except ValueError:  # UnicodeDecodeError is one
        return None
