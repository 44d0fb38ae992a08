"""A source: copies messages of the origin as next messages of a stream, with a header that locates them in the origin.

    Nats-Stream-Source: <origin> <its sequence there> <filters> <destinations> <its subject there> <identity of the
    origin>

Its position is stored with the messages (positions), so a restart neither repeats nor skips any message, even if all
copied messages have been removed since then.

Source: nats-server, server/stream.go, trySetupSourceConsumer, processInboundSourceMsg, genSourceHeader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.config.upstream_rules import source_name
from broker.jetstream.stream.publish.copies import Run
from broker.jetstream.stream.publish.sources import SOURCE
from broker.jetstream.stream.upstream.follower import Follower, FollowerParts, Target, behind
from broker.jetstream.stream.upstream.origin import Batch, Origin, identity_of
from broker.jetstream.stream.upstream.positions import Position
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from broker.jetstream.config.stream import StreamSource
    from broker.jetstream.stream.upstream.deliveries import Deliveries

__all__ = ["Source"]


class Source(Follower):
    """A source of a stream; ``name`` distinguishes it from the stream's other sources."""

    def __init__(self, target: Target, given: StreamSource, parts: FollowerParts) -> None:
        self.name = source_name(given)
        self._origin_name, self._filters, self._destinations = self.name.encode().split(b" ", 2)
        super().__init__(target, given, parts)

    async def start(self, origin: Origin) -> int:
        """Return the sequence after the last message copied from this same origin; otherwise as configured."""
        given = self.given
        position = self._target.positions.get(self.name)
        if seq := position.seq_in(identity_of(origin)):
            return seq + 1
        if given.opt_start_seq:
            return given.opt_start_seq
        if given.opt_start_time is not None:
            return await origin.seq_at(given.opt_start_time)
        return max(origin.first_seq, 1)

    def begin(self, identity: str, last_seq: int) -> int:
        """Return the sequence after the last message copied from this same origin. Another origin of the same name is
        copied from the beginning."""
        seq = self._target.positions.get(self.name).seq_in(identity)
        if seq > last_seq:
            raise ApiError(ApiErrors.SOURCE_CONSUMER_SETUP_FAILED, err=behind(self.given.name, last_seq, seq))
        return seq and seq + 1

    def reached(self, deliveries: Deliveries) -> int:
        position = self._target.positions.get(self.name)
        return max(deliveries.stream_seq, position.seq_in(deliveries.identity))

    async def store(self, identity: str, batch: Batch) -> ApiError | None:
        seqs = batch.seqs

        def stored(count: int) -> None:
            if count:
                self._target.positions.move(self.name, Position(seqs[count - 1], identity))

        msgs = [self._msg(identity.encode(), seq, subject, hlen, body) for seq, subject, hlen, body in zip(
            seqs, batch.subjects, batch.hlens, batch.bodies, strict=True)]
        return await self._target.copies.store([Run(0, [self._clock.now_ns()] * len(msgs), msgs)], stored)

    def next_seq(self, batch: Batch) -> int:
        return batch.end_seq

    def position(self) -> int:
        return self._target.positions.get(self.name).seq

    def _msg(self, identity: bytes, seq: int, subject: bytes, hlen: int, body: bytes) -> Msg:
        value = b"%b %d %b %b %b %b" % (self._origin_name, seq, self._filters, self._destinations, subject, identity)
        block = headers.set(headers.remove(body[:hlen], SOURCE) if hlen else b"", SOURCE, value)
        return self.subject(subject), b"", len(block), block + body[hlen:]
