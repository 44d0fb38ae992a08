"""Server to client: values to bytes, many messages in one formatting call.

A ``Run`` is a batch of messages for one or more subscriptions. The parts that depend only on the messages are encoded
once, on demand; adding a subscription's sid costs one join. Measured with 128-byte messages: one ``%`` for a whole batch
costs half of one per message, and a join with the sid as the separator a tenth of that.

    all alike (subject, size, no reply, no headers)   head.join(bodies)
    otherwise                                         sid.join(parts), the parts being the bytes between two sids
    bodies of 8 KiB and more on average               a list for writelines, since copying them would dominate

Source: nats-server, server/client.go (msgHeader).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from operator import add
from typing import Final

from broker.protocol.parser import Msg

__all__ = ["LARGE_BYTES", "OK", "PING", "PONG", "Run", "deliveries", "err", "info", "message", "no_responders", "pub_acks",
           "pub_acks_each"]

OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

LARGE_BYTES: Final = 8192
"""From this average size of bodies on, messages are not joined before they are written to the socket."""

_CRLF: Final = b"\r\n"


def info(fields: Mapping[str, object]) -> bytes:
    """An INFO line."""
    return b"INFO %b \r\n" % json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def err(text: str) -> bytes:
    """An -ERR line; ``text`` without its quotes."""
    return b"-ERR '%b'\r\n" % text.encode("utf-8", "surrogateescape")


def no_responders(subject: bytes, reply: bytes, sid: bytes) -> bytes:
    """The 503 that answers a request without receivers. Source: processInboundClientMsg."""
    block = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
    return b"HMSG %b %b %d %d\r\n%b\r\n" % (reply, sid, len(block), len(block), block)


def message(subject: bytes, sid: bytes, reply: bytes, hlen: int, body: bytes) -> bytes:
    """One message for one subscription."""
    if hlen:
        if reply:
            return b"HMSG %b %b %b %d %d\r\n%b\r\n" % (subject, sid, reply, hlen, len(body), body)
        return b"HMSG %b %b %d %d\r\n%b\r\n" % (subject, sid, hlen, len(body), body)
    if reply:
        return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(body), body)
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(body), body)


class Run:
    """Messages of one batch, encoded for any number of subscriptions.

    ``count`` messages whose bodies have ``bytes`` in all.
    """

    __slots__ = ("_alike", "_bodies", "_hlens", "_lengths", "_msgs", "_parts", "_plain", "bytes", "count", "has_headers")

    def __init__(self, msgs: Sequence[Msg]) -> None:
        self._msgs = msgs
        self._hlens: Sequence[int] | None = None
        """Set if all have the same subject, headers and no reply: answers to one request."""
        self._lengths: Sequence[int] = ()
        self._parts: list[bytes] | None = None
        self._plain: Run | None = None
        self.count = count = len(msgs)
        if count == 1:
            _, reply, hlen, body = msgs[0]
            self._bodies: Sequence[bytes] = (body,)
            self.bytes = len(body)
            self.has_headers = hlen > 0
            self._alike = not reply and not hlen
            return
        subjects, replies, hlens, bodies = zip(*msgs, strict=True)
        self._bodies = bodies
        lengths = list(map(len, bodies))
        self.bytes = sum(lengths)
        self.has_headers = any(hlens)
        same = not any(replies) and subjects.count(subjects[0]) == count
        self._alike = same and not self.has_headers and lengths.count(lengths[0]) == count
        if same and 0 not in hlens:
            self._hlens, self._lengths = hlens, lengths

    def without_headers(self) -> Run:
        """The same messages for a client without header support."""
        if not self.has_headers:
            return self
        if self._plain is None:
            self._plain = Run([(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in self._msgs])
        return self._plain

    def encode(self, sid: bytes) -> list[bytes]:
        """The wire bytes for one subscription, as buffers in order."""
        if self.bytes >= LARGE_BYTES * self.count:
            return self._encode_large(sid)
        if self._alike:
            subject = self._msgs[0][0]
            head = b"MSG %b %b %d\r\n" % (subject, sid, len(self._bodies[0]))
            if self.count == 1:
                return [b"%b%b\r\n" % (head, self._bodies[0])]
            return [head, (_CRLF + head).join(self._bodies), _CRLF]
        if self._parts is None:
            self._parts = self._split()
        return [sid.join(self._parts)]

    def encode_for_all(self, sids: Collection[bytes]) -> bytes:
        """The wire bytes of a run of one message, for each of ``sids`` in turn."""
        if self._parts is None:
            self._parts = self._split()
        before, after = self._parts
        return before + (after + before).join(sids) + after

    def _split(self) -> list[bytes]:
        """The encoded batch, split where the sids belong."""
        subject, reply, hlen, body = self._msgs[0]
        if self._hlens is not None:
            head = b"HMSG %b " % subject
            between = b" %d %d\r\n%b\r\n" + head.replace(b"%", b"%%")
            parts = [head, *[between % row for row in zip(self._hlens, self._lengths, self._bodies, strict=True)]]
            parts[-1] = parts[-1].removesuffix(head)
            return parts
        parts = [b"HMSG %b " % subject if hlen else b"MSG %b " % subject]
        before = self._msgs[0]
        append = parts.append
        for following in self._msgs[1:]:
            subject, reply, hlen, body = before
            if hlen:
                tail = (b" %b %d %d\r\n%b\r\n" % (reply, hlen, len(body), body) if reply
                        else b" %d %d\r\n%b\r\n" % (hlen, len(body), body))
                append(tail + (b"HMSG %b " if following[2] else b"MSG %b ") % following[0])
            elif following[2]:
                append((b" %b %d\r\n%b\r\nHMSG %b " if reply else b"%b %d\r\n%b\r\nHMSG %b ")
                       % (reply, len(body), body, following[0]))
            elif reply:
                append(b" %b %d\r\n%b\r\nMSG %b " % (reply, len(body), body, following[0]))
            else:
                append(b" %d\r\n%b\r\nMSG %b " % (len(body), body, following[0]))
            before = following
        subject, reply, hlen, body = before
        reply = reply + b" " if reply else b""
        append(b" %b%d %d\r\n%b\r\n" % (reply, hlen, len(body), body) if hlen
               else b" %b%d\r\n%b\r\n" % (reply, len(body), body))
        return parts

    def _encode_large(self, sid: bytes) -> list[bytes]:
        buffers: list[bytes] = []
        between = b""
        for subject, reply, hlen, body in self._msgs:
            reply = reply + b" " if reply else b""
            if hlen:
                head = b"%bHMSG %b %b %b%d %d\r\n" % (between, subject, sid, reply, hlen, len(body))
            else:
                head = b"%bMSG %b %b %b%d\r\n" % (between, subject, sid, reply, len(body))
            buffers += (head, body)
            between = _CRLF
        buffers.append(_CRLF)
        return buffers


def pub_acks(sid: bytes, replies: Sequence[bytes], prefix: bytes, first_seq: int, suffix: bytes) -> list[bytes]:
    """A plain message ``prefix + number + suffix`` to each of ``replies`` for one subscription, with ascending numbers.

    One formatting call for all numbers with the same count of digits, which determines the size in the control line.
    """
    buffers = []
    start = 0
    seq = first_seq
    escaped = (sid.replace(b"%", b"%%"), prefix.replace(b"%", b"%%"), suffix.replace(b"%", b"%%"))
    while start < len(replies):
        digits = len(str(seq))
        count = min(len(replies) - start, 10 ** digits - seq)
        template = b"MSG %%b %b %d\r\n%b%%d%b\r\n" % (escaped[0], len(prefix) + digits + len(suffix), *escaped[1:])
        flat: list[object] = [None] * (2 * count)
        flat[::2] = replies[start:start + count]
        flat[1::2] = range(seq, seq + count)
        buffers.append((template * count) % tuple(flat))
        start += count
        seq += count
    return buffers


def pub_acks_each(sid: bytes, replies: Sequence[bytes], prefixes: Sequence[bytes], seqs: Sequence[int],
                  suffix: bytes) -> tuple[bytes, int]:
    """As ``pub_acks``, but each message has its own prefix and number.

    Returns: the bytes, and how many of them belong to bodies.
    """
    count, tail = len(replies), len(suffix)
    sizes = list(map(add, map(len, prefixes), [len(str(seq)) + tail for seq in seqs]))
    template = b"MSG %%b %b %%d\r\n%%b%%d%b\r\n" % (sid.replace(b"%", b"%%"), suffix.replace(b"%", b"%%"))
    flat: list[object] = [None] * (4 * count)
    flat[::4] = replies
    flat[1::4] = sizes
    flat[2::4] = prefixes
    flat[3::4] = seqs
    return (template * count) % tuple(flat), sum(sizes)


def deliveries(sid: bytes, reply_prefix: bytes, subjects: Sequence[bytes], hlens: Sequence[int] | None,
               bodies: Sequence[bytes], numbers: Sequence[Sequence[int]]) -> list[bytes]:
    """JetStream messages for one subscription in one formatting call.

    ``numbers`` are the five columns of the ack subject after ``reply_prefix``; if that is b"", messages have no reply. All
    columns have the same length; ``hlens`` None means that no message has headers.
    """
    count = len(subjects)
    lengths = list(map(len, bodies))
    to = sid.replace(b"%", b"%%")
    if reply_prefix:
        to += b" " + reply_prefix.replace(b"%", b"%%") + b"%d.%d.%d.%d.%d"
    else:
        numbers = ()
    body_bytes = sum(lengths)
    large = body_bytes >= LARGE_BYTES * count
    tail = b"\r\n" if large else b"\r\n%b\r\n"
    plain = b"MSG %b " + to + b" %d" + tail
    if hlens is not None and any(hlens):
        with_headers = b"HMSG %b " + to + b" %d %d" + tail
    else:
        hlens = None
        with_headers = plain
    if large:
        buffers: list[bytes] = []
        for i in range(count):
            ack = [column[i] for column in numbers]
            if hlens is not None and hlens[i]:
                head = with_headers % (subjects[i], *ack, hlens[i], lengths[i])
            else:
                head = plain % (subjects[i], *ack, lengths[i])
            buffers += (_CRLF + head if i else head, bodies[i])
        buffers.append(_CRLF)
        return buffers
    if hlens is None or 0 not in hlens:
        columns: list[Sequence[object]] = [subjects, *numbers]
        if hlens is not None:
            columns.append(hlens)
        columns += (lengths, bodies)
        width = len(columns)
        flat: list[object] = [None] * (width * count)
        for at, column in enumerate(columns):
            flat[at::width] = column
        return [((plain if hlens is None else with_headers) * count) % tuple(flat)]
    template = []
    values: list[object] = []
    for i in range(count):
        values.append(subjects[i])
        values += [column[i] for column in numbers]
        if hlens[i]:
            template.append(with_headers)
            values.append(hlens[i])
        else:
            template.append(plain)
        values += (lengths[i], bodies[i])
    return [b"".join(template) % tuple(values)]
