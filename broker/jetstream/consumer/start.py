"""The position where a consumer starts, by its deliver policy, and where it may restart.

Source: nats-server consumer.go: selectStartingSeqNo, resetStartingSeq.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.filters import Filters, filters_of
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.records.consumer_state import RESUME, ConsumerDelta

if TYPE_CHECKING:
    from broker.jetstream.consumer.stream_view import StreamView

__all__ = ["Start", "check_reset", "starting_state"]


class Start(NamedTuple):
    """The start of a new consumer: the record for its creation, and the listed messages that it delivers first."""

    record: ConsumerDelta
    listed: Sequence[int] | None = None


async def starting_state(stream: StreamView, name: str, config: ConsumerConfig) -> Start:
    """Return the start of a new consumer of ``config``."""
    first, last = max(stream.first_seq, 1), stream.last_seq
    extra: dict[str, Any] = {}
    listed: list[int] | None = None
    match config.deliver_policy:
        case "new":
            seq = last + 1
        case "last":
            filters = _filters(config)
            found = await stream.last_seqs(None if filters.all else filters)
            seq = found[-1] if found else last + 1
        case "last_per_subject" if stream.config.max_msgs_per_subject != 1:
            listed = await stream.last_seqs_by_subject(_filters(config), last)
            seq = listed[0] if listed else last + 1
            extra[RESUME] = last
        case "by_start_sequence":
            seq = max(config.opt_start_seq, first)
        case "by_start_time":
            seq = await stream.seq_at(config.opt_start_time or 0)
        case _:
            seq = first
    return Start(ConsumerDelta(name, delivered=[0, seq - 1, 0], ack_floor=[0, seq - 1], extra=extra), listed)


def _filters(config: ConsumerConfig) -> Filters:
    return filters_of(config.filters)


async def check_reset(stream: StreamView, config: ConsumerConfig, seq: int) -> None:
    """Check that a consumer of ``config`` may restart at ``seq``.

    Raises: ApiError 10204 if the deliver policy does not allow it.
    """
    if config.deliver_policy == "by_start_sequence":
        if seq < config.opt_start_seq:
            raise ApiError(ApiErrors.CONSUMER_INVALID_RESET, err="below start seq")
    elif config.deliver_policy == "by_start_time":
        if seq < await stream.seq_at(config.opt_start_time or 0):
            raise ApiError(ApiErrors.CONSUMER_INVALID_RESET, err="below start time")
    elif config.deliver_policy != "all":
        raise ApiError(ApiErrors.CONSUMER_INVALID_RESET, err="not allowed")
