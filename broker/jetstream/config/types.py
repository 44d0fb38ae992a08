"""The configurations of streams and consumers."""

from __future__ import annotations

from broker.jetstream.config.consumer import ConsumerConfig, ConsumerCreateRequest
from broker.jetstream.config.stream import (
    ConsumerLimits,
    ExternalStream,
    Placement,
    RePublish,
    SourceConsumer,
    StreamConfig,
    StreamConfigRequest,
    StreamSource,
    SubjectTransform,
)

__all__ = ["ConsumerConfig", "ConsumerCreateRequest", "ConsumerLimits", "ExternalStream", "Placement", "RePublish",
           "SourceConsumer", "StreamConfig", "StreamConfigRequest", "StreamSource", "SubjectTransform"]
