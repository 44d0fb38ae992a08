"""The check of the header that marks messages copied from another stream: clients may not set it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["SOURCE", "forged"]

SOURCE = b"Nats-Stream-Source"


def forged(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse the header with 10227."""
    def check(candidate: Candidate) -> None:
        if candidate.headers[SOURCE]:
            raise ApiError(ApiErrors.MESSAGE_SOURCE_HDR_NOT_ALLOWED)
    return check
