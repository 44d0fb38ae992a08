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

from broker.protocol.run import Msg

__all__ = ["MsgEncoder", "PubMsgFields", "ack_seqs", "ack_start", "by_subject", "pub_ack", "pub_msg", "pub_run"]

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


def pub_run(ops: Sequence[Msg], start: int, end: int) -> tuple[PubMsgFields | None, list[Msg], int]:
    """Decode the publish ``ops[start]``, and those after it that differ from it in their guids and data only.

    So a client's burst costs a comparison and two slices for each message, half of what ``pub_msg`` does.

    Returns: the fields of the first one, or None if protobuf must decode it; a message for each of them, with the
        channel as its subject, the PubAck as its reply, and the data; the index of the first one that is different.
    """
    _, reply, hlen, body = ops[start]
    at = start + 1
    fields = pub_msg(body, hlen)
    if fields is None:
        return None, [], at
    client_id, guid, channel, answer_to, data, conn_id = fields
    msgs: list[Msg] = [(channel, pub_ack(guid), 0, data)]
    size = len(guid)
    if answer_to or not 0 < size < 128:
        return fields, msgs, at
    head = (b"\n" + _varint(len(client_id)) + client_id if client_id else b"") + b"\x12" + _LAST[size]
    middle = b"\x1a" + _varint(len(channel)) + channel + b"\x2a"
    tail = b"\x32" + _varint(len(conn_id)) + conn_id if conn_id else b""
    guid_start = len(head)
    guid_end = guid_start + size
    size_start = guid_end + len(middle)
    while at < end:
        _, to, hlen, body = ops[at]
        if (hlen or to != reply or not body.startswith(head) or body[guid_end:size_start] != middle
                or len(body) < size_start + 2):
            break
        data_start, size = size_start + 1, body[size_start]
        if size >= 128:
            if body[data_start] >= 128:
                break
            size += (body[data_start] - 1) << 7
            data_start += 1
        data_end = data_start + size
        guid = body[guid_start:guid_end]
        if data_end + len(tail) != len(body) or not body.endswith(tail) or not guid.isascii():
            break
        msgs.append((channel, b"\n" + body[guid_start - 1:guid_end], 0, body[data_start:data_end]))
        at += 1
    return fields, msgs, at


class MsgEncoder:
    """An encoder of a channel's messages."""

    def __init__(self, channel: str) -> None:
        text = channel.encode()
        self._subject = b"\x12" + _varint(len(text)) + text

    def encode(self, seq: int, time_ns: int, data: bytes, delivered: int, reply: bytes = b"") -> bytes:
        """Encode a message. ``delivered``: the number of its deliveries, this one included."""
        return self.encode_run((seq,), (time_ns,), (data,), (delivered,), reply)[0]

    def encode_run(self, seqs: Sequence[int], times_ns: Sequence[int], bodies: Sequence[bytes],
                   delivered: Sequence[int], reply: bytes = b"") -> list[bytes]:
        """Encode messages, which are given as columns. Adjacent messages often have the same time and size."""
        msgs: list[bytes] = []
        between = end = b""
        last_size = last_ns = -1
        start = self._subject + b"\x1a" + _varint(len(reply)) + reply if reply else self._subject
        for at in range(len(bodies)):
            seq, time_ns, data = seqs[at], times_ns[at], bodies[at]
            size = len(data)
            if size != last_size:
                last_size, between = size, start + b"\x22" + _varint(size) if size else start
            if time_ns != last_ns:
                last_ns, end = time_ns, b"\x28" + _varint(time_ns) if time_ns else b""
            first = _LAST[seq] if seq < _PAIR else _MORE[seq & _PAIR - 1] + _varint(seq >> 14)
            if delivered[at] <= 1:
                msgs.append(b"\x08%b%b%b%b" % (first, between, data, end))
            else:
                msgs.append(b"\x08%b%b%b%b\x30\x01\x38%b" % (first, between, data, end, _varint(delivered[at] - 1)))
        return msgs


def ack_start(channel: str) -> bytes:
    """Return the beginning of the acks of a channel: the field of the channel, and the tag of the sequence."""
    text = channel.encode()
    return b"\n" + _varint(len(text)) + text + b"\x10"


def by_subject(ops: Sequence[Msg], start: int, end: int) -> dict[bytes, list[bytes]]:
    """Return the bodies of ops[start:end], without headers, by their subjects."""
    found: dict[bytes, list[bytes]] = {}
    last, bodies = b"", list[bytes]()
    for at in range(start, end):
        subject, _, hlen, body = ops[at]
        if subject != last:
            last, bodies = subject, found.setdefault(subject, [])
        bodies.append(body[hlen:] if hlen else body)
    return found


def ack_seqs(bodies: Sequence[bytes], start: bytes) -> list[int]:
    """Return the sequence of each ack that begins with ``start`` (``ack_start``); 0, if protobuf must decode it."""
    seqs: list[int] = []
    prefix = len(start)
    for body in bodies:
        seq = shift = 0
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
