"""Encodes and decodes the three messages of which there are very many, several times faster than protobuf does.

    PubAck     0a guid                                                  1: text
    MsgProto   08 sequence 12 subject [1a reply] 22 data 28 timestamp   1, 5: varint; 2, 3: text; 4: bytes
               [30 01 38 count]                                         6: redelivered, 7: redelivery count
    Ack        0a subject 10 sequence                                   1: text; 2: varint

The bytes are those of protobuf, which leaves out fields that are empty or 0; tests compare them. A varint has seven
bits a byte, the lowest first; all bytes but the last one have the highest bit set.
"""

from __future__ import annotations

__all__ = ["MsgEncoder", "ack_seq", "ack_start", "pub_ack"]

_PAIR = 1 << 14
_LAST = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(_PAIR)]
"""Two groups of seven bits at the end of a varint."""
_MORE = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(_PAIR)]
"""Two groups of seven bits that others follow."""


def _varint(number: int) -> bytes:
    """Encode a number from 0 on."""
    return _LAST[number] if number < _PAIR else _MORE[number & _PAIR - 1] + _varint(number >> 14)


def pub_ack(guid: str) -> bytes:
    """Encode the PubAck of a message that is stored."""
    text = guid.encode()
    return b"\n" + _varint(len(text)) + text if text else b""


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


def ack_start(channel: str) -> bytes:
    """Return the beginning of the acks of a channel: the field of the channel, and the tag of the sequence."""
    text = channel.encode()
    return b"\n" + _varint(len(text)) + text + b"\x10"


def ack_seq(body: bytes, start: bytes) -> int:
    """Return the sequence of an ack that begins with ``start`` (``ack_start``); 0, if protobuf must decode it."""
    size = len(body) - len(start)
    if not 0 < size <= 4 or not body.startswith(start):
        return 0
    seq = 0
    for at, byte in enumerate(body[len(start):]):
        if (byte < 128) != (at == size - 1):
            return 0
        seq |= (byte & 127) << 7 * at
    return seq
