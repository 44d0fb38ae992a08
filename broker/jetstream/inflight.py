"""Limits on open batches: their number in one stream and in total, their duration, and their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.config.settings import ServerLimits

__all__ = ["BATCH_BYTES_MAX", "BatchLimits", "Inflight"]

BATCH_BYTES_MAX: Final = 64 << 20
"""Bytes of one atomic batch, which is stored in one block."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """nats-server's limits by default; ``staged_bytes`` bounds the memory of all uncommitted atomic batches, which
    nats-server keeps on disk."""

    max_msgs: int = 1000
    per_stream: int = 50
    total: int = 1000
    timeout_ns: int = 10_000_000_000
    staged_bytes: int = 256 << 20
    fast_per_stream: int = 1000
    fast_total: int = 50_000


    @classmethod
    def of(cls, given: ServerLimits) -> BatchLimits:
        """The configured limits, with defaults for the others."""
        usual = cls()
        per_stream, total = given.batch_max_inflight_per_stream, given.batch_max_inflight_total
        return cls(max_msgs=given.batch_max_msgs or usual.max_msgs, timeout_ns=given.batch_timeout_ns or usual.timeout_ns,
                   per_stream=per_stream or usual.per_stream, total=total or usual.total,
                   fast_per_stream=per_stream or usual.fast_per_stream, fast_total=total or usual.fast_total)


class Inflight:
    """Open batches of all streams together."""

    __slots__ = ("atomic", "fast", "limits", "staged_bytes")

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.atomic = self.fast = 0
        self.staged_bytes = 0
