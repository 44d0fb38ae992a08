"""The answers to direct gets as bytes: stored messages with headers that give their position, and statuses.

Source: nats-server 2.15, server/stream.go getDirectRequest, getDirectMulti.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

from broker.base.gotime import format_time, format_times
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from broker.jetstream.stream.state.stored import StoredMsg, StoredMsgs

__all__ = ["end", "fitting", "message", "messages", "status"]

_END = b"204 EOB"
_FIRST_LINE = headers.VERSION + b"\r\n"
_CRLF = b"\r\n"


def message(stream: str, reply: bytes, msg: StoredMsg, bare: bool) -> Msg:
    """Return the answer to a get of one message; ``bare``: its payload alone."""
    if bare:
        return reply, b"", 0, msg.payload
    seq, subject, hlen, body, time_ns = msg
    block = b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n" % (
        body[:hlen].removesuffix(_CRLF) or _FIRST_LINE, stream.encode(), subject, seq, format_time(time_ns).encode())
    return reply, b"", len(block), block + body[hlen:]


def messages(stream: str, reply: bytes, msgs: StoredMsgs, bare: bool, pendings: Sequence[int],
             last_seq: int) -> list[Msg]:
    """Return the answers of a batch.

    Args: ``pendings``: the number of messages that follow each; ``last_seq``: the sequence sent before ``msgs``, 0 if
        they begin the batch.
    """
    seqs, subjects, hlens, bodies, times_ns = msgs
    heads: Sequence[bytes] = (_FIRST_LINE,) * len(seqs)
    if hlens is not None and any(hlens):
        if not bare:
            heads = [body[:hlen].removesuffix(_CRLF) or _FIRST_LINE for body, hlen in zip(bodies, hlens, strict=True)]
        bodies = [body[hlen:] for body, hlen in zip(bodies, hlens, strict=True)]
    if bare:
        return [(reply, b"", 0, body) for body in bodies]
    template = (b"%%bNats-Stream: %b\r\nNats-Subject: %%b\r\nNats-Sequence: %%d\r\nNats-Time-Stamp: %%b\r\n"
                b"Nats-Num-Pending: %%d\r\nNats-Last-Sequence: %%d\r\n\r\n%%b") % stream.encode().replace(b"%", b"%%")
    rows = zip(heads, subjects, seqs, format_times(times_ns), pendings, (last_seq, *seqs[:-1]), bodies, strict=True)
    return [(reply, b"", len(whole) - len(body), whole)
            for whole, body in zip([template % row for row in rows], bodies, strict=True)]


def fitting(msgs: StoredMsgs, bytes_max: int) -> tuple[int, int]:
    """Return how many of ``msgs`` fit into a batch, and their bytes as limits count them.

    The message that reaches ``bytes_max`` is the last that fits.
    """
    sizes = list(map(add, map(len, msgs.subjects), map(len, msgs.bodies)))
    total = sum(sizes)
    if total < bytes_max:
        return len(sizes), total
    for n, size in enumerate(accumulate(sizes), 1):
        if size >= bytes_max:
            return n, size
    return len(sizes), total


def end(reply: bytes, pending: int, last_seq: int, up_to_seq: int | None = None) -> Msg:
    """Return the end of a batch, with the number of messages that follow its last one."""
    items = [(b"Nats-Num-Pending", b"%d" % pending), (b"Nats-Last-Sequence", b"%d" % last_seq)]
    if up_to_seq is not None:
        items.append((b"Nats-UpTo-Sequence", b"%d" % up_to_seq))
    block = headers.build(items, _END)
    return reply, b"", len(block), block


def status(reply: bytes, text: bytes) -> Msg:
    """Return an answer without a message."""
    block = headers.build((), text)
    return reply, b"", len(block), block
