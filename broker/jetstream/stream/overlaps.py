"""Streams whose subjects overlap, if the owner allows that: each stores a message, and one answers the publisher.

    published      orders.eu, reply _INBOX.1
    AUDIT  (">", created second)        stores it, with the reply subject removed
    ORDERS ("orders.*", created first)  stores it, and sends the PubAck

Of the streams that acknowledge, the one created first answers; ``Nats-Expected-Stream`` chooses another one. Every
stream decides for itself: its limits, its window of ids and the publisher's expectations are its own. So one stream may
store a message that another refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.jetstream.stream.publish import headers
from broker.jetstream.stream.publish.batches import FAST_INGEST
from broker.jetstream.stream.publish.expectations import STREAM
from broker.jetstream.stream.publish.fast import FastMessage, Operation
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import matches
from broker.protocol.traced import TracedMsg

if TYPE_CHECKING:
    from broker.jetstream.bus import BatchHandler, Msg, Source
    from broker.jetstream.stream.stream import Stream

__all__ = ["Overlaps"]

_SUBJECTS_MAX = 65_536
"""Maximum number of subjects whose streams are cached."""

_EXPECTED = frozenset((STREAM,))
_NOT_STORED = (Operation.END, Operation.PING)


class Overlaps:
    """The streams of one account by the subjects that they have in common."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._by_subject: dict[bytes, tuple[Stream, ...]] = {}

    def changed(self, stream: Stream) -> None:
        """Add a stream, or update it after a change of its configuration."""
        if stream not in self._streams:
            self._streams.append(stream)
            self._streams.sort(key=lambda each: (each.created_ns, each.stream_id))
            stream.sequencer.context.shares = self.has
        self._by_subject.clear()

    def removed(self, stream: Stream) -> None:
        """Remove a stream, which no longer receives messages."""
        if stream in self._streams:
            self._streams.remove(stream)
            self._by_subject.clear()

    def has(self, subject: bytes, name: bytes) -> bool:
        """Return whether the stream called ``name`` stores ``subject``."""
        return any(stream.name.encode() == name for stream in self._streams_of(subject))

    def handler(self, stream: Stream) -> BatchHandler:
        """Return the function that passes publishes to the stream."""
        def publish(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            run = ops if start == 0 and end == len(ops) else ops[start:end]
            if any(len(self._streams_of(op[0])) > 1 for op in run):
                run = [kept for op in run if (kept := self._msg_for(stream, op)) is not None]
            if run:
                stream.publish(run, 0, len(run), source, now_ns)
        return publish

    def _streams_of(self, subject: bytes) -> tuple[Stream, ...]:
        """Return the streams that store a subject, in order of creation."""
        found = self._by_subject.get(subject)
        if found is None:
            if len(self._by_subject) >= _SUBJECTS_MAX:
                self._by_subject.clear()
            found = self._by_subject[subject] = tuple(
                stream for stream in self._streams
                if any(matches(pattern, subject) for pattern in stream.config.subjects_bytes))
        return found

    def _msg_for(self, stream: Stream, msg: Msg) -> Msg | None:
        """Return the message for the stream; None if it is a request to the stream that answers."""
        subject, reply, hlen, body = msg
        if not reply or self._answering(msg) is stream:
            return msg
        if reply.endswith(FAST_INGEST):
            try:
                if FastMessage.parse(reply).operation in _NOT_STORED:
                    return None
            except ApiError:
                return None  # refused by the stream that answers
        unanswered = subject, b"", hlen, body
        return msg.as_changed(unanswered) if isinstance(msg, TracedMsg) else unanswered

    def _answering(self, msg: Msg) -> Stream:
        streams = self._streams_of(msg[0])
        if msg[2]:
            expected = headers.find(msg[3][:msg[2]], _EXPECTED).get(STREAM)
            for stream in streams:
                if stream.name.encode() == expected:
                    return stream
        return next((stream for stream in streams if not stream.config.no_ack), streams[0])
