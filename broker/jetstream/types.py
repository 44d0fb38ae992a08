"""The configurations of streams and consumers, under one roof."""

from __future__ import annotations

from broker.jetstream.consumer_config import ConsumerConfig, ConsumerCreateRequest
from broker.jetstream.stream_config import (
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
