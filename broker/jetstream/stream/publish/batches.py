"""Atomic and fast-ingest batches. Streams do not support them yet, so the checks refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["BATCH_ID", "FAST_INGEST", "atomic", "fast_ingest"]

BATCH_ID: Final = b"Nats-Batch-Id"

FAST_INGEST: Final = b".$FI"
"""Replies that end so belong to a fast-ingest batch."""


def fast_ingest(context: CheckContext, config: StreamConfig) -> Check:
    """10205; before it, what refuses any message of such a stream."""
    def check(candidate: Candidate) -> None:
        if candidate.reply.endswith(FAST_INGEST):
            _refuse(candidate, config, 10205)
    return check


def atomic(context: CheckContext, config: StreamConfig) -> Check:
    """10174; before it, what refuses any message of such a stream."""
    def check(candidate: Candidate) -> None:
        if candidate.headers[BATCH_ID]:
            _refuse(candidate, config, 10174)
    return check


def _refuse(candidate: Candidate, config: StreamConfig, disabled: int) -> None:
    if config.sealed:
        raise ApiError(10109)
    if 0 <= config.max_msg_size < len(candidate.body):
        raise ApiError(10054)
    raise ApiError(disabled)
