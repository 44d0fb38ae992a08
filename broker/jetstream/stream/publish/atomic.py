"""Atomic batches before their commit. Their messages are staged in memory, or in the store if they are large (spill).

    first message ──> open ──> more messages, in order ──> the commit ──> all stored, or none (sequencer)
                        └──> a gap, too many messages, idle for too long ──> abandoned, with an advisory

Owns: the messages of each batch, and the limits on batches. Does not own: the checks of a commit (atomic_checks), and
storing a batch (sequencer). An open batch does not survive a restart, as on nats-server.

Source: nats-server, server/stream.go, processJetStreamAtomicBatchMsg; server/jetstream_batching.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from broker.jetstream.inflight import BATCH_BYTES_MAX, Inflight
from broker.jetstream.settings import level_refused
from broker.jetstream.stream.publish.batches import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE, REQUIRED_LEVEL
from broker.jetstream.stream.publish.headers import has_unstored, parse_sequence
from broker.jetstream.stream.publish.idle import IdleTimer
from broker.jetstream.stream.publish.spill import BLOCKS_MAX, SPILL_BYTES, Spill
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.base.clock import Clock
    from broker.jetstream.bus import Msg, Source

__all__ = ["AtomicBatches", "Batch", "Reason"]

Reason = Literal["timeout", "large", "incomplete", "unsupported"]

_ID_BYTES_MAX = 64

_BLOCK: Final = b"NATS/1.0\r\n%b: " % BATCH_ID
"""The headers of a batch's message as clients write them begin with this block."""

_PLAIN: Final = frozenset((BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT))

_ROW_BYTES = 200
"""Estimated memory of a staged message in addition to its body and subject."""


class Batch:
    """An open batch.

    Attributes:
        last: the place of its last message in the batch, from 1.
        msgs: the messages as they will be stored.
        size: their size in memory.
        commit: the message that requests the commit, once received.
        plans: removals of its roll-ups that have been planned.
        plain: True if no message has a header that a check reads, except the headers of batches.
        spill: the first messages, which are in the store; ``msgs`` has only their headers. None if all are in memory.
    """

    __slots__ = ("batch_id", "commit", "deadline_ns", "last", "msgs", "plain", "plans", "size", "spill", "whole_bytes")

    def __init__(self, batch_id: bytes) -> None:
        self.batch_id = batch_id
        self.last = 0
        self.msgs: list[Msg] = []
        self.size = 0
        self.whole_bytes = 0
        """The part of ``size`` that belongs to messages that are completely in memory."""
        self.spill: Spill | None = None
        self.deadline_ns = 0
        self.commit: Msg | None = None
        self.plans: dict[bytes, Callable[[], None]] = {}
        self.plain = True


class AtomicBatches:
    """The open batches of one stream.

    Args: ``inflight`` counts the batches of all streams; ``abandoned`` is called for a dropped batch, with the reason.
    Attributes: ``spill`` starts to write a batch to the store; None: batches of this stream stay in memory.
    """

    def __init__(self, inflight: Inflight, clock: Clock, abandoned: Callable[[bytes, Reason], None]) -> None:
        self.spill: Callable[[], Spill] | None = None
        self._inflight = inflight
        self._clock = clock
        self._abandoned = abandoned
        self._open: dict[bytes, Batch] = {}
        self._timer = IdleTimer(clock, self.expire)

    def stage(self, msg: Msg, batch_id: bytes, headers: Mapping[bytes, bytes],
             source: Source | None = None) -> Batch | None:
        """Stage a message.

        Returns: the batch if ``msg`` commits it, None if it stays open. The caller of a commit must ``close`` the batch
            in any case, or ``detach`` and later ``end`` it.
        Raises: ApiError.
        """
        if len(batch_id) > _ID_BYTES_MAX:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_INVALID_BATCH_ID)
        place = parse_sequence(headers.get(BATCH_SEQUENCE, b""))
        if place < 0:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_MISSING_SEQ)
        commit = headers.get(BATCH_COMMIT)
        eob = commit == b"eob"
        count = place - eob
        batch = self._open.get(batch_id)
        if batch is not None and batch.commit is msg:
            # The message is decided again after it waited for the data that its checks need.
            return batch
        max_msgs = self._inflight.limits.max_msgs
        if batch is None:
            if place != 1:
                if count > max_msgs:
                    raise ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=max_msgs)
                raise ApiError(ApiErrors.ATOMIC_PUBLISH_INCOMPLETE_BATCH)
            batch = self._begin(batch_id)
        if commit is not None and not eob and commit != b"1":
            self.close(batch)
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT)
        _, _, hlen, body = msg
        if headers.get(REQUIRED_LEVEL):
            if level_refused(body[:hlen]):
                raise self._abandon(batch, "unsupported", ApiError(ApiErrors.REQUIRED_API_LEVEL))
            block = header_block.remove(body[:hlen], REQUIRED_LEVEL)
            hlen, body = len(block), block + body[hlen:]
        batch.last += 1
        if batch.last != place or batch.commit is not None or (eob and place == 1):
            raise self._abandon(batch, "incomplete", ApiError(ApiErrors.ATOMIC_PUBLISH_INCOMPLETE_BATCH))
        if count > max_msgs:
            raise self._abandon(batch, "large", ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=max_msgs))
        batch.plain = batch.plain and headers.keys() <= _PLAIN and not (hlen and has_unstored(hlen, body))
        self._defer(batch)
        if not eob:
            self._hold(batch, (msg[0], b"", hlen, body), source)
        if commit is None:
            return None
        batch.commit = msg
        if eob:
            subject, reply, hlen, body = batch.msgs[-1]
            block = header_block.set(body[:hlen], BATCH_COMMIT, b"1")
            batch.msgs[-1] = subject, reply, len(block), block + body[hlen:]
        return batch

    def stage_run(self, ops: Sequence[Msg], start: int, end: int, size_max: int) -> int:
        """Stage consecutive messages of one batch that have no other headers, written as clients write them.

        Staging begins with ``ops[start]`` and stops at a message with more than ``size_max`` bytes, its subject
        included.
        Returns: the number of staged messages; the next one is for ``stage``.
        """
        body, at = ops[start][3], len(_BLOCK)
        cut = body.find(b"\r\n", at, at + _ID_BYTES_MAX + 2) if body.startswith(_BLOCK) else -1
        batch = self._open.get(body[at:cut]) if cut > 0 else None
        if batch is None or batch.commit is not None:
            return 0
        inflight, first = self._inflight, batch.last + 1
        head = b"%b\r\n%b: " % (body[:cut], BATCH_SEQUENCE)
        count = size = 0
        for subject, reply, hlen, body in ops[start:min(end, start + inflight.limits.max_msgs - batch.last)]:
            block = b"%b%d\r\n\r\n" % (head, first + count)
            if reply or hlen != len(block) or not body.startswith(block) or len(subject) + len(body) > size_max:
                break
            count += 1
            size += _ROW_BYTES + len(subject) + len(body)
        if (not count or (self.spill is not None and batch.whole_bytes + size > SPILL_BYTES)
                or batch.size + size > BATCH_BYTES_MAX
                or inflight.staged_bytes + size > inflight.limits.staged_bytes):
            return 0
        batch.msgs += ops[start:start + count]
        batch.last += count
        self._add(batch, size)
        self._defer(batch)
        return count

    def close(self, batch: Batch) -> None:
        """Close a batch that is committed or refused."""
        if self.detach(batch):
            self.end(batch)

    def detach(self, batch: Batch) -> bool:
        """Remove the batch from the open ones; return False if it was not open.

        After True, the caller must call ``end``, even if ``clear`` is called in between.
        """
        if self._open.get(batch.batch_id) is not batch:
            return False
        del self._open[batch.batch_id]
        self._inflight.atomic -= 1
        return True

    def end(self, batch: Batch) -> None:
        """Release the memory and the spill of a batch that is stored, or never will be."""
        self._inflight.staged_bytes -= batch.size
        batch.size = 0
        if batch.spill is not None:
            batch.spill.end()

    def clear(self) -> None:
        """Drop all batches, because the stream accepts no more of them."""
        for batch in list(self._open.values()):
            self.close(batch)
        self._timer.cancel()

    def expire(self, now_ns: int) -> int | None:
        """Abandon batches that have been idle for too long; return the next deadline."""
        for batch in list(self._open.values()):
            if batch.spill is not None and batch.spill.writing:
                self._defer(batch)  # back-pressure of the store may have stopped its publisher
            elif batch.deadline_ns <= now_ns:
                self.close(batch)
                self._abandoned(batch.batch_id, "timeout")
        return min((batch.deadline_ns for batch in self._open.values()), default=None)

    def _begin(self, batch_id: bytes) -> Batch:
        inflight = self._inflight
        limits = inflight.limits
        if len(self._open) >= limits.per_stream or inflight.atomic >= limits.total:
            raise ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT)
        batch = self._open[batch_id] = Batch(batch_id)
        inflight.atomic += 1
        return batch

    def _defer(self, batch: Batch) -> None:
        timeout_ns = self._inflight.limits.timeout_ns
        batch.deadline_ns = self._clock.monotonic_ns() + timeout_ns
        self._timer.arm(timeout_ns)

    def _hold(self, batch: Batch, msg: Msg, source: Source | None) -> None:
        inflight = self._inflight
        size = _ROW_BYTES + len(msg[0]) + len(msg[3])
        if batch.whole_bytes + size > SPILL_BYTES and batch.whole_bytes and self.spill is not None:
            batch.spill = batch.spill or self.spill()
            unspilled_bytes = batch.whole_bytes - _ROW_BYTES * (len(batch.msgs) - len(batch.spill.payloads))
            if err_code := batch.spill.refusal(unspilled_bytes):
                raise self._abandon(batch, "large", ApiError(err_code))
            self.write(batch, source)
            if batch.spill.blocks >= BLOCKS_MAX:
                raise self._abandon(batch, "large",
                                    ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=f"{BLOCKS_MAX} blocks"))
        if batch.size + size > BATCH_BYTES_MAX:
            raise self._abandon(batch, "large",
                                ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=f"{BATCH_BYTES_MAX >> 20} MiB"))
        if inflight.staged_bytes + size > inflight.limits.staged_bytes:
            raise self._abandon(batch, "large", ApiError(ApiErrors.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT))
        batch.msgs.append(msg)
        self._add(batch, size)

    def _add(self, batch: Batch, size: int) -> None:
        batch.size += size
        batch.whole_bytes += size
        self._inflight.staged_bytes += size

    def write(self, batch: Batch, source: Source | None) -> None:
        """Write the messages of a spilled batch that are completely in memory."""
        spill = batch.spill
        if spill is None:
            raise RuntimeError("a batch that is not spilled was to be written")
        start = len(spill.payloads)
        batch.msgs[start:], freed = spill.write(batch.msgs[start:], source)
        batch.size -= freed  # the bytes count as staged until they are in the store
        batch.whole_bytes = 0

    def _abandon(self, batch: Batch, reason: Reason, error: ApiError) -> ApiError:
        self.close(batch)
        self._abandoned(batch.batch_id, reason)
        return error
