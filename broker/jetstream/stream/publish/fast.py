"""Fast-ingest batches: messages that are stored one by one and acknowledged periodically.

Each message has its place in its reply subject, to which the client subscribes by a wildcard:

    <inbox>.<batch>.<flow>.<gap>.<place>.<operation>.$FI     flow: the most messages from one ack to the next
                                                             gap: ``ok`` or ``fail``; operation: ``Operation``

It is answered there with one of:

    {"type":"ack","seq":…,"msgs":…}          stored up to this place; messages per ack from now on
    {"type":"gap","last_seq":…,"seq":…}      this message came instead of last_seq
    {"type":"err","seq":…,"error":{…}}       this message was refused
    a PubAck with ``batch`` and ``count``    the batch has ended: by its commit, or by a gap or error if gap is ``fail``

Owns: the open batches and these answers. Does not own: storing or refusing a message (sequencer), the time at which an
answer may be sent (replies). A batch's state follows the sequencer, as if all messages that it has placed were stored.

Source: nats-server, server/stream.go, getFastBatch, processJetStreamFastBatchMsg; server/jetstream_batching.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from broker.jetstream.stream.publish.idle import IdleTimer
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import INT64_MAX, UINT64_MAX, decimal

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.bus import Msg
    from broker.jetstream.inflight import Inflight

__all__ = ["FastBatch", "FastBatches", "FastMessage", "FastRun", "Operation"]

_ID_BYTES_MAX = 64
_FLOW_DEFAULT = 10
_FLOW_MAX = 65_535
_ACK_EVERY_MAX = 500
"""Acknowledge at least once in this many messages, counted over all open batches of the stream."""


class Operation(IntEnum):
    """The request of a message; ``END`` commits without being stored."""

    START = 0
    APPEND = 1
    COMMIT = 2
    END = 3
    PING = 4


class FastMessage(NamedTuple):
    """The fields of a reply subject."""

    batch_id: bytes
    flow: int
    gap_ok: bool
    place: int
    operation: Operation

    @classmethod
    def parse(cls, reply: bytes) -> FastMessage:
        """Parse a reply subject. Raises: ApiError 10206."""
        tokens = reply.rsplit(b".", 6)
        if len(tokens) < 7:  # the inbox is at least one token
            raise ApiError(ApiErrors.BATCH_PUBLISH_INVALID_PATTERN)
        _, batch_id, flow, gap, place, operation, _ = tokens
        number, at = decimal(operation), decimal(place)
        if (not 0 <= number <= Operation.PING or not 0 < at < UINT64_MAX or gap not in (b"ok", b"fail")
                or (at == 1 and number in (Operation.APPEND, Operation.END)) or (at > 1 and number == Operation.START)):
            raise ApiError(ApiErrors.BATCH_PUBLISH_INVALID_PATTERN)
        every = decimal(flow, INT64_MAX)
        return cls(batch_id, min(every, _FLOW_MAX) if every > 0 else _FLOW_DEFAULT, gap == b"ok", at, Operation(number))

    @property
    def commits(self) -> bool:
        return self.operation in (Operation.COMMIT, Operation.END)


class FastBatch:
    """An open batch.

    Attributes: ``last``: its last message's place; ``done``: the place up to which all messages are decided; ``acked``:
        the place in the last ack; ``every``: messages from one ack to the next, at most ``every_max``; ``seq``:
        sequence of the last stored message; ``waiting``: a message that waits for the data of its checks, or None.
    """

    __slots__ = ("acked", "batch_id", "deadline_ns", "done", "every", "every_max", "gap_ok", "last", "seq", "waiting")

    def __init__(self, batch_id: bytes, gap_ok: bool, every_max: int, every: int) -> None:
        self.batch_id = batch_id
        self.gap_ok = gap_ok
        self.every_max, self.every = every_max, every
        self.last = self.done = self.acked = self.seq = 0
        self.deadline_ns = 0
        self.waiting: Msg | None = None


class FastRun(NamedTuple):
    """Consecutive messages of a batch, from place ``first`` on."""

    batch: FastBatch
    first: int


class FastBatches:
    """The open batches of one stream. Methods return the answers to the current message, in order.

    Args: ``pub_ack`` returns the PubAck for a sequence, a batch, a count, and whether it is for a duplicate.
    """

    def __init__(self, inflight: Inflight, clock: Clock, pub_ack: Callable[[int, bytes, int, bool], bytes]) -> None:
        self._inflight = inflight
        self._clock = clock
        self._pub_ack = pub_ack
        self._open: dict[bytes, FastBatch] = {}
        self._timer = IdleTimer(clock, self.expire)

    def batch_of(self, message: FastMessage) -> FastBatch:
        """Return the batch of a message, which may begin with it. Raises: ApiError."""
        if len(message.batch_id) > _ID_BYTES_MAX:
            raise ApiError(ApiErrors.BATCH_PUBLISH_INVALID_BATCH_ID)
        batch = self._open.get(message.batch_id)
        if batch is None:
            if message.place != 1:
                raise ApiError(ApiErrors.BATCH_PUBLISH_UNKNOWN_BATCH_ID)
            batch = self._begin(message)
        timeout_ns = self._inflight.limits.timeout_ns
        batch.deadline_ns = self._clock.monotonic_ns() + timeout_ns
        self._timer.arm(timeout_ns)
        return batch

    def place(self, batch: FastBatch, message: FastMessage, msg: Msg) -> tuple[list[bytes], bool]:
        """Place a message in its batch.

        Returns: answers; and whether to store it, whose outcome the caller then reports.
        """
        if batch.waiting is msg:
            return [], True
        if batch.waiting is not None and not batch.gap_ok:
            # That message was refused after waiting too long.
            batch.last -= 1
            return [self._end(batch)], False
        if message.operation == Operation.PING:
            return self._ping(batch, message), False
        answers = []
        batch.last += 1
        if batch.last != message.place:
            answers.append(_gap(batch.last, message.place))
            if not batch.gap_ok or message.place < batch.last:
                batch.last -= 1
                return [*answers, self._end(batch)], False
            batch.last = message.place
        if message.operation == Operation.END:
            batch.last -= 1
            return [*answers, self._end(batch)], False
        batch.waiting = msg
        return answers, True

    def run_of(self, replies: Sequence[bytes]) -> FastRun | None:
        """Return the open batch that a run continues; None unless all messages are its next ones and request nothing
        else."""
        head, place, operation, _ = replies[0].rsplit(b".", 3) if replies[0].count(b".") > 5 else (b"", b"", b"", b"")
        if operation != b"1" or not head.endswith((b".ok", b".fail")):
            return None
        batch, first = self._open.get(head.rsplit(b".", 3)[1]), decimal(place)
        if (batch is None or batch.waiting is not None or first != batch.last + 1
                or [b"%b.%d.1.$FI" % (head, at) for at in range(first, first + len(replies))] != list(replies)):
            return None
        return FastRun(batch, first)

    def stored_run(self, run: FastRun, count: int, last_seq: int) -> list[tuple[int, bytes]]:
        """Count a run's ``count`` messages as stored, up to ``last_seq``.

        Returns: answers with the message that each is for.
        """
        batch, first = run
        batch.deadline_ns = self._clock.monotonic_ns() + self._inflight.limits.timeout_ns
        batch.last, batch.seq = first + count - 1, last_seq
        answers: list[tuple[int, bytes]] = []
        while (due := max(batch.acked + batch.every, first)) <= batch.last:
            batch.done = due
            answers += [(due - first, answer) for answer in self._flow(batch)]
        batch.done = batch.last
        return answers

    def begun(self, batch: FastBatch, message: FastMessage) -> bytes | None:
        """Return the answer to a batch's first message, an ack of no message; None: no answer."""
        return _ack(0, batch.every) if message.place == 1 and not message.commits else None

    def stored(self, batch: FastBatch, message: FastMessage, seq: int) -> list[bytes]:
        """Count the message as stored with sequence ``seq``."""
        batch.waiting = None
        batch.seq, batch.done = seq, batch.last
        return [self._end(batch)] if message.commits else self._flow(batch)

    def duplicate(self, batch: FastBatch, message: FastMessage, seq: int) -> list[bytes]:
        """Count the message as a duplicate of ``seq``."""
        batch.waiting = None
        batch.done = message.place
        answers = self._flow(batch)
        if message.commits:
            if not message.gap_ok and batch.last == 1:
                self.close(batch)
                return [*answers, self._pub_ack(seq, batch.batch_id, message.place, True)]
            answers.append(self._end(batch))
        return answers

    def refused(self, batch: FastBatch, message: FastMessage, error: ApiError) -> list[bytes]:
        """Answer a message that is not stored. Raises: ``error`` if it is answered like a single message."""
        batch.waiting = None
        if not message.gap_ok and batch.last == 1:
            self.close(batch)
            raise error
        answers = [wire.dump({"type": "err", "seq": message.place, "error": error.to_json()})]
        if message.gap_ok and not message.commits:
            return answers
        batch.last -= 1
        return [*answers, self._end(batch)]

    def close(self, batch: FastBatch) -> None:
        """Remove the batch from the open ones."""
        if self._open.get(batch.batch_id) is batch:
            del self._open[batch.batch_id]
            self._inflight.fast -= 1

    def clear(self) -> None:
        """Drop all batches, because the stream accepts no more of them."""
        for batch in list(self._open.values()):
            self.close(batch)
        self._timer.cancel()

    def expire(self, now_ns: int) -> int | None:
        """Drop batches that have been idle for too long; return the next deadline."""
        for batch in list(self._open.values()):
            if batch.deadline_ns <= now_ns:
                self.close(batch)
        return min((batch.deadline_ns for batch in self._open.values()), default=None)

    def _begin(self, message: FastMessage) -> FastBatch:
        inflight = self._inflight
        if len(self._open) >= inflight.limits.fast_per_stream or inflight.fast >= inflight.limits.fast_total:
            raise ApiError(ApiErrors.BATCH_PUBLISH_TOO_MANY_INFLIGHT)
        # If other batches are open, a batch begins slowly; ``_flow`` raises it to its share.
        every = 1 if self._open else min(_ACK_EVERY_MAX, message.flow)
        batch = self._open[message.batch_id] = FastBatch(message.batch_id, message.gap_ok, message.flow, every)
        inflight.fast += 1
        return batch

    def _ping(self, batch: FastBatch, message: FastMessage) -> list[bytes]:
        answers = []
        if message.place > batch.last:
            answers.append(_gap(batch.last + 1, message.place + 1))
            if not batch.gap_ok:
                return [*answers, self._end(batch)]
            batch.last = batch.done = message.place
            if flow := self._flow(batch):
                return answers + flow
        return [*answers, _ack(batch.acked, batch.every)]

    def _flow(self, batch: FastBatch) -> list[bytes]:
        """Return the ack that is due, or nothing."""
        every = batch.every
        if batch.done < batch.acked + every:
            return []
        batch.acked += (batch.done - batch.acked) // every * every
        share = min(max(_ACK_EVERY_MAX // len(self._open), 1), batch.every_max)
        batch.every = min(every * 2, share) if every < share else max(every // 2, share)
        return [_ack(batch.acked, batch.every)]

    def _end(self, batch: FastBatch) -> bytes:
        self.close(batch)
        return self._pub_ack(batch.seq, batch.batch_id, batch.last, False)


def _ack(place: int, every: int) -> bytes:
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (place, every)


def _gap(expected: int, place: int) -> bytes:
    return b'{"type":"gap","last_seq":%d,"seq":%d}' % (expected, place)
