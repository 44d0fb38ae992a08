"""A stream's replies to publishers: PubAcks, duplicates and refusals, and when they are sent.

Owns: the bytes of replies, and the rule that no reply reveals state that a crash undoes. Does not own: the decisions
(checks, sequencer).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.base.gojson.encoding import marshal
from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Replies"]

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class Replies:
    """The replies of one stream. Call ``configure`` after each change of its configuration.

    Attributes: ``prefix``: the beginning of each PubAck; the sequence and a brace follow. ``dropped``: number of
        publishes without a reply subject for which there was no room.
    """

    def __init__(self, parts: StreamParts) -> None:
        self._stream, self._log, self._bus, self._domain = parts.stream, parts.log, parts.bus, parts.domain
        self.dropped = 0

    def configure(self, config: StreamConfig) -> None:
        """Apply the reply settings of ``config``."""
        self._acks = not config.no_ack
        self._async = config.persist_mode == "async" and config.storage != "memory"
        name = json.dumps(config.name, ensure_ascii=False)
        domain = f'"domain":{json.dumps(self._domain, ensure_ascii=False)},' if self._domain else ""
        self.prefix = f'{{"stream":{name},{domain}"seq":'.encode()
        self._refusal_tail = b',"stream":%b,"seq":0}' % marshal(config.name)

    # --- sent when safe -----------------------------------------------------------------------------------------------

    def accepted(self, source: Source | None, replies: Sequence[bytes], first_seq: int) -> None:
        """Queue PubAcks for messages from ``first_seq`` on; b"" among ``replies`` requests none."""
        if isinstance(source, PubAckReceiver):
            self._later(source.stored, replies, first_seq)
        elif self._acks and any(replies):
            self._later(self._bus.pub_acks, source, replies, self.prefix, first_seq, b"}")

    def counted(self, source: Source | None, replies: Sequence[bytes], first_seq: int, totals: Sequence[int]) -> None:
        """Queue PubAcks for counters: the same as ``accepted``, with the total in each that is a message."""
        if isinstance(source, PubAckReceiver):
            self.accepted(source, replies, first_seq)
            return
        for seq, (reply, total) in enumerate(zip(replies, totals, strict=True), first_seq):
            if self._acks and reply:
                self._later(self._bus.publish, reply, b"", 0, b'%b%d,"val":"%d"}' % (self.prefix, seq, total))

    def duplicate(self, source: Source | None, reply: bytes, seq: int) -> None:
        """Queue the PubAck of a message that was stored before, as ``seq``."""
        if isinstance(source, PubAckReceiver):
            self._later(source.duplicate, reply, seq)
        elif self._acks and reply:
            self._later(self._bus.publish, reply, b"", 0, b'%b%d,"duplicate": true}' % (self.prefix, seq))

    def committed(self, reply: bytes, batch_id: bytes, count: int, seq: int) -> None:
        """Queue the PubAck of a batch of ``count`` messages, the last one stored as ``seq``."""
        if self._acks and reply:
            self._log.skip_interval()
            self._later(self._bus.publish, reply, b"", 0, self.batch_ack(seq, batch_id, count))

    def batch_answered(self, reply: bytes, answer: bytes) -> None:
        """Queue a fast-ingest batch's answer, made from the sequenced state; sent even if the stream does not
        acknowledge. Its publisher sends a limited number of messages ahead, so it must not wait for the interval."""
        self._log.skip_interval()
        self._later(self._bus.publish, reply, b"", 0, answer)

    def begun(self, reply: bytes, answer: bytes) -> None:
        """Queue the first answer of a fast-ingest batch. It reveals no state, but must not overtake earlier answers."""
        if self._acks:
            self.batch_answered(reply, answer)

    def batch_ack(self, seq: int, batch_id: bytes, count: int, duplicate: bool = False) -> bytes:
        """Return the bytes of a batch's PubAck."""
        named = json.dumps(batch_id.decode("utf-8", "replace"), ensure_ascii=False).encode()
        before = b',"duplicate": true' if duplicate else b""
        return b'%b%d%b,"batch":%b,"count":%d}' % (self.prefix, seq, before, named, count)

    def refused(self, source: Source | None, reply: bytes, error: ApiError) -> None:
        """Queue the refusal of a message, which was decided from the sequenced state."""
        if isinstance(source, PubAckReceiver):
            self._later(source.refused, (reply,), error)
        elif self._acks and reply:
            self._later(self._bus.publish, reply, b"", 0, self._refusal(error))

    def _later(self, fn: object, *args: object) -> None:
        """Send a reply in log order; or at once in an async stream, whose PubAcks do not wait for the store."""
        log = self._log
        if self._async and not log.lease_expired:
            fn(*args)  # type: ignore[operator]
        else:
            log.wait_safe(fn, *args, of=self._stream)  # type: ignore[arg-type]

    def withdrawn(self, fn: object, items: list[Any]) -> list[Any]:
        """Return ``items``, collected for ``pub_acks_each``, without those of this stream, whose messages are not
        stored."""
        if fn != self._bus.pub_acks_each:
            return items
        prefix = self.prefix
        return [item for at in range(0, len(items), 3) if items[at + 1] != prefix for item in items[at:at + 3]]

    # --- sent at once -------------------------------------------------------------------------------------------------

    def staged(self, reply: bytes) -> None:
        """Reply that the message is staged for its batch's commit.

        Publishers count these replies, which reveal no state.
        """
        if self._acks and reply:
            self._bus.publish(reply, b"", 0, b"")

    def turn_away(self, source: Source | None, run: Sequence[Msg]) -> None:
        """Refuse publishes at once because there is no room; nothing was decided about them."""
        self.dropped += sum(not op[1] for op in run)
        if self._log.full:
            self.fail(source, run, ApiError(ApiErrors.INSUFFICIENT_RESOURCES))
            return
        error = ApiError(ApiErrors.STREAM_TOO_MANY_REQUESTS)
        if isinstance(source, PubAckReceiver):
            self.fail(source, run, error)
            return
        body = _TOO_MANY_REQUESTS + self._refusal(error)
        for reply in (op[1] for op in run):
            if reply:
                self._bus.publish(reply, b"", len(_TOO_MANY_REQUESTS), body)

    def fail(self, source: Source | None, run: Sequence[Msg], error: ApiError) -> None:
        """Refuse publishes whose decision failed."""
        if isinstance(source, PubAckReceiver):
            source.refused([op[1] for op in run], error)
            return
        body = self._refusal(error)
        for reply in (op[1] for op in run):
            if reply and self._acks:
                self._bus.publish(reply, b"", 0, body)

    def _refusal(self, error: ApiError) -> bytes:
        shown = marshal(error.to_json())
        return b'{"error":%b%b' % (shown, self._refusal_tail)
