"""Message counters. Streams do not support them yet, so the check refuses increments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["INCREMENT", "disabled"]

INCREMENT = b"Nats-Incr"


def disabled(context: CheckContext, config: StreamConfig) -> Check:
    """10171 for what is no integer, else 10168."""
    def check(candidate: Candidate) -> None:
        if text := candidate.headers[INCREMENT]:
            digits = text[1:] if text[:1] in (b"+", b"-") else text
            raise ApiError(10168 if digits.isdigit() else 10171)
    return check
