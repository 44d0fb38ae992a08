"""Encoding for clients: values to bytes, many messages in one formatting call.

``encode`` makes the bytes of a run for one subscription. The parts that depend only on the messages are encoded once,
on demand; adding a subscription's sid then costs one join. Measured with 128-byte messages: one ``%`` for a whole
batch costs half of one ``%`` per message, and a join with the sid as the separator a tenth of that.

    all alike (subject, size, no reply, no headers)   head.join(bodies)
    otherwise                                         sid.join(parts), where parts are the bytes between two sids
    bodies of 8 KiB and more on average               a list for writelines, since copying the bodies would dominate

Source: nats-server, server/client.go (msgHeader).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.protocol.run import LARGE_BYTES, AnyRun, DeliveryRun, MixedPubAckRun, Msg, PubAckRun, Run

__all__ = ["OK", "PING", "PONG", "encode", "encode_for_all", "encode_one", "err", "info", "no_responders"]

OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

_CRLF: Final = b"\r\n"


def info(fields: Mapping[str, object]) -> bytes:
    """Encode an INFO line."""
    return b"INFO %b \r\n" % json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def err(text: str) -> bytes:
    """Encode an -ERR line; ``text`` has no quotes around it."""
    return b"-ERR '%b'\r\n" % text.encode("utf-8", "surrogateescape")


def no_responders(subject: bytes, reply: bytes, sid: bytes) -> bytes:
    """Encode the 503 that answers a request without receivers. Source: processInboundClientMsg."""
    block = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
    return b"HMSG %b %b %d %d\r\n%b\r\n" % (reply, sid, len(block), len(block), block)


def encode(run: AnyRun, sid: bytes) -> list[bytes]:
    """Encode a run for one subscription. Returns: buffers in order."""
    if not isinstance(run, Run):
        return _encode_columns(run, sid)
    if run.bytes >= LARGE_BYTES * run.count:
        return _encode_large(run, sid)
    if run.alike:
        subject = run.msgs[0][0]
        bodies = run.bodies
        head = b"MSG %b %b %d\r\n" % (subject, sid, len(bodies[0]))
        if run.count == 1:
            return [b"%b%b\r\n" % (head, bodies[0])]
        return [head, (_CRLF + head).join(bodies), _CRLF]
    encodings = run.encodings
    if _split not in encodings:
        encodings[_split] = _split(run)
    return [sid.join(encodings[_split])]


def encode_for_all(run: Run, sids: Iterable[bytes]) -> bytes:
    """Encode a run of one message for each of ``sids`` in turn."""
    encodings = run.encodings
    if _split not in encodings:
        encodings[_split] = _split(run)
    parts: list[bytes] = encodings[_split]
    before, after = parts
    return before + (after + before).join(sids) + after


def encode_one(sid: bytes, msg: Msg) -> bytes:
    """Encode one message for one subscription."""
    subject, reply, hlen, body = msg
    if hlen:
        if reply:
            return b"HMSG %b %b %b %d %d\r\n%b\r\n" % (subject, sid, reply, hlen, len(body), body)
        return b"HMSG %b %b %d %d\r\n%b\r\n" % (subject, sid, hlen, len(body), body)
    if reply:
        return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(body), body)
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(body), body)


def _encode_columns(run: DeliveryRun | PubAckRun | MixedPubAckRun, sid: bytes) -> list[bytes]:
    if isinstance(run, DeliveryRun):
        return _encode_deliveries(run, sid)
    return _encode_pub_acks(run, sid) if isinstance(run, PubAckRun) else _encode_mixed_pub_acks(run, sid)


def _split(run: Run) -> list[bytes]:
    """Encode a run, split at the places of the sids."""
    subject, reply, hlen, body = run.msgs[0]
    if run.hlens:
        head = b"HMSG %b " % subject
        between = b" %d %d\r\n%b\r\n" + head.replace(b"%", b"%%")
        parts = [head, *[between % row for row in zip(run.hlens, run.lengths, run.bodies, strict=True)]]
        parts[-1] = parts[-1].removesuffix(head)
        return parts
    parts = [b"HMSG %b " % subject if hlen else b"MSG %b " % subject]
    before = run.msgs[0]
    for following in run.msgs[1:]:
        subject, reply, hlen, body = before
        if hlen:
            tail = (b" %b %d %d\r\n%b\r\n" % (reply, hlen, len(body), body) if reply
                    else b" %d %d\r\n%b\r\n" % (hlen, len(body), body))
            parts.append(tail + (b"HMSG %b " if following[2] else b"MSG %b ") % following[0])
        elif following[2]:
            parts.append((b" %b %d\r\n%b\r\nHMSG %b " if reply else b"%b %d\r\n%b\r\nHMSG %b ")
                   % (reply, len(body), body, following[0]))
        elif reply:
            parts.append(b" %b %d\r\n%b\r\nMSG %b " % (reply, len(body), body, following[0]))
        else:
            parts.append(b" %d\r\n%b\r\nMSG %b " % (len(body), body, following[0]))
        before = following
    subject, reply, hlen, body = before
    reply = reply + b" " if reply else b""
    parts.append(b" %b%d %d\r\n%b\r\n" % (reply, hlen, len(body), body) if hlen
           else b" %b%d\r\n%b\r\n" % (reply, len(body), body))
    return parts


def _encode_large(run: Run, sid: bytes) -> list[bytes]:
    buffers: list[bytes] = []
    between = b""
    for subject, reply, hlen, body in run.msgs:
        reply = reply + b" " if reply else b""
        if hlen:
            head = b"%bHMSG %b %b %b%d %d\r\n" % (between, subject, sid, reply, hlen, len(body))
        else:
            head = b"%bMSG %b %b %b%d\r\n" % (between, subject, sid, reply, len(body))
        buffers += (head, body)
        between = _CRLF
    buffers.append(_CRLF)
    return buffers


def _encode_pub_acks(run: PubAckRun, sid: bytes) -> list[bytes]:
    """Encode PubAcks with one formatting call for all numbers of the same count of digits.

    That count determines the size in the control line.
    """
    replies, prefix, suffix = run.replies, run.prefix, run.suffix
    buffers = []
    start = 0
    seq = run.first_seq
    escaped = (sid.replace(b"%", b"%%"), prefix.replace(b"%", b"%%"), suffix.replace(b"%", b"%%"))
    while start < len(replies):
        digits = len(str(seq))
        count = min(len(replies) - start, 10 ** digits - seq)
        template = b"MSG %%b %b %d\r\n%b%%d%b\r\n" % (
            escaped[0], len(prefix) + digits + len(suffix), *escaped[1:])
        flat: list[object] = [None] * (2 * count)
        flat[::2] = replies[start:start + count]
        flat[1::2] = range(seq, seq + count)
        buffers.append((template * count) % tuple(flat))
        start += count
        seq += count
    return buffers


def _encode_mixed_pub_acks(run: MixedPubAckRun, sid: bytes) -> list[bytes]:
    count = run.count
    template = b"MSG %%b %b %%d\r\n%%b%%d%b\r\n" % (sid.replace(b"%", b"%%"), run.suffix.replace(b"%", b"%%"))
    flat: list[object] = [None] * (4 * count)
    flat[::4] = run.replies
    flat[1::4] = run.sizes
    flat[2::4] = run.prefixes
    flat[3::4] = run.seqs
    return [(template * count) % tuple(flat)]


def _encode_deliveries(run: DeliveryRun, sid: bytes) -> list[bytes]:
    """Encode JetStream messages, in one formatting call if they are small; without replies, if alike, by one join."""
    count, subjects, hlens, bodies, lengths = run.count, run.subjects, run.hlens, run.bodies, run.lengths
    large = run.bytes >= LARGE_BYTES * count
    if (not large and not run.reply_prefix and hlens is None and lengths.count(lengths[0]) == count
            and subjects.count(subjects[0]) == count):
        head = b"MSG %b %b %d\r\n" % (subjects[0], sid, lengths[0])
        return [head, (_CRLF + head).join(bodies), _CRLF]
    numbers = run.numbers if run.reply_prefix else ()
    to = sid.replace(b"%", b"%%")
    if run.reply_prefix:
        to += b" " + run.reply_prefix.replace(b"%", b"%%") + b"%d.%d.%d.%d.%d"
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
