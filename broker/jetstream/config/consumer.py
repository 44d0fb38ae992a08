"""A consumer's configuration, as in requests and answers.

Fields carry their wire names; order, defaults on the wire and omissions are those of nats-server 2.15 (its
``ConsumerConfig``, server/consumer.go). Allowed values, and defaults in place of zeros, are in consumer_rules.py.
"""

# ruff: noqa: RUF009  # the wire functions return dataclass fields, made anew for each object

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any

from broker.jetstream.wire import fields as wire

__all__ = ["ConsumerConfig", "ConsumerCreateRequest"]


@dataclass(slots=True)
class ConsumerConfig:
    """The configuration of a consumer. Durations are nanoseconds, instants Unix UTC nanoseconds."""

    durable_name: str = wire.text()
    name: str = wire.text()
    description: str = wire.text()
    deliver_policy: str = wire.choice("all", "all", "last", "last_per_subject", "new", "by_start_sequence",
                                      "by_start_time", also={"undefined": "all"})
    opt_start_seq: int = wire.uint64()
    opt_start_time: int | None = wire.time()
    ack_policy: str = wire.choice("none", "none", "all", "explicit", "flow_control")
    ack_wait: int = wire.duration()
    max_deliver: int = wire.integer()
    backoff: list[int] = wire.durations()
    filter_subject: str = wire.text()
    filter_subjects: list[str] = wire.texts()
    replay_policy: str = wire.choice("instant", "instant", "original")
    rate_limit_bps: int = wire.uint64()
    sample_freq: str = wire.text()
    max_waiting: int = wire.integer()
    max_ack_pending: int = wire.integer()
    flow_control: bool = wire.boolean()
    headers_only: bool = wire.boolean()
    max_batch: int = wire.integer()
    max_expires: int = wire.duration()
    max_bytes: int = wire.integer()
    deliver_subject: str = wire.text()
    deliver_group: str = wire.text()
    idle_heartbeat: int = wire.duration()
    inactive_threshold: int = wire.duration()
    num_replicas: int = wire.integer(always=True)
    mem_storage: bool = wire.boolean()
    direct: bool = wire.boolean()
    sourcing: bool = wire.boolean()
    metadata: dict[str, str] = wire.string_map()
    pause_until: int | None = wire.time()
    priority_groups: list[str] = wire.texts()
    priority_policy: str = wire.choice("none", "none", "overflow", "pinned_client", "prioritized", always=False,
                                       complaint="unknown priority policy: {raw}")
    priority_timeout: int = wire.duration()

    @classmethod
    def from_json(cls, value: object) -> ConsumerConfig:
        """Read a configuration from decoded JSON, such as a CONSUMER_CREATE record holds.

        Raises: ApiError 10025 for unknown fields and wrong types; values are not checked here.
        """
        return wire.read(cls, value)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON members, as nats-server shows it."""
        return wire.write(self)

    def copy(self) -> ConsumerConfig:
        """Return a copy that shares nothing that can change."""
        twin = ConsumerConfig(*_VALUES(self))
        for name in _MUTABLE:
            setattr(twin, name, getattr(self, name).copy())
        return twin

    @property
    def durable(self) -> bool:
        """True if the consumer outlives its users by default."""
        return bool(self.durable_name)

    @property
    def push(self) -> bool:
        """True if messages are pushed to ``deliver_subject`` rather than pulled."""
        return bool(self.deliver_subject)

    @property
    def stored(self) -> bool:
        """True if the consumer survives a restart."""
        return not (self.mem_storage or self.direct)

    @property
    def copies(self) -> bool:
        """True if another stream reads through the consumer, as a mirror or source.

        It takes no messages from other consumers, and does not count towards consumer limits.
        """
        return self.direct or self.sourcing

    @property
    def filters(self) -> list[str]:
        """The filter subjects, in whichever member they were given; empty = every subject."""
        return [self.filter_subject] if self.filter_subject else list(self.filter_subjects)


_VALUES = attrgetter(*(field.name for field in fields(ConsumerConfig)))
_MUTABLE = tuple(field.name for field in fields(ConsumerConfig) if field.default_factory is not MISSING)


@dataclass(slots=True)
class ConsumerCreateRequest:
    """The body of the three CONSUMER.CREATE forms."""

    stream_name: str = wire.text()
    config: ConsumerConfig = wire.record(ConsumerConfig, "server.ConsumerConfig", always=True)
    action: str = wire.choice("", "", "create", "update", complaint="unknown consumer action: {raw}")
    pedantic: bool = wire.boolean()
