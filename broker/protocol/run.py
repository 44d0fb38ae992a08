"""Runs: messages that are delivered together, before a protocol encodes them.

    Run             any messages, for one subscription or many
    DeliveryRun     JetStream deliveries for one subscription, as columns
    PubAckRun       PubAcks of one stream, with ascending sequences
    MixedPubAckRun  PubAcks of several streams, each with its own prefix and sequence

The router hands a run to a peer, and the peer encodes it for its protocol; ``protocol.encoder`` does so for clients. A
protocol without a faster way encodes ``msgs``, which each kind of run has.

Owns: the messages, and the totals that every peer counts. Does not own: bytes on the wire, subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any, Final

__all__ = ["LARGE_BYTES", "AnyRun", "DeliveryRun", "MixedPubAckRun", "Msg", "PubAckRun", "Run", "mixed_pub_acks",
           "pub_acks"]

Msg = tuple[bytes, bytes, int, bytes]
"""A message: subject, reply or b"", header length, headers + payload."""

LARGE_BYTES: Final = 8192
"""Average size of bodies from which messages are not joined before they are written to the socket."""


class Run:
    """Messages for any number of subscriptions.

    Attributes:
        count, bytes: the number of messages, and the total size of their bodies.
        alike: flag; all have the same subject and size, no reply, and no headers.
        hlens, lengths: sizes of headers and bodies if all messages have the same subject, headers and no reply, as the
            answers to one request do; otherwise empty.
        encodings: encoded parts that all subscriptions share, by the function that made them.
    """

    __slots__ = ("_plain", "alike", "bodies", "bytes", "count", "encodings", "has_headers", "hlens", "lengths", "msgs")

    def __init__(self, msgs: Sequence[Msg]) -> None:
        self.msgs = msgs
        self.hlens: Sequence[int] = ()
        self.lengths: Sequence[int] = ()
        self.encodings: dict[Callable[[Run], Any], Any] = {}
        self._plain: Run | None = None
        self.count = count = len(msgs)
        if count == 1:
            _, reply, hlen, body = msgs[0]
            self.bodies: Sequence[bytes] = (body,)
            self.bytes = len(body)
            self.has_headers = hlen > 0
            self.alike = not reply and not hlen
            return
        subjects, replies, hlens, bodies = zip(*msgs, strict=True)
        self.bodies = bodies
        lengths = list(map(len, bodies))
        self.bytes = sum(lengths)
        self.has_headers = any(hlens)
        same = not any(replies) and subjects.count(subjects[0]) == count
        self.alike = same and not self.has_headers and lengths.count(lengths[0]) == count
        if same and 0 not in hlens:
            self.hlens, self.lengths = hlens, lengths

    def without_headers(self) -> Run:
        """Return the same messages for a peer without header support."""
        if not self.has_headers:
            return self
        if self._plain is None:
            self._plain = Run([(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in self.msgs])
        return self._plain


class DeliveryRun:
    """JetStream deliveries.

    Args:
        ``numbers``: the five columns of the ack subject after ``reply_prefix``. Without a prefix (b"") messages have no
        reply. All columns have the same length;
        ``hlens``: None means that no message has headers.
    """

    __slots__ = ("bodies", "bytes", "count", "hlens", "lengths", "numbers", "reply_prefix", "subjects")

    def __init__(self, reply_prefix: bytes, subjects: Sequence[bytes], hlens: Sequence[int] | None,
                 bodies: Sequence[bytes], numbers: Sequence[Sequence[int]]) -> None:
        self.reply_prefix = reply_prefix
        self.subjects = subjects
        self.hlens = hlens
        self.bodies = bodies
        self.numbers = numbers
        self.count = len(subjects)
        self.lengths = list(map(len, bodies))
        self.bytes = sum(self.lengths)

    @property
    def msgs(self) -> list[Msg]:
        prefix, count = self.reply_prefix, self.count
        replies = ([b"%b%d.%d.%d.%d.%d" % (prefix, *row) for row in zip(*self.numbers, strict=True)] if prefix
                   else [b""] * count)
        return list(zip(self.subjects, replies, self.hlens or [0] * count, self.bodies, strict=True))

    def without_headers(self) -> DeliveryRun:
        """Return the same deliveries for a peer without header support."""
        if self.hlens is None:
            return self
        bodies = [body[hlen:] for body, hlen in zip(self.bodies, self.hlens, strict=True)]
        return DeliveryRun(self.reply_prefix, self.subjects, None, bodies, self.numbers)


class PubAckRun:
    """PubAcks of one stream: ``prefix + number + suffix`` to each of ``replies``; numbers ascend from ``first_seq``."""

    __slots__ = ("bytes", "count", "first_seq", "prefix", "replies", "suffix")

    def __init__(self, replies: Sequence[bytes], prefix: bytes, first_seq: int, suffix: bytes) -> None:
        self.replies = replies
        self.prefix = prefix
        self.first_seq = first_seq
        self.suffix = suffix
        self.count = count = len(replies)
        last = first_seq + count - 1
        self.bytes = count * (len(prefix) + len(suffix)) + (
            count * len(str(last)) if len(str(first_seq)) == len(str(last))
            else sum(len(str(seq)) for seq in range(first_seq, last + 1)))

    @property
    def msgs(self) -> list[Msg]:
        return pub_acks(self.replies, self.prefix, self.first_seq, self.suffix)

    def without_headers(self) -> PubAckRun:
        return self


def pub_acks(replies: Sequence[bytes], prefix: bytes, first_seq: int, suffix: bytes) -> list[Msg]:
    """Return the messages of a ``PubAckRun``; an empty reply gets none."""
    return [(reply, b"", 0, b"%b%d%b" % (prefix, seq, suffix)) for seq, reply in enumerate(replies, first_seq) if reply]


class MixedPubAckRun:
    """PubAcks of several streams: ``prefixes[i] + seqs[i] + suffix`` to ``replies[i]``."""

    __slots__ = ("bytes", "count", "prefixes", "replies", "seqs", "sizes", "suffix")

    def __init__(self, replies: Sequence[bytes], prefixes: Sequence[bytes], seqs: Sequence[int], suffix: bytes) -> None:
        self.replies = replies
        self.prefixes = prefixes
        self.seqs = seqs
        self.suffix = suffix
        self.count = len(replies)
        tail = len(suffix)
        self.sizes = list(map(add, map(len, prefixes), [len(str(seq)) + tail for seq in seqs]))
        self.bytes = sum(self.sizes)

    @property
    def msgs(self) -> list[Msg]:
        return mixed_pub_acks(self.replies, self.prefixes, self.seqs, self.suffix)

    def without_headers(self) -> MixedPubAckRun:
        return self


def mixed_pub_acks(replies: Sequence[bytes], prefixes: Sequence[bytes], seqs: Sequence[int],
                   suffix: bytes) -> list[Msg]:
    """Return the messages of a ``MixedPubAckRun``."""
    return [(reply, b"", 0, b"%b%d%b" % (prefix, seq, suffix))
            for reply, prefix, seq in zip(replies, prefixes, seqs, strict=True)]


AnyRun = Run | DeliveryRun | PubAckRun | MixedPubAckRun
