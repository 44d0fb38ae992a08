"""Recognition of publishes that belong to a batch, and the checks that refuse them before their batch is looked up.

    atomic batch        messages with ``Nats-Batch-Id`` are staged until one with ``Nats-Batch-Commit`` stores them all
    fast-ingest batch   messages with a reply subject that ends in ``.$FI`` are stored one by one and acked periodically

Does not own: the batches (atomic, fast), the checks of a commit (atomic_checks).

Source: nats-server, server/stream.go, processJetStreamAtomicBatchMsg, processJetStreamFastBatchMsg.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["BATCH_COMMIT", "BATCH_ID", "BATCH_SEQUENCE", "FAST_INGEST", "HEADERS", "REQUIRED_LEVEL", "BatchMember",
           "FastMember", "atomic", "fast_ingest"]

BATCH_ID: Final = b"Nats-Batch-Id"
BATCH_SEQUENCE: Final = b"Nats-Batch-Sequence"
BATCH_COMMIT: Final = b"Nats-Batch-Commit"
REQUIRED_LEVEL: Final = b"Nats-Required-Api-Level"

HEADERS: Final = frozenset((BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT, REQUIRED_LEVEL))

FAST_INGEST: Final = b".$FI"
"""Reply subjects with this ending belong to a fast-ingest batch."""


class BatchMember(Exception):
    """Raised for a message of an atomic batch; the batch's commit decides it."""

    def __init__(self, batch_id: bytes) -> None:
        super().__init__(batch_id)
        self.batch_id = batch_id


class FastMember(Exception):
    """Raised for a message of a fast-ingest batch."""


def fast_ingest(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10205, after the checks that apply to any message. Raises: FastMember for a message that passes."""
    def check(candidate: Candidate) -> None:
        if candidate.reply.endswith(FAST_INGEST) and not isinstance(candidate.pending.source, PubAckReceiver):
            _check_all(context, candidate, config)
            if not config.allow_batched:
                raise ApiError(ApiErrors.BATCH_PUBLISH_DISABLED)
            raise FastMember
    return check


def atomic(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse with 10174, after the checks that apply to any message. Raises: BatchMember for a message that passes.

    A message that a schedule publishes is exempt: it copies the headers of another message, which may be of a batch.
    """
    scheduled = context.scheduler.source

    def check(candidate: Candidate) -> None:
        if (batch_id := candidate.headers.get(BATCH_ID)) and candidate.pending.source is not scheduled:
            _check_all(context, candidate, config)
            if not config.allow_atomic:
                raise ApiError(ApiErrors.ATOMIC_PUBLISH_DISABLED)
            raise BatchMember(batch_id)
    return check


def _check_all(context: CheckContext, candidate: Candidate, config: StreamConfig) -> None:
    """Refuse with 10109, 10023, 10002 or 10054."""
    if config.sealed:
        raise ApiError(ApiErrors.STREAM_SEALED)
    usage = context.live.usage
    if usage.size_bytes + candidate.size > usage.bytes_max:
        context.commit_pending(candidate.pending)
        if err_code := usage.refusal(candidate.size, candidate.pending.time_ns):
            raise ApiError(err_code)
    if 0 <= config.max_msg_size < len(candidate.body):
        raise ApiError(ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
