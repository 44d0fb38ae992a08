"""A mirror: each message of the origin under its own sequence and time.

Messages that the origin has removed, or that filters exclude, are gaps in the mirror too. The mirror's last sequence is
also its position, from which it continues after a restart. Messages that the origin removes later stay in the mirror.

Source: nats-server, server/stream.go, setupMirrorConsumer, processInboundMirrorMsg; server/consumer.go,
selectStartingSeqNo.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from broker.jetstream.stream.publish.copies import Run
from broker.jetstream.stream.upstream.follower import Follower, behind
from broker.jetstream.stream.upstream.origin import Batch, Origin
from broker.jetstream.stream.upstream.positions import Position
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.stream.upstream.deliveries import Deliveries

__all__ = ["Mirror"]

_NAME = ""
"""The name under which the identity of the origin is stored, beside the positions of sources."""


class Mirror(Follower):
    """The mirror of one stream, which accepts no other messages."""

    MIRRORS = True

    async def start(self, origin: Origin) -> int:
        """Return the first sequence to read. A re-created origin is copied only from past the last sequence here."""
        given, last_seq = self.given, self._target.last_seq
        if last_seq:
            seq = last_seq + 1
        elif given.opt_start_seq:
            seq = given.opt_start_seq
        elif given.opt_start_time is not None:
            seq = await origin.seq_at(given.opt_start_time)
        else:
            seq = 1
        seq = max(min(seq, origin.last_seq + 1), origin.first_seq)
        if seq - 1 > self._target.last_seq:
            self._target.copies.skip_to(seq - 1)
        return max(seq, self._target.last_seq + 1)

    def begin(self, identity: str, last_seq: int) -> int:
        """Return the sequence after the last one here. Raises: ApiError if the origin is another stream now."""
        reached, before = self._target.last_seq, self._target.positions.get(_NAME).identity
        if before and before != identity:
            raise _failed(f"stream {self.given.name} was deleted and made again at the origin, so this mirror, which "
                          f"has messages of the stream before it, stops: mirror the new stream under another name")
        if reached > last_seq:
            raise _failed(behind(self.given.name, last_seq, reached))
        return reached and reached + 1

    def reached(self, deliveries: Deliveries) -> int:
        if deliveries.stream_seq > self._target.last_seq:
            self._target.copies.skip_to(deliveries.stream_seq)
        return self._target.last_seq

    async def store(self, identity: str, batch: Batch) -> ApiError | None:
        """Store a batch as runs; a run has consecutive sequences in the origin."""
        def stored(count: int) -> None:
            if count and outside and positions.get(_NAME).identity != identity:
                positions.move(_NAME, Position(0, identity))

        positions, outside = self._target.positions, self.given.external is not None
        runs: list[Run] = []
        seqs, times_ns, subjects = batch.seqs, batch.times_ns, batch.subjects
        if self._transforms:
            subjects = list(map(self.subject, subjects))
        msgs = list(zip(subjects, repeat(b""), batch.hlens, batch.bodies))
        start, count = 0, len(seqs)
        if seqs[-1] - seqs[0] + 1 == count:
            runs.append(Run(seqs[0], times_ns, msgs))
        else:
            for at in range(1, count + 1):
                if at == count or seqs[at] != seqs[at - 1] + 1:
                    runs.append(Run(seqs[start], times_ns[start:at], msgs[start:at]))
                    start = at
        return await self._target.copies.store(runs, stored)

    def next_seq(self, batch: Batch) -> int:
        return max(batch.end_seq, self._target.last_seq + 1)


def _failed(why: str) -> ApiError:
    return ApiError(ApiErrors.MIRROR_CONSUMER_SETUP_FAILED, err=why)
