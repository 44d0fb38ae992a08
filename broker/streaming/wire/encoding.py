"""Encodes and decodes the four messages of which there are very many, several times faster than protobuf does.

    PubMsg     0a client_id 12 guid 1a subject [22 reply] 2a data       1 to 4: text; 5, 6, 10: bytes
               32 conn_id 52 sha256
    PubAck     0a guid                                                  1: text
    MsgProto   08 sequence 12 subject [1a reply] 22 data 28 timestamp   1, 5: varint; 2, 3: text; 4: bytes
               [30 01 38 count]                                         6: redelivered, 7: redelivery count
    Ack        0a subject 10 sequence                                   1: text; 2: varint

The bytes are those of protobuf, which leaves out fields that are empty or 0; tests compare them. A varint has seven
bits a byte, the lowest first; all bytes but the last one have the highest bit set.

The decoders leave each message that is not of the usual form to protobuf. The module is compiled (``broker.compiled``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["MsgEncoder", "ack_seqs", "ack_start", "pub_ack", "pub_msg"]

PubMsgFields = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""client_id, guid, subject, reply, data, conn_id."""

_PAIR: Final = 1 << 14
_LAST = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(_PAIR)]
"""Two groups of seven bits at the end of a varint."""
_MORE = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(_PAIR)]
"""Two groups of seven bits that others follow."""


def _varint(number: int) -> bytes:
    """Encode a number from 0 on."""
    return _LAST[number] if number < _PAIR else _MORE[number & _PAIR - 1] + _varint(number >> 14)


def pub_ack(guid: bytes) -> bytes:
    """Encode the PubAck of a message that is stored."""
    return b"\n" + _varint(len(guid)) + guid if guid else b""


def pub_msg(body: bytes, start: int) -> PubMsgFields | None:
    """Decode the publish that ``body`` has from ``start`` on; None, if protobuf must decode it.

    This is so for a field that is not among the usual ones, or not complete, and for text that is not ASCII.
    """
    client_id = guid = subject = reply = data = conn_id = b""
    at, end = start, len(body)
    while at < end:
        if at + 2 > end:
            return None
        tag, size = body[at], body[at + 1]
        at += 2
        if size >= 128:
            if at >= end:
                return None
            size += (body[at] - 1) << 7
            if body[at] >= 128:
                if at + 1 >= end or body[at + 1] >= 128:
                    return None
                size += (body[at + 1] - 1) << 14
                at += 1
            at += 1
        value = body[at:at + size]
        at += size
        if at > end:
            return None
        if tag == 0x2A:
            data = value
        elif tag == 0x32:
            conn_id = value
        elif tag == 0x52:
            pass  # the client's checksum, which the real server does not compare either
        elif not value.isascii():
            return None
        elif tag == 0x12:
            guid = value
        elif tag == 0x1A:
            subject = value
        elif tag == 0x0A:
            client_id = value
        elif tag == 0x22:
            reply = value
        else:
            return None
    return client_id, guid, subject, reply, data, conn_id


class MsgEncoder:
    """An encoder of a channel's messages. It keeps what messages have in common."""

    def __init__(self, channel: str) -> None:
        text = channel.encode()
        self._subject = b"\x12" + _varint(len(text)) + text
        self._time_high = -1
        self._time_end = b""

    def encode(self, seq: int, time_ns: int, data: bytes, delivered: int, reply: bytes = b"") -> bytes:
        """Encode a message. ``delivered``: the number of its deliveries, this one included."""
        high = time_ns >> 28
        if high != self._time_high:
            self._time_high, self._time_end = high, _varint(high)
        msg = b"\x08%b%b%b%b\x28%b%b%b" % (
            _varint(seq), self._subject, b"\x1a" + _varint(len(reply)) + reply if reply else b"",
            b"\x22" + _varint(len(data)) + data if data else b"",
            _MORE[time_ns & _PAIR - 1], _MORE[time_ns >> 14 & _PAIR - 1], self._time_end)
        return msg if delivered <= 1 else msg + b"\x30\x01\x38" + _varint(delivered - 1)

    def encode_run(self, seqs: Sequence[int], times_ns: Sequence[int], bodies: Sequence[bytes],
                   delivered: Sequence[int]) -> list[bytes]:
        """Encode messages without headers, as ``encode`` does each."""
        encode = self.encode
        msgs: list[bytes] = []
        for at in range(len(seqs)):
            msgs.append(encode(seqs[at], times_ns[at], bodies[at], delivered[at]))
        return msgs


def ack_start(channel: str) -> bytes:
    """Return the beginning of the acks of a channel: the field of the channel, and the tag of the sequence."""
    text = channel.encode()
    return b"\n" + _varint(len(text)) + text + b"\x10"


def ack_seqs(bodies: Sequence[bytes], hlens: Sequence[int], start: bytes) -> list[int]:
    """Return the sequence of each ack that begins with ``start`` (``ack_start``); 0, if protobuf must decode it."""
    seqs: list[int] = []
    prefix = len(start)
    for place in range(len(bodies)):
        body = bodies[place]
        at = hlens[place]
        seq = shift = 0
        if at:
            body = body[at:]
        size = len(body)
        if prefix < size <= prefix + 4 and body.startswith(start):
            at, last = prefix, size - 1
            while at < last and body[at] >= 128:
                seq |= (body[at] & 127) << shift
                shift += 7
                at += 1
            seq = seq | body[at] << shift if at == last and body[at] < 128 else 0
        seqs.append(seq)
    return seqs
