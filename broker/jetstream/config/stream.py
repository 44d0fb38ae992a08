"""A stream's configuration, as in requests and answers.

Fields carry their wire names; order, defaults on the wire and omissions are those of nats-server 2.15 (its
``StreamConfig``, server/stream.go). Allowed values, and defaults in place of zeros, are in stream_rules.py.
"""

# ruff: noqa: RUF009  # the wire functions return dataclass fields, made anew for each object

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from broker.jetstream.wire import fields as wire

__all__ = ["ConsumerLimits", "ExternalStream", "Placement", "RePublish", "SourceConsumer", "StreamConfig",
           "StreamConfigRequest", "StreamSource", "SubjectTransform"]


@dataclass(slots=True)
class Placement:
    """The place for a stream; stored and shown, but without effect in a broker whose disk is a bucket."""

    cluster: str = wire.text()
    tags: list[str] = wire.texts()
    preferred: str = wire.text()


@dataclass(slots=True)
class ExternalStream:
    """The subjects by which to reach the API of another account or domain."""

    api: str = wire.text(always=True)
    deliver: str = wire.text(always=True)


@dataclass(slots=True)
class SubjectTransform:
    """A mapping of subjects: those that match ``src`` become ``dest``."""

    src: str = wire.text(always=True)
    dest: str = wire.text(always=True)


@dataclass(slots=True)
class SourceConsumer:
    """An existing consumer for a mirror or source to use."""

    name: str = wire.text()
    deliver_subject: str = wire.text()


@dataclass(slots=True)
class StreamSource:
    """The origin of a mirror, or one of a stream's sources."""

    name: str = wire.text(always=True)
    opt_start_seq: int = wire.uint64()
    opt_start_time: int | None = wire.time()
    filter_subject: str = wire.text()
    subject_transforms: list[SubjectTransform] = wire.records(SubjectTransform, "server.SubjectTransformConfig")
    external: ExternalStream | None = wire.record(ExternalStream, "server.ExternalStream")
    consumer: SourceConsumer | None = wire.record(SourceConsumer, "server.StreamConsumerSource")


@dataclass(slots=True)
class RePublish:
    """A setting by which stored messages are published again under ``dest``."""

    src: str = wire.text()
    dest: str = wire.text(always=True)
    headers_only: bool = wire.boolean()


@dataclass(slots=True)
class ConsumerLimits:
    """The defaults and upper bounds of the stream's consumers; 0 = none."""

    inactive_threshold: int = wire.duration()
    max_ack_pending: int = wire.integer()


@dataclass(slots=True)
class StreamConfig:
    """The configuration of a stream. Durations are nanoseconds; limits use -1 for none once defaults are filled in."""

    name: str = wire.text(always=True)
    description: str = wire.text()
    subjects: list[str] = wire.texts()
    retention: str = wire.choice("limits", "limits", "interest", "workqueue")
    max_consumers: int = wire.integer(always=True)
    max_msgs: int = wire.int64(always=True)
    max_bytes: int = wire.int64(always=True)
    max_age: int = wire.duration(always=True)
    max_msgs_per_subject: int = wire.int64(always=True)
    max_msg_size: int = wire.int32()
    discard: str = wire.choice("old", "old", "new", any_case=True)
    # "object" is an alias of "file", which means the object store here; clients know only nats-server's two.
    storage: str = wire.choice("file", "file", "memory", also={"object": "file"})
    num_replicas: int = wire.integer(always=True)
    no_ack: bool = wire.boolean()
    duplicate_window: int = wire.duration()
    placement: Placement | None = wire.record(Placement, "server.Placement")
    mirror: StreamSource | None = wire.record(StreamSource, "server.StreamSource")
    sources: list[StreamSource | None] = wire.records(StreamSource, "*server.StreamSource")
    compression: str = wire.choice("none", "none", "s2", complaint="unknown compression algorithm", decoded=True)
    first_seq: int = wire.uint64()
    subject_transform: SubjectTransform | None = wire.record(SubjectTransform, "server.SubjectTransformConfig")
    republish: RePublish | None = wire.record(RePublish, "server.RePublish")
    allow_direct: bool = wire.boolean(always=True)
    mirror_direct: bool = wire.boolean(always=True)
    discard_new_per_subject: bool = wire.boolean()
    sealed: bool = wire.boolean(always=True)
    deny_delete: bool = wire.boolean(always=True)
    deny_purge: bool = wire.boolean(always=True)
    allow_rollup_hdrs: bool = wire.boolean(always=True)
    consumer_limits: ConsumerLimits = wire.record(ConsumerLimits, "server.StreamConsumerLimits", always=True)
    allow_msg_ttl: bool = wire.boolean(always=True)
    subject_delete_marker_ttl: int = wire.duration()
    allow_msg_counter: bool = wire.boolean()
    allow_atomic: bool = wire.boolean()
    allow_msg_schedules: bool = wire.boolean()
    persist_mode: str = wire.choice("default", "default", "async", also={"": "default"}, always=False)
    allow_batched: bool = wire.boolean()
    metadata: dict[str, str] = wire.string_map()

    @classmethod
    def from_json(cls, value: object) -> StreamConfig:
        """Read a configuration from decoded JSON, such as a STREAM_CREATE record holds.

        Raises: ApiError 10025 for unknown fields and wrong types; values are not checked here.
        """
        return wire.read(cls, value)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON members, as nats-server shows it."""
        return wire.write(self)

    def copy(self) -> StreamConfig:
        """Return a deep copy, as a plain StreamConfig."""
        return wire.read(StreamConfig, self.to_json())

    @property
    def elements(self) -> int:
        """The number of elements in the configuration's lists, which measures the work of a check."""
        upstream = [source for source in (self.mirror, *self.sources) if source is not None]
        return len(self.subjects) + len(upstream) + sum(len(source.subject_transforms) for source in upstream)

    @property
    def follows(self) -> bool:
        """True if the stream copies others."""
        return self.mirror is not None or bool(self.sources)

    @property
    def subjects_bytes(self) -> list[bytes]:
        """The subjects as bytes, the form that the bus and the router use."""
        return [subject.encode() for subject in self.subjects]


@dataclass(slots=True)
class StreamConfigRequest(StreamConfig):
    """The body of STREAM.CREATE and STREAM.UPDATE: a configuration, and whether to check it pedantically."""

    pedantic: bool = wire.boolean()

    def config(self) -> StreamConfig:
        """Return the configuration alone."""
        names = [field.name for field in dataclasses.fields(StreamConfig)]
        return StreamConfig(**{name: getattr(self, name) for name in names})
