"""The settings of the NATS Streaming gateway: the block ``streaming { … }`` of nats-streaming-server.

Source: nats-streaming-server, server/conf.go; stores/limits.go.
"""

from __future__ import annotations

from broker.base.value import Value
from broker.config import kinds
from broker.config.section import Section, setting
from broker.protocol.subject import subset

__all__ = ["LIMIT_KEYS", "STORE_LIMIT_KEYS", "ChannelLimits", "StreamingSettings"]

LIMIT_KEYS: dict[str, tuple[str, ...]] = {
    "max_subs": ("max_subs", "msu", "max_subscriptions", "maxsubscriptions"),
    "max_msgs": ("max_msgs", "mm", "maxmsgs", "max_count", "maxcount"),
    "max_bytes": ("max_bytes", "mb", "maxbytes"),
    "max_age_ns": ("max_age", "ma", "maxage"),
    "max_inactivity_ns": ("max_inactivity", "mi", "maxinactivity"),
}
"""The spellings of the limits that a channel may have of its own, by field; the usual one first."""

STORE_LIMIT_KEYS: dict[str, str] = {
    **{name: names[0] for names in LIMIT_KEYS.values() for name in names},
    **dict.fromkeys(("mc", "maxchannels"), "max_channels"),
    **dict.fromkeys(("channels_limits", "channelslimits", "per_channel", "per_channel_limits"), "channels"),
}
"""The usual spelling of the keys in ``store_limits``, by each other one."""

_SECOND = 1_000_000_000


class ChannelLimits(Value):
    """The limits of a channel; 0: no limit. In the limits of a pattern, -1: as the next more general one."""

    max_subs: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    max_age_ns: int = -1
    max_inactivity_ns: int = -1


class StreamingSettings(Section):
    """Clients of NATS Streaming."""

    enabled: bool = setting(
        False, kinds.boolean, "Serve clients of NATS Streaming. A block `streaming { … }` or a cluster ID enables it, "
        "too.", variable="ENABLED")
    cluster_id: str = setting(
        "test-cluster", kinds.name, "Cluster ID that the clients of NATS Streaming connect to.", "cluster_id", "id",
        "cid", variable="CLUSTER_ID")
    dir: str = setting(
        "", kinds.text, "Directory of the store, unless another setting names a store.", "dir", "datastore",
        variable="DIR")
    discover_prefix: str = setting(
        "_STAN.discover", kinds.name, "Subject prefix of connect requests.", "discover_prefix")
    hb_interval_ns: int = setting(
        30 * _SECOND, kinds.duration_ns(1_000_000), "Interval of heartbeats to a client.", "hb_interval", "hbi",
        "server_to_client_hb_interval")
    hb_timeout_ns: int = setting(
        10 * _SECOND, kinds.duration_ns(1_000_000), "Time for the answer to a heartbeat.", "hb_timeout", "hbt",
        "server_to_client_hb_timeout")
    hb_fail_count: int = setting(
        10, kinds.integer(0), "Failed heartbeats in a row before a client is closed.", "hb_fail_count", "hbf",
        "server_to_client_hb_fail_count")
    max_channels: int = setting(
        100, kinds.integer(0), "Channels; 0: no limit.", "store_limits.max_channels",
        variable="MAX_CHANNELS")
    max_subs: int = setting(
        1000, kinds.integer(0), "Subscriptions of a channel; 0: no limit.", "store_limits.max_subs",
        variable="MAX_SUBS")
    max_msgs: int = setting(
        1_000_000, kinds.integer(0), "Messages of a channel; 0: no limit.", "store_limits.max_msgs",
        variable="MAX_MSGS")
    max_bytes: int = setting(
        1_024_000_000, kinds.size(0), "Bytes of a channel's messages; 0: no limit.",
        "store_limits.max_bytes", variable="MAX_BYTES")
    max_age_ns: int = setting(
        0, kinds.duration_ns(0), "Age of a channel's messages; 0: no limit.", "store_limits.max_age",
        variable="MAX_AGE")
    max_inactivity_ns: int = setting(
        0, kinds.duration_ns(0), "Time without messages and subscriptions after which a channel is deleted; 0: never.",
        "store_limits.max_inactivity", variable="MAX_INACTIVITY")
    channels: tuple[tuple[str, ChannelLimits], ...] = setting(
        (), kinds.names, "Limits of single channels, or of those that a subject with wildcards matches: "
        "`store_limits { channels { \"orders.>\": { max_msgs: 10 } } }`; from a file only.",
        "store_limits.channels", variable="")
    partitioning: bool = setting(
        False, kinds.boolean, "Serve the configured channels only; other servers of the cluster ID serve others.",
        "partitioning", variable="PARTITIONING")
    replace_durable: bool = setting(
        False, kinds.boolean, "A durable subscription replaces the one that its client has, instead of an error.",
        "replace_durable", "replace_durables", "replace_duplicate_durable", "replace_duplicate_durables",
        variable="REPLACE_DURABLE")

    @property
    def general(self) -> ChannelLimits:
        """The limits of a channel that no pattern matches."""
        return ChannelLimits(self.max_subs, self.max_msgs, self.max_bytes, self.max_age_ns, self.max_inactivity_ns)

    def limits_of(self, channel: str) -> ChannelLimits:
        """Return the limits of a channel, or of the channels of a pattern.

        Each limit is that of the most specific pattern that has it, otherwise the general one.
        """
        name = channel.encode()
        found = [(one, limits) for pattern, limits in self.channels if subset(name, one := pattern.encode())]
        values = {}
        for field in LIMIT_KEYS:
            general = getattr(self.general, field)
            own = [(pattern, value) for pattern, limits in found if (value := getattr(limits, field)) >= 0]
            for pattern, value in own:
                if all(subset(pattern, other) for other, _ in own):
                    general = value
            values[field] = general
        return ChannelLimits(**values)
